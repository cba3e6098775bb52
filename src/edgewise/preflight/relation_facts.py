"""Facts about relations that any training keeps: what must change the loss, and what must not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from edgewise.preflight.catalog import CheckFinding, NotAsked, Undecided, error, fact, finding, note, warning
from edgewise.preflight.contracts import backward_factor
from edgewise.preflight.evidence import Sample, TrainingEvidence
from edgewise.preflight.relations import Relations, fields, name_of, samples_of

MEANT = re.compile(
    r"label|target|mask|weight|reject|negative|positive|answer|reward|advantage|(^|[._])(y|tags?)$",
    re.IGNORECASE,
)


def _replays(evidence: TrainingEvidence) -> Relations:
    evidence.after_base()
    if evidence.replays is None:
        raise Undecided("the loss could not be replayed")
    found: Relations = evidence.replays
    return found


@fact("batch unused", needs="changed", cost="0")
def batch_unused(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the loss and its gradient at the outputs before and after every field of the batch was given to other
    samples, and given other values.

    Threshold: nothing changes, though the field is by its name a label, mask, weight or reward: a warning, else a
    note; other values matter and whose they are does not: broadcast.
    Cannot decide: losses that the model computes itself.
    """
    found = _replays(evidence)
    if not found.used and not found.entered:
        raise NotAsked("the loss is not made of whole outputs of the model")
    given = {name_of(path): tensor for path, tensor in fields(evidence.batches[0])}
    for name, used in found.used.items():
        if not used:
            yield finding(
                "warning" if MEANT.search(name) else "note",
                ["data", "loss"],
                f"The batch has `{name}`, and the loss does not depend on it: it is never read, or cancels.",
                "giving its values to other samples, and other values, changes neither the loss nor what the model is "
                "given: it has no effect, and no gradient comes from it",
                "is another field read twice in its place?",
                field=name,
            )
        elif not found.assigned[name] and given[name].is_floating_point():
            yield warning(
                ["loss", "data", "labels"],
                f"It does not matter which sample has which value of `{name}`: only their mean enters the loss.",
                "exchanging its values between the samples leaves the loss as it is, other values do not: shapes such "
                "as (n,) and (n, 1) are broadcast, and every sample meets every value",
                "give both factors one shape (squeeze the weight)",
                field=name,
            )


