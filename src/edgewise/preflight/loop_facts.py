"""Facts about the user's own step: order of its calls, and the gradient that the optimizer sees."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from edgewise.preflight.catalog import CheckFinding, NotAsked, Undecided, error, fact, finding, note, warning
from edgewise.preflight.evidence import Sample, StepRecord, TrainingEvidence, flat, median


def _records(evidence: TrainingEvidence) -> list[StepRecord]:
    if evidence.step is None:
        raise NotAsked("no step was given")
    return evidence.taken()


def _same(one: dict[str, Sample | None], other: dict[str, Sample | None]) -> tuple[Tensor, Tensor] | None:
    """Both as vectors over the parameters that have a gradient in both."""
    names = [n for n in one if one.get(n) is not None and other.get(n) is not None]
    if not names:
        return None
    return flat({n: one[n] for n in names}), flat({n: other[n] for n in names})


@fact("order of the step", needs="loop")
def order_of_the_step(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the order of zero_grad, backward, clip, step and scheduler inside the user's step.

    Threshold: no backward; no optimizer step; clipping before backward; zero_grad between backward and step; two
    steps. zero_grad on a gradient that no step has used.
    Cannot decide: accumulation over several calls: undecided.
    """
    every = evidence.events
    if not every:
        raise NotAsked("no step was given")
    joined = [e for events in every for e in events]
    if "backward" not in joined:
        yield error(
            "step",
            "The step never calls backward.",
            f"it calls {', '.join(dict.fromkeys(joined)) or 'nothing'}",
            "loss.backward() before optimizer.step()",
        )
        return
    if "wiped" in joined:
        yield warning(
            "step",
            "Gradients are thrown away: zero_grad wipes what was accumulated before any step uses it.",
            " | ".join(" → ".join(e for e in events if e != "wiped") for events in every),
            "call zero_grad after optimizer.step only, not for every micro-batch",
        )
        return
    if "step" not in joined:
        if "zero_grad" not in joined:
            raise Undecided("no optimizer step in these calls: accumulation over several calls?")
        yield error("step", "The step never calls optimizer.step.")
        return
    for name in dict.fromkeys(
        e.removeprefix("zero_grad of ") for e in joined if e.startswith("zero_grad of ")
    ):
        if f"step of {name}" not in joined and len(every) > 1:
            yield warning(
                ["step", "optimizer"],
                "The second optimizer never steps: its parameters are never updated.",
                f"{name}.zero_grad is called and {name}.step is not: {' | '.join(' → '.join(e) for e in every)}",
                "step every optimizer",
            )
            return
    slopes = {r.index: r.gradients.values() for r in evidence.steps}
    for k, events in enumerate(every):
        if "step" not in events or "backward" not in events or "closure" in events:
            continue
        backward, step = len(events) - 1 - events[::-1].index("backward"), events.index("step")
        if step < events.index("backward"):
            yield error(
                "step",
                "The optimizer steps before backward: it uses the gradient of the batch before, or none.",
                " → ".join(events),
                "zero_grad, backward, step",
            )
            return
        by_hand = any(s is not None and s.alive for s in slopes.get(k, ()))  # written after zero_grad
        if "zero_grad" in events[backward:step] and backward < step and not by_hand:
            yield error(
                "step",
                "zero_grad stands between backward and optimizer.step: the gradient is lost.",
                " → ".join(events),
                "zero_grad before backward, or after step",
            )
            return
        clips = [i for i, e in enumerate(events) if e == "clip"]
        if clips and all(i < events.index("backward") or i > step for i in clips):
            yield error(
                "step",
                "Gradients are clipped "
                + ("before backward" if clips[0] < backward else "after the step")
                + ": clipping does nothing.",
                " → ".join(events),
                "clip between backward and optimizer.step",
            )
            return
        if events.count("step") > 1 and events.count("backward") < events.count("step"):
            yield warning(
                "step",
                "The optimizer steps more than once on one gradient.",
                " → ".join(events),
                "one optimizer.step per backward",
            )
            return
        if "scheduler" in events and events.index("scheduler") < step:
            yield note("step", "The scheduler steps before the optimizer.", " → ".join(events))
            return


