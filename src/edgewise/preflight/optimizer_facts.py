"""Facts about the optimizer before it steps: whose tensors it holds, what is frozen, and its numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from edgewise.preflight.catalog import CheckFinding, NotAsked, error, fact, finding, warning
from edgewise.preflight.evidence import TrainingEvidence, is_readable, median, parent, role
from edgewise.preflight.motion_facts import motion
from edgewise.preflight.tensor_facts import is_default_draw


def _groups(evidence: TrainingEvidence) -> list[dict[str, Any]]:
    if evidence.optimizer is None:
        raise NotAsked("no optimizer was given")
    return evidence.data.get("groups") or list(evidence.optimizer.param_groups)


def _kind(evidence: TrainingEvidence) -> str:
    inner = getattr(evidence.optimizer, "optimizer", None)
    return type(inner if isinstance(inner, torch.optim.Optimizer) else evidence.optimizer).__name__.lower()


@fact("not in the optimizer", needs="optimizer")
def not_in_the_optimizer(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare trainable parameters with those of the optimizer, by identity.

    Threshold: any that the optimizer does not hold, and that no step moves; an error if it holds other
    tensors in their place, a note if they are the trained body under another head.
    """
    held = {id(p) for g in _groups(evidence) for p in g["params"]} | evidence.data.get(
        "held elsewhere", set()
    )
    moved = {
        n
        for r in evidence.steps
        for n, s in r.after.items()
        if not torch.equal(s.entries, r.before[n].entries)
    }
    missing = [n for n, p in evidence.trainable.items() if id(p) not in held and n not in moved]
    if not missing:
        return
    share = sum(evidence.trainable[n].numel() for n in missing) / sum(
        p.numel() for p in evidence.trainable.values()
    )
    own = {id(p) for p in evidence.model.parameters()}
    strangers = [p for g in _groups(evidence) for p in g["params"] if id(p) not in own and p.requires_grad]
    if len(missing) == len(evidence.trainable):
        yield error(
            ["optimizer", *missing],
            "The optimizer holds other tensors than the model's: nothing will be trained.",
            f"none of the {len(missing)} trainable parameters is in it; it holds {len(strangers)} others",
            "make it of this model's parameters, after the last change (moving, wrapping, loading, replacing layers)",
        )
        return
    yield finding(
        "error"
        if strangers
        else "note"
        if evidence.state == "trained" and _under(evidence, missing) and share > 0.5
        else "warning",
        [*missing, "optimizer"],
        "Trainable parameters will never be updated: they are not in the optimizer.",
        f"{len(missing)} parameters, {share:.0%} of the trainable ones"
        + (f"; it holds {len(strangers)} tensors that are not the model's" if strangers else ""),
        "pass them to the optimizer, or make it after the last change of the model; freeze what should stay",
        share=share,
    )


def _under(evidence: TrainingEvidence, missing: list[str]) -> bool:
    """Return whether all of them run before all others: a body that stays as it is under a new head."""
    calls = [] if evidence.first is None else evidence.first.calls
    order = {c.name: i for i, c in enumerate(calls) if c.name}
    others = [order.get(parent(n), -1) for n in evidence.trainable if n not in missing]
    return max(order.get(parent(n), -1) for n in missing) < min(others, default=-1)