@fact("label of another sample", needs="changed", cost="0")
def label_of_another_sample(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the rows of what the model is given that hold a sample with the rows of its outputs that the sample's
    label moves.

    Threshold: neither holds the other, for most samples: outputs are scored by labels of other samples.
    """
    name = _replays(evidence).crossed
    if name is not None:
        yield warning(
            ["labels", "data", "loss", name],
            "Outputs are scored by the labels of other samples: inputs and labels are in different order.",
            f"the label `{name}` of a sample moves the gradient at other rows of the outputs than those that its input "
            "fills: labels are misaligned, shuffled against the examples (repeat for repeat_interleave, a view for a "
            "transpose, one of them sorted?)",
            "reorder, repeat and flatten inputs and labels alike",
            field=name,
        )


@fact("input unused", needs="changed")
def input_unused(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the outputs of the model before and after one of its inputs was given to other samples; tokens that are
    looked up, by their gradient.

    Threshold: no output moves, after at least two steps; no gradient from the loss in two passes. Cannot decide: masks.
    """
    found = _replays(evidence)
    silent = [x for x in evidence.data.get("silent", ()) if x.shape[0] > 1 and bool((x != x[:1]).any())]
    for ids, reach in evidence.reaches:
        if any(torch.equal(ids, x) for x in silent) and not reach.any():
            own = [
                name_of(path)
                for path, t in fields(evidence.batches[0])
                if t.shape == ids.shape and torch.equal(t, ids)
            ]
            found.unseen += own or ["token ids"]
    for name in dict.fromkeys(found.unseen):
        yield warning(
            ["model", "data", name],
            f"The model is given `{name}`, and its outputs do not depend on it: the input is ignored.",
            f"no output has any influence of `{name}` (a condition, a source), and no gradient comes through it: "
            "it is never used, overwritten, masked out, or multiplied by zero",
            "is another input used twice in its place?",
            field=name,
        )


@fact("loss without end", needs="changed", cost="0")
def loss_without_end(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the loss with that of outputs moved far along minus its gradient, for all samples and for single ones.

    Threshold: it falls in proportion to the distance for every sample: it is unbounded below; a note if it does for
    some samples only (rewards of both signs), or is linear in the outputs (a critic).
    """
    found = _replays(evidence)
    if found.falls is None:
        return
    start, end = found.falls
    yield finding(
        "note"
        if found.falling <= 0.95 or found.linear or _maximized(evidence) or _rewarded(evidence)
        else "warning",
        ["loss", "labels", "data"],
        "The loss has no lower bound: it becomes negative without end as the outputs grow.",
        f"moving the outputs down their gradient takes the loss from {start:.3g} to {end:.3g}, and further in "
        f"proportion to the distance, in {found.falling:.0%} of the samples that were tried",
        "look for a wrong sign, min for max, targets outside of their range, or probabilities for log-probabilities",
        start=start,
        end=end,
    )


@fact("pushed away", needs="changed", cost="0")
def pushed_away(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the gradient of the loss at every row of logits with that of the cross-entropy inside it.

    Threshold: opposite in more than 95 % of the rows, at least 8: a step makes every label less probable.
    Cannot decide: rewards and unlikelihood, which lower some rows only.
    """
    evidence.loss_call("cross_entropy")
    share = evidence.data.get("rows pushed away")
    if share is None:
        raise NotAsked("the gradient at the logits was not seen")
    if share > 0.95 and not _maximized(evidence):
        wrong = evidence.seen().number < 0
        yield finding(
            "note" if _rewarded(evidence) else "error" if wrong else "warning",
            "loss",
            "Minimizing the loss makes the labels less probable: "
            + ("the loss has the wrong sign." if wrong else "wrong predictions are rewarded."),
            f"in {share:.0%} of the rows the gradient of the loss at the logits is opposite to that of the "
            "cross-entropy",
            "check the sign of the loss and of its weights: the weight of an example (focal loss) must not grow with "
            "the probability of its label",
            share=share,
        )


def _maximized(evidence: TrainingEvidence) -> bool:
    """Return whether the optimizer goes up: a likelihood or return, not a loss."""
    return evidence.optimizer is not None and any(g.get("maximize") for g in evidence.optimizer.param_groups)


def _rewarded(evidence: TrainingEvidence) -> bool:
    """Return whether the batch has numbers below zero for its samples, which may push away: returns, advantages."""
    batch = evidence.batches[0]
    rows = [
        t
        for _, t in fields(batch)
        if t.is_floating_point() and t.dim() <= 2 and t.shape[:1] == (samples_of(batch),)
    ]
    return any(t.numel() <= 2 * samples_of(batch) and bool((t < 0).any()) for t in rows)


@fact("pulled and pushed", needs="loss", cost="0")
def pulled_and_pushed(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the gradients that equal token ids get, which the loss looks up more than once.

    Threshold: opposite (cosine below -0.9): the same things are positives and negatives.
    Cannot decide: networks with dropout, which may be asked to agree with themselves.
    """
    found = evidence.data.get("opposed")
    if not found or any(active and p > 0 for _, p, active in evidence.seen().dropouts):
        raise NotAsked("no token ids are looked up twice, or dropout tells the two apart")
    for place, cosine in found:
        if cosine < -0.9:
            yield warning(
                ["data", "labels", "loss", place],
                "The same examples are positives and negatives: the loss pulls and pushes them at once.",
                f"two inputs are equal (identical ids), and their gradients have cosine {cosine:.2f}: they cancel",
                "is one field read twice, or a view of the other that was never filled?",
                cosine=cosine,
            )
            return


@fact("own label seen", needs="changed")
def own_label_seen(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare outputs before and after the last entry of a field was changed that the model is given and labels are
    taken from.

    Threshold: exactly the outputs that are asked for it move: they see their label, and no other does.
    Cannot decide: networks that see both sides, which may be meant to repeat their input.
    """
    found = _replays(evidence)
    if found.own_label is not None:
        name, row, same = found.own_label
        yield finding(
            "note"
            if same and len(found.entered) == 1
            else "error",  # it repeats all that it has, through a bottleneck
            ["labels", "data", "model"],
            "An output sees the label it is asked for: the model is given it as an input (a leak).",
            f"changing the last entry of `{name}` changes the label of output {row}, and that output with it: it reads "
            f"its own label",
            "take the outputs one place earlier, at the token before the one that holds the answer",
            field=name,
            row=row,
        )


def mixed_in_half(evidence: TrainingEvidence) -> bool | None:
    """Return True if samples have other outputs in half of the batch; None if it was not tried."""
    found = evidence.replays
    return None if found is None or found.half is None else not found.half


@fact("objects made in the step", needs="loop", cost="0")
def made_in_the_step(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the optimizers, schedulers and scalers that the user's step makes with the ones that were there.

    Threshold: any made at every step: its state (momentum, counts, scale) begins again and again.
    """
    if evidence.step is None:
        raise NotAsked("no step was given")
    every = [set(names) for names in evidence.data.get("made", [])]
    for name in sorted(set.intersection(*every[1:]) if len(every) > 1 else set()):
        yield warning(
            ["step", "optimizer"],
            f"The step makes a new {name} every time: its state never builds up.",
            f"{name} is made inside the step: "
            + {
                "optimizer": "momentum and counts begin again, and the optimizer that was given never steps",
                "scheduler": "every step is its first: the learning rate never changes from that of the warm-up's "
                "start",
                "scaler": "its scale starts again at every step, and steps that overflow are skipped for ever",
            }[name],
            f"make the {name} once, before the loop",
        )


@fact("weights between steps", needs="loop", cost="0")
def weights_between_steps(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the weights when the optimizer steps with those that the step before left.

    Threshold: they are those of an earlier step again: an error; or were moved up the gradient and not brought back.
    Cannot decide: constraints (normalized or masked weights) that are applied before the pass.
    """
    if evidence.step is None:
        raise NotAsked("no step was given")
    records = [r for r in evidence.taken() if r.at_step]
    if not records:
        raise NotAsked("no step of a torch optimizer was seen")
    for record in records:
        names = [n for n in record.before if n in record.at_step]
        before, now = (_joined(w, names) for w in (record.before, record.at_step))
        moved = now - before
        if not moved.any():
            continue
        if record.index and torch.equal(now, _joined(records[0].before, names)):
            yield warning(
                ["step", "model", "optimizer"],
                "Every step begins with the same weights: what the last one changed is put back (a checkpoint is "
                "loaded in the loop).",
                f"in step {record.index + 1} the weights are those from before step 1 again: load_state_dict, reset or "
                f"resume inside the step; the update is undone",
                "load the weights once, before the loop",
            )
            return
        with_slope = [n for n in names if record.gradients.get(n) is not None]
        way = _joined(record.at_step, with_slope) - _joined(record.before, with_slope)
        slope = _joined({n: s for n, s in record.gradients.items() if s is not None}, with_slope)
        if way.shape == slope.shape and float(way @ slope) > 0.3 * float(way.norm() * slope.norm()) > 0:
            yield error(
                ["step", "model", "optimizer"],
                "The weights are moved uphill before the optimizer steps, and not brought back.",
                f"between two steps they were changed outside of the optimizer, along the gradient (cosine "
                f"{float(way @ slope) / float(way.norm() * slope.norm()):.2f}), as sharpness-aware steps perturb them",
                "restore the weights before optimizer.step",
            )
            return


def _joined(weights: dict[str, Sample], names: list[str]) -> Tensor:
    return torch.cat([weights[n].entries.float() for n in names]) if names else torch.zeros(1)


@fact("own backward", needs="pass", cost="0")
def own_backward(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the gradient of every `torch.autograd.Function` of the user with a finite difference along a random
    direction.

    Threshold: 10 % off; opposite, with one loss: everything before it is trained uphill.
    Cannot decide: functions with steps (rounding, codes), whose straight-through gradient is meant.
    """
    seen = evidence.seen()
    if not seen.backwards:
        raise NotAsked("no backward pass is written by hand")
    for place, function, args, kwargs in seen.backwards:
        found = backward_factor(function, args, kwargs)
        if found is None or abs(found[0] - 1) < 0.1:
            continue
        share, places = found[0], [place or "model"]
        name = f"{function.__name__}, a backward pass of its own"
        if abs(share + 1) < 0.05:
            yield finding(
                "warning" if len(seen.losses) <= 1 else "note",
                [*places, *_before(evidence, place), "step"],
                "The gradient is reversed on its way back: everything before it is trained uphill.",
                f"{name}, gives minus the finite difference (a gradient reversal, the wrong sign), and there is one "
                "loss",
                "leave the reversal to the branch of a domain classifier",
                share=share,
            )
        elif _identity(function, args, kwargs) > 0.3:
            yield note(
                places,
                "A layer scales the gradient that passes it.",
                f"{name}: {share:.3g} times",
                share=share,
            )
        else:
            yield warning(
                places,
                "The backward pass that was written by hand is wrong: its gradient differs from the finite difference.",
                f"{name}, gives {share:.3g} times the finite difference along a random direction: autograd is "
                "overruled",
                "multiply by the gradient that came in (chain rule); torch.autograd.gradcheck tests it",
                share=share,
            )


def _before(evidence: TrainingEvidence, place: str) -> list[str]:
    """Some parameters that get their gradient through this place: those of modules called before it."""
    names = list(
        dict.fromkeys(
            c.name for c in evidence.seen().calls if c.name and next(c.module.parameters(), None) is not None
        )
    )
    return names[: names.index(place)][:3] if place in names else names[:3]


def _identity(function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> float:
    """The share of entries that pass unchanged: all of a scale's, most of a clamp's."""
    out = function.apply(*args, **kwargs)  # type: ignore[attr-defined]
    same = [a for a in args if torch.is_tensor(a) and torch.is_tensor(out) and a.shape == out.shape]
    return max((float((a == out).float().mean()) for a in same), default=0.0)


@fact("contract", needs="pass")
def contract(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare what torch's loss functions are given with what their documentation asks for: signs, lengths, blanks,
    log-probabilities, variances, counts.

    Threshold: as documented.
    """
    for place, (sentence, seen, advice) in evidence.seen().broken:
        yield error(["loss", "labels", *([place] if place else [])], sentence, seen, advice)