@fact("gradient at the step", needs="loop", cost="+1 step")
def gradient_at_the_step(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare gradients when `optimizer.step` runs with those of the loss on this batch, and with those left over.

    Threshold: zero; fresh + left over; left over alone; c × fresh with c > 1.5 or < 0.02.
    Cannot decide: accumulation over calls; dropout that differs between the two passes.
    """
    records = _records(evidence)
    adam = "adam" in type(evidence.optimizer).__name__.lower()
    for record in records[:2]:
        if record.fresh is None or record.optimizer_steps == 0 or "closure" in evidence.events[record.index]:
            continue
        pair = _same(record.gradients, record.fresh)
        fresh = flat(record.fresh)
        if float(fresh.norm()) == 0:
            continue
        if pair is None or float(pair[0].norm()) == 0:
            yield error(
                "step",
                "All gradients are zero when the optimizer steps.",
                "backward gave others: something sets them to zero in between",
                "zero_grad belongs before backward or after step, not between; clip by a norm above zero",
            )
            return
        at, fresh = pair
        result = _compare(record, at, fresh, adam, any("clip" in e for e in evidence.events))
        if result is not None:
            yield result
            return
    if all(r.optimizer_steps == 0 for r in records):
        raise Undecided("no call of step called optimizer.step")


def _compare(record: StepRecord, at: Tensor, fresh: Tensor, adam: bool, clipped: bool) -> CheckFinding | None:
    size, own = float(at.norm()), float(fresh.norm())
    if record.left is not None:
        pair = _same(record.gradients, record.left)
        if pair is not None and pair[1].shape == fresh.shape and float(pair[1].norm()) > 0:
            left = pair[1]
            scale = float(at @ left) / float(left @ left)
            if float((at - fresh - left).norm()) < 0.1 * size and float((at - fresh).norm()) > 0.1 * size:
                return error(
                    "step",
                    "Gradients add up over the steps: zero_grad is missing.",
                    "the gradient at step 2 is that of its batch plus that of step 1",
                    "call optimizer.zero_grad() in every step",
                )
            if float((at - scale * left).norm()) < 0.03 * size and float(at @ fresh) / size / own < 0.98:
                return warning(
                    "step",
                    "The step uses the gradient of the batch before.",
                    "the gradient at step 2 is that of step 1",
                    "backward before optimizer.step",
                )
    factor = float(at @ fresh) / own**2
    off = float((at - factor * fresh).norm()) / size
    if off < 0.15 and factor > 1.5:
        power = abs(factor - 2 ** round(math.log2(factor))) < 1e-3 * factor and factor >= 256
        return finding(
            "warning",
            "step",
            "The gradient is still scaled when the optimizer steps: the GradScaler is not undone."
            if power
            else "The gradient at the step is larger than that of the loss: micro-batches are summed, not "
            "averaged.",
            f"it is {factor:.4g} times the gradient of the loss on this batch",
            "scaler.step(optimizer), and scaler.unscale_ before clipping"
            if power
            else f"divide the loss by the number of "
            f"micro-batches{' (Adam forgives a constant factor)' if adam else ''}",
            factor=factor,
        )
    if off < 0.15 and factor < -0.01:
        return warning(
            "step", "The gradient has the wrong sign at the step.", f"{factor:.3g} times that of the loss"
        )
    if off < 0.15 and factor < 0.02 and not clipped:
        return finding(
            "note" if adam and factor > 1e-5 else "warning",
            "step",
            "The gradient is divided between backward and the optimizer's step.",
            f"gradients are scaled by {factor:.3g} (divided by {1 / factor:.3g}) after backward: the optimizer sees "
            "hardly anything of them, and no clipping was called",
            "is it divided by a number of processes or micro-batches that are not there?",
            factor=factor,
        )
    if off < 0.15 and factor < 0.02:
        return finding(
            "warning" if size < 0.02 and not (adam and factor > 1e-5) else "note",
            "step",
            "Clipping takes almost all of the gradient away.",
            f"{factor:.1e} of it is left when the optimizer steps, a norm of {size:.2g}",
            "clip near the usual norm of the gradient (1.0)",
            factor=factor,
        )
    by_parameter = _uneven(record)
    if off > 0.3 and by_parameter:
        return by_parameter
    return None


def _uneven(record: StepRecord) -> CheckFinding | None:
    """Parameters whose gradient vanished or was scaled while the others' did not."""
    assert record.fresh is not None
    factors = {}
    for name, own in record.fresh.items():
        at = record.gradients.get(name)
        if own is None or not own.alive or at is None or at.entries.shape != own.entries.shape:
            continue
        f, g = own.entries.float(), at.entries.float()
        if float(f.norm()) > 0:
            factors[name] = float(g @ f) / float(f @ f)
    if len(factors) < 4:
        return None
    middle = median(list(factors.values()))
    gone = [n for n, c in factors.items() if abs(c) < 1e-6]
    if gone and middle > 0.5 and len(gone) < len(factors):
        return warning(
            ["step", *gone],
            "Some gradients are set to zero between backward and the step.",
            f"{len(gone)} of {len(factors)} parameters",
        )
    return None


@fact("schedule", needs="loop", cost="0")
def schedule(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare rates of the coming 400 steps, as the schedulers that the step calls give them.

    Threshold: below 1 % of the largest within 50 steps after it; zero for more than 10 steps at the start; up
    and down more than 80 times; below a thousandth of the given rate at the end; negative.
    Cannot decide: schedulers that the step does not call; short trainings that are meant.
    """
    plateau = evidence.data.get("plateau of the loss")
    if plateau is not None and plateau.mode == "max":
        yield error(
            ["optimizer", "step"],
            "The scheduler lowers the rate while the loss falls: it waits for a plateau of something that should rise.",
            "ReduceLROnPlateau(mode='max') is given the loss of the step",
            'mode="min" for a loss, "max" for an accuracy',
        )
        return
    records = _records(evidence)
    ahead = evidence.rates_ahead
    if not ahead:
        if "schedule ends" in evidence.facts:
            yield warning(
                "step", "The schedule ends after a few steps.", str(evidence.facts["schedule ends"])
            )
            return
        raise NotAsked("the step calls no scheduler")
    rates = [*(max(r.rates, default=0.0) for r in records), *ahead]
    top = max(rates)
    if min(rates) < 0:
        yield error(
            ["step", "optimizer"],
            "The learning rate becomes negative.",
            f"{min(rates):.2g} after {rates.index(min(rates))} steps",
        )
        return
    if top == 0:
        return
    start = next(k for k, rate in enumerate(rates) if rate > 0)
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(rates, rates[1:], rates[2:], strict=False))
    if start > 10 or turns > 80:
        yield warning(
            ["step", "optimizer"],
            "The learning rate is zero for the first steps: the warm-up does not rise."
            if start > 10
            else "The learning rate swings up and down every few steps: the schedule's period is too short.",
            f"zero for {start} steps" if start > 10 else f"it turns {turns} times in {len(rates)} steps",
            "check the schedule: integer division, or a length in epochs that is stepped for every batch",
        )
        return
    peak = rates.index(top)
    low = next((k for k in range(peak, len(rates)) if rates[k] < 0.01 * top), None)
    if low is not None and low - peak < 50 and max(rates[low:]) < 0.1 * top:  # else it starts again
        yield warning(
            ["step", "optimizer"],
            "The learning rate falls to almost nothing within a few steps.",
            f"from {top:.2g} at step {peak} to {rates[low]:.2g} at step {low}: a schedule that counts "
            f"epochs is stepped for every batch",
            "step the scheduler once per epoch, or give it the number of steps",
            steps=low - peak,
        )
    elif _tiny(rates, evidence):
        yield warning(
            ["step", "optimizer"],
            "The learning rate stays far below the one given: the schedule's factor is tiny.",
            f"{rates[-1]:.2g} after {len(rates)} steps",
            "a warm-up that never ends, or a function that returns the rate, not a factor of it?",
        )


def _tiny(rates: list[float], evidence: TrainingEvidence) -> bool:
    """Return whether no rate comes near the one given, and none is on its way there."""
    given = max((float(g.get("initial_lr", 0) or 0) for g in evidence.optimizer.param_groups), default=0.0)
    rising = rates[-1] > 1.001 * rates[len(rates) // 2]
    return given > 0 and max(rates) < (1e-3 if rising else 0.02) * given


@fact("update undone", needs="loop")
def update_undone(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the weights right after `optimizer.step` with those at the end of the user's step.

    Threshold: what follows the optimizer's step takes back more than half of its update.
    Cannot decide: averages that are copied back rarely (lookahead).
    """
    record = next((r for r in _records(evidence) if r.stepped), None)
    if record is None:
        raise NotAsked("no step of a torch optimizer was seen")
    pairs = [
        (record.stepped[n].entries.float() - b.entries.float(), record.after[n].entries.float())
        for n, b in record.before.items()
        if n in record.stepped and n in record.after
    ]
    update = torch.cat([u for u, _ in pairs])
    ends = torch.cat(
        [a - record.stepped[n].entries.float() for n, (_, a) in zip(record.before, pairs, strict=True)]
    )
    back = float(update @ ends) / max(float(update @ update), 1e-30)
    straight = -float(update @ ends) > 0.5 * float(
        update.norm() * ends.norm()
    )  # not a constraint on the weights
    if back < -0.55 and straight:
        yield warning(
            ["step", "model", "optimizer"],
            "The update is undone after the optimizer's step: other weights are copied over the new ones.",
            f"{-back:.0%} of what the optimizer changed is taken back before the step ends",
            "copy the weights into the average (EMA), not the average back into the model",
            back=-back,
        )


@fact("average", needs="loop")
def average(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare every network in `also` that has the model's shapes with the weights, before and after the steps.

    Threshold: it shares memory with the model; or it moves more than 95 % of the way to the weights in the last step,
    and is not a copy of them.
    Cannot decide: averages that begin after a while; teachers that stay as they are.
    """
    found = evidence.data.get("averages")
    if not found:
        raise NotAsked("no network of the model's shapes is in `also`")
    for kept in found:
        if kept["shared"]:
            yield error(
                ["step", "model"],
                "The average of the weights is the weights: both have the same memory.",
                f"{kept['shared']} tensors of {kept['name']} (EMA) are the model's own",
                "average copies: copy.deepcopy(model), or .detach().clone() of every weight",
            )
            continue
        if not evidence.steps or "after" not in kept:
            continue
        goal = torch.cat([s.entries.float() for s in kept["goal"].values()])
        before, after = (
            torch.cat([s.entries.float() for s in kept[k].values()]) for k in ("before", "after")
        )
        way, gone = goal - before, after - before
        if not float(way.norm()) > 0 or torch.equal(after, goal):
            continue
        share = float(way @ gone) / float(way @ way)
        off = float((gone - share * way).norm()) / float(way.norm())
        if off < 0.05 and (share > 0.95 or share < -1e-6):
            yield warning(
                ["step", "model"],
                "The average of the weights follows them at once: its decay and the complement are exchanged."
                if share > 0
                else "The average of the weights (EMA) moves away from them.",
                f"one step takes {kept['name']} {share:.1%} of the way to the weights (EMA)",
                "average = decay * average + (1 - decay) * weight, with a decay near 1",
                share=share,
            )