@fact("optimizer elsewhere", needs="optimizer")
def optimizer_elsewhere(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare parameters of the optimizer with the model's, by identity.

    Threshold: any that the model (and `also`) does not have: left over from before a change.
    Cannot decide: further networks: pass them with `also`.
    """
    groups = _groups(evidence)
    own = {id(p) for p in evidence.model.parameters()} | evidence.data.get("also parameters", set())
    total = [p for g in groups for p in g["params"]]
    others = [p for p in total if id(p) not in own]
    if others and len(others) < len(total):
        shapes = {tuple(p.shape) for p in evidence.model.parameters()}
        stale = sum(tuple(p.shape) in shapes for p in others)
        yield finding(
            "warning" if stale else "note",
            "optimizer",
            "The optimizer holds tensors that are not in the model.",
            f"{len(others)} of {len(total)} parameters; {stale} have the shape of a parameter of the model",
            "make the optimizer after the last change of the model",
        )


@fact("groups", needs="optimizer")
def groups(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare parameters and rates of the groups with one another.

    Threshold: a parameter twice; rates more than 1000 times apart, both above zero.
    """
    every = _groups(evidence)
    ids = [id(p) for g in every for p in g["params"]]
    if len(ids) > len(set(ids)):
        yield error(
            "optimizer",
            "The optimizer holds a parameter twice: it is updated twice in a step.",
            f"{len(ids) - len(set(ids))} repetitions",
            "list each parameter once (tied weights have two names)",
        )
    rates = [float(g["lr"]) for g in every if float(g.get("lr", 0)) > 0 and g["params"]]
    if len(rates) > 1 and max(rates) > 1000 * min(rates):
        yield warning(
            "optimizer",
            "The rates of the groups are more than 1000 times apart.",
            f"from {min(rates):.2g} to {max(rates):.2g}",
            "a typing error in an exponent?",
        )
    own = {_plain(key): key for key in getattr(evidence.optimizer, "defaults", {})}
    for key in dict.fromkeys(key for g in every for key in g):
        meant = own.get(MEANT.get(_plain(key), _plain(key)))
        if meant not in (None, key) and any(key in g and g[key] != g.get(meant) for g in every):
            yield warning(
                "optimizer",
                f"The groups have the key {key!r}, which the optimizer does not read: it has {meant!r}.",
                f"{key} is {next(g[key] for g in every if key in g)!r}, and the {meant} that counts is "
                f"{next(g[meant] for g in every if meant in g)!r}: unknown keys are ignored (learning rate?)",
                f"write {meant!r}",
            )
    frozen = [p for g in every for p in g["params"] if not p.requires_grad]
    if frozen and len(frozen) == len(ids):
        yield error("optimizer", "Every parameter of the optimizer is frozen.", f"{len(frozen)} parameters")


MEANT = {"learningrate": "lr", "rate": "lr", "wd": "weightdecay", "decay": "weightdecay", "l2": "weightdecay"}


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


@fact("rate zero", needs="optimizer")
def rate_zero(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the rate of every group, now and after the steps.

    Threshold: zero; a note if a scheduler has set `initial_lr`; negative: an error.
    """
    every = _groups(evidence)
    zero = [i for i, g in enumerate(every) if "lr" in g and float(g["lr"]) == 0 and g["params"]]
    later = [max(s.rates, default=0.0) for s in evidence.steps]
    ahead = max([*later, *evidence.rates_ahead], default=0.0)
    if any(float(g.get("lr", 0)) < 0 for g in every):
        yield error("optimizer", "A learning rate is negative.")
    if len(zero) == len(every) and zero:
        warm = any(g.get("initial_lr") for g in every)
        stuck = evidence.step is not None and len(later) >= 2 and ahead == 0
        yield finding(
            "note"
            if later and max(later) > 0
            else "error"
            if stuck or not warm
            else "note",  # set by the step
            "optimizer",
            "The learning rate is zero."
            if not stuck
            else "The learning rate is zero and stays so: the scheduler is not stepped, or its schedule "
            "is over.",
            f"in all {len(zero)} groups" + (", at the start of a warm-up" if warm and not stuck else ""),
            ""
            if warm and not stuck
            else "give the optimizer a rate; step the scheduler after every optimizer step",
        )
    elif zero:
        yield warning(
            ["optimizer", *_names(evidence, [every[i] for i in zero])],
            "The learning rate of a group is zero: its parameters are never updated.",
            f"groups {zero}, {sum(len(every[i]['params']) for i in zero)} parameters",
            "freeze what should stay (requires_grad_(False)); else give the group a rate",
        )


def _names(evidence: TrainingEvidence, chosen: list[dict[str, Any]]) -> list[str]:
    held = {id(p) for g in chosen for p in g["params"]}
    return [n for n, p in evidence.parameters.items() if id(p) in held][:8]


@fact("decay", needs="optimizer")
def decay(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare rate times weight decay.

    Threshold: above 0.5 % a step: halved in fewer than 140 steps.
    Cannot decide: decay that hurts late; decay of gains and biases: common, not reported.
    """
    worst, place = 0.0, 0
    for i, g in enumerate(_groups(evidence)):
        product = float(g.get("lr", 0)) * float(g.get("weight_decay", 0) or 0)
        if product > worst and any(p.dim() >= 2 for p in g["params"]):
            worst, place = product, i
    adam_l2 = _kind(evidence) in ("adam", "nadam", "radam", "rmsprop", "adagrad", "adamax")
    if worst > 5e-3 and not adam_l2:
        yield warning(
            ["optimizer", f"optimizer, group {place}"],
            f"Weight decay takes {worst:.2g} off every weight in each step.",
            f"rate times weight decay is {worst:.2g}: weights are halved in {0.693 / worst:.0f} steps",
            "rate times weight decay is usually below 0.0003",
            product=worst,
        )
    elif adam_l2:
        strong = max((float(g.get("weight_decay", 0) or 0) for g in _groups(evidence)), default=0.0)
        if strong >= 0.05:
            yield warning(
                "optimizer",
                "Adam is given a weight decay meant for AdamW: it is added to the gradient and normalized with it.",
                f"{_kind(evidence)} with weight_decay {strong}",
                "torch.optim.AdamW",
                decay=strong,
            )


@fact("momentum", needs="optimizer")
def momentum(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare betas and momentum.

    Threshold: beta1 above beta2 (swapped); beta2 below 0.8 or beta1 above 0.99; momentum at least 1.
    Cannot decide: unusual values that are meant.
    """
    for g in _groups(evidence):
        betas, m = g.get("betas"), g.get("momentum")
        if isinstance(betas, (tuple, list)) and len(betas) >= 2 and "adam" in _kind(evidence):
            one, two = float(betas[0]), float(betas[1])
            if one > two:
                yield warning(
                    "optimizer",
                    "The betas of Adam are swapped.",
                    f"betas = ({one}, {two}): the mean is longer than that of the squares",
                    "betas=(0.9, 0.999)",
                    swapped=1.0,
                )
                return
            if two < 0.8 or one > 0.99:
                yield warning(
                    "optimizer",
                    "A beta of Adam is far from its usual range.",
                    f"betas = ({one}, {two})",
                    "betas=(0.9, 0.95) to (0.9, 0.999)",
                )
                return
        if isinstance(m, (int, float)) and m >= 0.999:
            yield finding(
                "error" if m >= 1 else "warning",
                "optimizer",
                "The momentum sums gradients without forgetting.",
                f"momentum = {m}",
                "momentum=0.9",
            )
            return


@fact("rate scale", needs="optimizer")
def rate_scale(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the rate of Adam-like and sign-based optimizers.

    Threshold: above 0.3 for matrices: each entry moves by the rate, and no matrix of width 16 or more has
    such entries.
    Cannot decide: rates of SGD: see *update ratio*.
    """
    if not any(word in _kind(evidence) for word in ("adam", "lion")):
        raise NotAsked("rates of this optimizer have no natural scale")
    for i, g in enumerate(_groups(evidence)):
        rate = max(float(g.get("lr", 0)), float(g.get("initial_lr", 0) or 0))
        if evidence.steps and max(motion(evidence).updates.values(), default=rate) < 0.1 * rate:
            continue  # it has a scale of its own
        if rate >= 0.3 and any(p.dim() >= 2 for p in g["params"]):
            yield error(
                ["optimizer", f"optimizer, group {i}"],
                "The learning rate is far too high.",
                f"{_kind(evidence)} moves every weight by about its rate, {rate:.2g}, in each step",
                "1e-4 to 3e-3 is usual; `edgewise rate` names one",
                rate=rate,
            )
            return


@fact("half precision", needs="optimizer")
def half_precision(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the dtype of trained weights.

    Threshold: float16 weights in an optimizer: gradients below 6e-8 vanish, steps are rounded away.
    Cannot decide: bfloat16 that is meant: see *rounded away*.
    """
    if evidence.optimizer is None:
        raise NotAsked("no optimizer was given")
    low = [n for n, p in evidence.trainable.items() if p.dtype == torch.float16]
    if low:
        yield warning(
            low,
            "Weights are trained in float16.",
            f"{len(low)} trainable parameters are float16",
            "keep the weights in float32 and use autocast with a GradScaler",
        )


@fact("untrained among trained", needs="tensors")
def untrained_among_trained(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare largest singular value over that of an independent draw, by kind of matrix.

    Threshold: a kind of at least two below 1.03 while the median of the others is above 2.5.
    Cannot decide: lightly trained weights look fresh; single new heads: a note.
    """
    kinds: dict[str, dict[str, float]] = defaultdict(dict)
    for name, edge in evidence.edges.items():
        if name not in evidence.tables and "lora" not in name.lower():
            kinds[role(name)][name] = edge
    for kind, edges in kinds.items():
        others = [e for k, es in kinds.items() if k != kind for e in es.values()]
        if len(others) < 4 or sum(e > 1.15 for e in others) < 0.7 * len(others):
            continue
        if max(edges.values()) < 1.03:
            sure = len(edges) > 1 and median(others) > 2.5
            yield finding(
                "warning" if sure else "note",
                list(edges),
                "Some matrices are random draws where the others are trained.",
                f"spectral edge {max(edges.values()):.2f}, the others have {median(others):.2f} (1 is a random draw)",
                "read the loading report: were these keys missing, or drawn again after loading?",
            )


@fact("frozen and fresh", needs="tensors")
def frozen_and_fresh(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare `requires_grad` with the spectrum.

    Threshold: more than 20 % of the parameters are frozen random draws, and nothing is trained; or a Linear
    layer is exactly torch's default draw while most other frozen ones are not.
    Cannot decide: random features that are frozen on purpose.
    """
    frozen = {n for n in evidence.edges if not evidence.parameters[n].requires_grad}
    if not frozen:
        raise NotAsked("nothing is frozen")
    drawn = list(_frozen_as_drawn(evidence))
    if drawn:
        yield from drawn
        return
    tied = [n for n in frozen if n in evidence.tables and len(evidence.names[id(evidence.parameters[n])]) > 1]
    rest = [e for n, e in evidence.edges.items() if n not in frozen]
    if evidence.fresh and rest and any(evidence.edges[n] < 1.07 for n in tied):
        names = [x for n in tied for x in evidence.names[id(evidence.parameters[n])]]
        yield warning(
            names,
            "The readout is frozen and was never trained: it is tied to the embedding, which does not require a "
            "gradient.",
            f"{names[0]} has {len(names)} names, is a random draw and requires_grad is False, while other weights "
            "train",
            "untie the readout before freezing the embedding, or leave both trainable",
        )
        return
    raw = [n for n in frozen if evidence.edges[n] < 1.07 and n not in evidence.tables]
    total = sum(p.numel() for p in evidence.parameters.values())
    share = sum(evidence.parameters[n].numel() for n in raw) / max(1, total)
    if raw and evidence.fresh and len(raw) > 0.95 * len(frozen - evidence.tables) and share > 0.2:
        yield finding(
            "warning" if share > 0.5 and evidence.trained_share == 0 else "note",
            sorted(raw),
            "Most of the network is frozen and was never trained.",
            f"{share:.0%} of the parameters are frozen random draws",
            "requires_grad_(True), or load the pretrained weights that were meant",
            share=share,
        )


def _frozen_as_drawn(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Single frozen Linear layers that are torch's default draw to the last digit, among others that are not."""
    linear = {
        n: is_default_draw(m.weight.detach())
        for n, m in evidence.model.named_modules()
        if isinstance(m, nn.Linear)
        and not m.weight.requires_grad
        and is_readable(m.weight)
        and m.weight.numel() >= 128
    }
    drawn = [n for n, default in linear.items() if default]
    if drawn and len(drawn) <= 0.3 * len(linear) and len(linear) >= 3:
        yield warning(
            drawn,
            "A frozen layer was never trained: it is a random draw, and requires_grad is False.",
            f"{drawn[0]} is frozen as torch draws a new Linear layer, the other {len(linear) - len(drawn)} frozen "
            f"ones are not",
            "train new heads: requires_grad_(True) for them, and give them to the optimizer",
        )
