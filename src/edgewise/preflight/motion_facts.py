"""Facts about what real steps do to the weights and to the loss."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from edgewise.preflight.catalog import CheckFinding, NotAsked, Undecided, error, fact, finding, note, warning
from edgewise.preflight.evidence import StepRecord, TrainingEvidence, median, rms


def _moving(evidence: TrainingEvidence) -> StepRecord:
    """The first step with a rate above zero."""
    records = evidence.taken()
    for record in records:
        if max(record.rates, default=1.0) > 0 and record.optimizer_steps:
            return record
    raise NotAsked("the rate is zero in all steps: a warm-up")


def _held(evidence: TrainingEvidence) -> dict[str, dict[str, object]]:
    groups = {id(p): g for g in evidence.optimizer.param_groups for p in g["params"]}
    return {n: groups[id(p)] for n, p in evidence.trainable.items() if id(p) in groups}


class Motion:
    """The first moving step: sizes and shares of every parameter that has a gradient and is in the optimizer."""

    def __init__(self, evidence: TrainingEvidence) -> None:
        self.record = record = _moving(evidence)
        self.sizes: dict[str, float] = {}
        self.updates: dict[str, float] = {}
        self.lost = self.total = 0
        self.still: list[str] = []
        self.uphill = 0.0
        self.against = 0.0
        self.climbing: list[str] = []  # go along their own gradient
        for name, group in _held(evidence).items():
            gradient = record.gradients.get(name)
            if gradient is None or not gradient.alive or name not in record.before:
                continue
            if float(group.get("lr", 1)) == 0 and not record.rates:  # type: ignore[arg-type]
                continue
            before, after = record.before[name].entries.float(), record.after[name].entries.float()
            if before.shape != gradient.entries.shape:
                continue
            difference, slope = after - before, gradient.entries.float()
            living = gradient.entries != 0
            count, gone = int(living.sum()), int(((difference == 0) & living).sum())
            self.total, self.lost = self.total + count, self.lost + gone
            if count and gone == count:
                self.still.append(name)
            length, cosine = (
                float(difference.norm() * slope.norm()),
                _cosine(group, before, difference, slope),
            )
            product = cosine * length
            if cosine > 0.3 and difference.numel() >= 16:
                self.climbing.append(name)
            self.uphill, self.against = self.uphill + max(product, 0.0), self.against + max(-product, 0.0)
            self.sizes[name], self.updates[name] = rms(before), rms(difference)


def _cosine(group: dict[str, Any], before: Tensor, difference: Tensor, slope: Tensor) -> float:
    """Of a step with its gradient, the least with weight decay left in, taken out, and added to the gradient."""
    decay = float(group.get("weight_decay", 0) or 0)
    taken = float(group.get("lr", 0)) * decay * before
    pairs = ((difference, slope), (difference + taken, slope), (difference, slope + decay * before))
    return min(float((d * s).sum()) / max(float(d.norm() * s.norm()), 1e-30) for d, s in pairs)


def _torchs_own(evidence: TrainingEvidence) -> bool:
    """Return whether a step is what torch documents; others may gather gradients or what was rounded away."""
    return type(evidence.optimizer).__module__.startswith("torch.optim")


def motion(evidence: TrainingEvidence) -> Motion:
    """The motion of this evidence, computed once."""
    if "motion" not in evidence.data:
        evidence.data["motion"] = Motion(evidence)
    result: Motion = evidence.data["motion"]
    return result


@fact("nothing moves", needs="steps")
def nothing_moves(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare weights before and after a real step.

    Threshold: no parameter with a gradient changes; or one whose gradient is not zero stays exactly.
    """
    seen = motion(evidence)
    if not seen.total:
        raise Undecided("no parameter of the optimizer has a gradient")
    if seen.lost == seen.total:
        yield finding(
            "error" if _torchs_own(evidence) else "warning",
            ["step", "optimizer"],
            "A step changes no parameter.",
            f"{seen.total} sampled entries have a gradient",
            "rate, optimizer and gradients: one of them is empty",
        )
    elif seen.still and seen.lost < 0.3 * seen.total:
        names = [n for n in seen.still if evidence.trainable[n].dim() >= 2 or len(seen.still) > 3]
        zero = [n for n in names if float(_held(evidence)[n].get("lr", 1)) == 0]  # type: ignore[arg-type]
        names = [n for n in names if n not in zero and evidence.trainable[n].dtype == torch.float32]
        if names:
            yield warning(
                names,
                "Parameters have a gradient, are in the optimizer, and do not move.",
                f"{len(names)} parameters stay exactly where they were",
                "is their update undone, or their gradient removed before the step?",
            )


@fact("rounded away", needs="steps")
def rounded_away(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare entries with a gradient before and after a step.

    Threshold: more than 30 % stay exactly where they were: the update is below half a unit in the last place.
    """
    seen = motion(evidence)
    share = seen.lost / max(1, seen.total)
    low = {str(p.dtype) for p in evidence.trainable.values() if p.dtype in (torch.bfloat16, torch.float16)}
    if 0.3 < share < 1:
        yield finding(
            ("error" if share > 0.6 and low else "warning") if not low or _torchs_own(evidence) else "note",
            [*(seen.still[:50] or ["model"]), *([] if low else ["optimizer"])],
            "Updates are rounded away: they are smaller than the precision of the weights.",
            f"a step leaves {share:.0%} of the entries that have a gradient exactly where they were "
            f"({', '.join(low) or 'float32'})",
            "keep the weights in float32 (autocast), or round stochastically"
            if low
            else "the steps are too small: rate, clipping or eps",
            share=share,
        )


@fact("uphill", needs="steps")
def uphill(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the first step with its gradient.

    Threshold: update · gradient > 0 over all parameters; cosine above 0.3 for single ones.
    """
    seen = motion(evidence)
    if not seen.record.first:
        raise NotAsked("the optimizer has momentum already")
    if seen.uphill > 3 * seen.against and seen.uphill > 0:
        groups = evidence.optimizer.param_groups
        pushed = evidence.data.get("rows pushed away", 0.0) > 0.95 or evidence.seen().number < 0
        yield finding(
            "note"
            if pushed and any(g.get("maximize") for g in groups)
            else "error"
            if _torchs_own(evidence)
            else "warning",
            ["optimizer", "step"],
            "The step goes along the gradient, not against it: the loss is maximized.",
            "update times gradient is positive",
            "maximize=False"
            if any(g.get("maximize") for g in groups)
            else "check the sign of loss, rate and update",
        )
    elif seen.climbing and len(seen.climbing) < 0.7 * len(seen.sizes):
        meant = all(_held(evidence)[n].get("maximize") for n in seen.climbing)  # multipliers of a constraint
        yield finding(
            "note" if meant and len(seen.climbing) < 0.2 * len(seen.sizes) else "warning",
            [*seen.climbing, "optimizer"],
            "Some parameters move along their gradient, not against it: these are trained to raise the loss.",
            f"{len(seen.climbing)} of {len(seen.sizes)} parameters go uphill in the first step",
            "check the groups of the optimizer (maximize, sign of the rate), hooks on gradients, and the update's "
            "formula",
        )


@fact("update ratio", needs="steps")
def update_ratio(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare step over size of every matrix, against the median; small matrices against the median size; by group.

    Threshold: above 1.2 and 3 × the median, or a median above 1; below 3e-6: nothing in a thousand steps.
    Cannot decide: rates 10 to 100 times too low look like a warm-up: a note.
    """
    seen = motion(evidence)
    matrices = [n for n in seen.sizes if evidence.trainable[n].dim() >= 2 and seen.sizes[n] > 0]
    if not matrices:
        raise NotAsked("no matrix moves")
    size = median([seen.sizes[n] for n in matrices])
    ratios = {n: seen.updates[n] / max(seen.sizes[n], size) for n in matrices}
    middle = median(list(ratios.values()))
    evidence.facts["update ratio"] = middle
    low_precision = seen.lost > 0.3 * seen.total
    large = [n for n, r in ratios.items() if r > 1.2 and (r > 3 * middle or middle > 1)]
    if middle > 1:
        large = [n for n, r in ratios.items() if r > 1]
    if large:
        yield warning(
            ["optimizer", *large] if middle > 1 else [*large, "optimizer"],
            "The learning rate is too high: one step changes matrices by more than their size.",
            f"by {max(ratios[n] for n in large):.2g} of their size (median of all {middle:.2g})",
            "lower the rate of these weights; `edgewise rate` names one",
            ratio=max(ratios[n] for n in large),
            median=middle,
        )
    warming = any(
        float(g.get("initial_lr", 0) or 0) > 5 * float(g["lr"])
        for g in evidence.optimizer.param_groups
        if "lr" in g
    )
    if 0 < middle < 3e-6 and not low_precision and not warming:
        yield warning(
            ["optimizer", "step"],
            "The learning rate is too low: steps are so small that nothing will happen in a thousand of them.",
            f"one step changes the weights by {middle:.1e} of their size",
            "raise the rate; clipping or eps may also make the steps tiny",
            median=middle,
        )
    elif 0 < middle < 3e-4 and evidence.fresh and not warming:
        yield note(
            "optimizer",
            "Fresh weights move slowly.",
            f"by {middle:.1e} of their size per step",
            "right at the start of a warm-up; else see `edgewise rate`",
            median=middle,
        )
    if evidence.fresh or evidence.all_trainable:
        yield from _groups(evidence, ratios)


def _groups(evidence: TrainingEvidence, ratios: dict[str, float]) -> Iterator[CheckFinding]:
    """A group of matrices that moves a thousand times less than the others."""
    groups: dict[int, list[str]] = defaultdict(list)
    index = {id(p): i for i, g in enumerate(evidence.optimizer.param_groups) for p in g["params"]}
    for name in ratios:
        groups[index[id(evidence.trainable[name])]].append(name)
    if len(groups) < 2:
        return
    for i, names in groups.items():
        others = [ratios[n] for n in ratios if n not in names]
        own = median([ratios[n] for n in names])
        if others and 0 < own < 1e-3 * median(others) and median(others) < 1:
            yield warning(
                ["optimizer", f"optimizer, group {i}", *names],
                "One group of the optimizer moves a thousand times less than the others.",
                f"by {own:.1e} of its size per step, the others by {median(others):.1e}",
                "a typing error in its rate?",
            )


@fact("eps", needs="steps")
def eps(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the first Adam step with the rate.

    Threshold: below 10 % of the rate while eps exceeds the median gradient.
    Cannot decide: later steps of Adam are smaller than the rate by nature.
    """
    seen = motion(evidence)
    if not seen.record.first or "adam" not in type(evidence.optimizer).__name__.lower():
        raise NotAsked("not a first step of Adam")
    held, shares, slopes = _held(evidence), [], []
    for name in seen.sizes:
        gradient = seen.record.gradients[name]
        assert gradient is not None
        living = gradient.entries != 0
        difference = seen.record.after[name].entries.float() - seen.record.before[name].entries.float()
        rate = float(held[name]["lr"])  # type: ignore[arg-type]
        if rate > 0 and living.any():
            shares.append(float(difference[living].abs().median()) / rate)
            slopes.append(float(gradient.entries.float()[living].abs().median()))
    value = float(evidence.optimizer.param_groups[0].get("eps", 0) or 0)
    if shares and 0 < median(shares) < 0.1 and value > median(slopes) and seen.lost < 0.3 * seen.total:
        yield warning(
            "optimizer",
            "The eps of Adam is larger than the gradients: steps are far smaller than the rate.",
            f"a first step moves a weight by {median(shares):.1%} of the rate; eps is {value:.2g}, the "
            f"median gradient {median(slopes):.2g}",
            "eps=1e-8",
            eps=value,
        )


@fact("loss rises", needs="steps", cost="(+1)")
def loss_rises(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the loss of the first batch before and after the steps.

    Threshold: 30 % and 0.1 higher (for regression, whose size is not a scale, 5 times): a warning, on trained weights
    only above guessing; not finite: an error; only with a rate above zero.
    Cannot decide: anything finer needs `edgewise rate`.
    """
    records = evidence.taken()
    broken = [r for r in records if not all(s.finite for s in r.after.values())]
    if broken:
        yield error(
            "step",
            "The weights are not finite after a few steps.",
            f"after {broken[0].index + 1} steps",
            "lower the learning rate; clip the gradient",
        )
        return
    first, after = evidence.facts.get("first loss"), evidence.facts.get("loss after")
    if first is None or after is None or not evidence.own_loss:
        raise Undecided("the loss after the steps is not known")
    if not math.isfinite(after):
        yield error(
            "step",
            "The loss is not finite after a few steps.",
            f"{after} after {len(records)} steps",
            "lower the learning rate",
        )
    elif after > first + (0.3 if "chance" in evidence.facts else 4.0) * abs(first) + 0.1:
        chance = evidence.facts.get("chance", math.inf)
        yield finding(
            "warning" if evidence.fresh or after > 1.3 * max(chance, first) else "note",
            ["step", "optimizer"],
            "Training raises the loss: the rate is too high, or the step goes the wrong way.",
            f"{len(records)} real steps take the loss of the first batch from {first:.3g} to {after:.3g}",
            "lower the learning rate; `edgewise rate` names one",
            before=first,
            after=after,
        )
    elif evidence.step is None or all(r.optimizer_steps for r in records):
        seen = evidence.data.get("motion")
        if after == first and seen is not None and seen.lost < seen.total:
            yield note(
                "loss", "The steps change the weights and not the loss.", f"{first:.4g} before and after"
            )


@fact("rows decay", needs="steps")
def rows_decay(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare rows of a table whose gradient a hook removes, before and after a step.

    Threshold: they shrink all the same: weight decay moves what should be frozen.
    """
    record = _moving(evidence)
    hooked = [
        n
        for n, p in evidence.trainable.items()
        if p.dim() == 2 and (p._backward_hooks or p._post_accumulate_grad_hooks)
    ]
    if not hooked:
        raise NotAsked("no hook changes a gradient")
    for name in hooked:
        gradient = record.gradients.get(name)
        if gradient is None or name not in record.before:
            continue
        before, after = record.before[name].entries.float(), record.after[name].entries.float()
        zero = gradient.entries == 0
        shrunk = zero & (after.abs() < before.abs())
        if int(zero.sum()) >= 16 and int(shrunk.sum()) > 0.8 * int(zero.sum()):
            yield warning(
                name,
                "Rows whose gradient a hook takes away shrink all the same: weight decay moves them.",
                f"{int(shrunk.sum())} of {int(zero.sum())} sampled entries without gradient became smaller",
                "weight_decay=0 for this table, or copy the rows back after the step",
            )


@fact("moved without gradient", needs="steps")
def moved_without_gradient(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare frozen parameters, and those outside the optimizer, before and after the steps.

    Threshold: any that changes.
    Cannot decide: weights that an average (EMA) inside the model copies.
    """
    records = evidence.taken()
    held = {id(p) for g in evidence.optimizer.param_groups for p in g["params"]}
    moved = [
        n
        for n, p in evidence.parameters.items()
        if n in records[0].before
        and (not p.requires_grad or id(p) not in held)
        and not torch.equal(records[0].before[n].entries, records[-1].after[n].entries)
    ]
    frozen = [n for n in moved if not evidence.parameters[n].requires_grad]
    if frozen:
        inside = [n for n in frozen if id(evidence.parameters[n]) in held]
        yield finding(
            "warning" if inside else "note",
            frozen,
            "Frozen parameters move in a step.",
            f"{len(frozen)} parameters"
            + ("; they are in the optimizer, whose weight decay or momentum moves them" if inside else ""),
            "leave frozen parameters out of the optimizer" if inside else "",
        )
