"""Tests on a copy of the model: what a symptom could be, rates tried for a few steps, where numbers are not finite."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from edgewise.errors import BadInput
from edgewise.models.inputs import tensors
from edgewise.models.state import preserved
from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.capture import Call
from edgewise.monitor.differential import IGNORED, Evidence, agreement, aligned, mistakes

INFORMED = 0.02  # nats between true and shuffled labels: less is nothing learned about the inputs
TRIAL_STEPS, TRIAL_SECONDS = 8, 10.0

# What a symptom could be, with the test that would decide; tests of ours take entries away.
RIVALS = {
    "rate": "the learning rate is too high: try a tenth of it from the last checkpoint",
    "slow": "the learning rate is too low: try ten times as much",
    "labels": "the labels do not fit the inputs: train on one batch; a loss that does not go to 0 there says so",
    "positions": "positions are missing: swap two tokens and see whether the output moves",
    "data": "the data changed: compute the loss of an earlier batch with these weights",
    "capacity": "the loss is at its floor: compare with the entropy of the labels",
}
OF_SYMPTOM = {
    AlarmKind.RANK_COLLAPSE: ("rate", "labels", "positions", "slow"),
    AlarmKind.NOT_LEARNING: ("labels", "rate", "slow", "positions", "capacity"),
    AlarmKind.UPDATE_TOO_LARGE: ("rate", "data"),
    AlarmKind.LOSS_SPIKE: ("rate", "data"),
    AlarmKind.LOGIT_GROWTH: ("rate",),
    AlarmKind.ENTROPY_COLLAPSE: ("rate",),
    AlarmKind.LEFT_PREDICTION: ("rate", "labels", "positions"),
    AlarmKind.VANISHING_GRADIENT: ("rate",),
    AlarmKind.EXPLODING_GRADIENT: ("rate", "data"),
}


@dataclass(frozen=True)
class Answer:
    """What the tests say about a symptom."""

    cause: str = ""
    advice: str = ""
    could_be: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()


def of_symptom(kind: AlarmKind, e: Evidence) -> Answer:
    """Ask every test that could explain a symptom; what no test decides stands under `could_be`."""
    found = mistakes(e, copies=True)
    if found:
        return Answer(found[0].cause, found[0].advice)
    rivals = dict.fromkeys(OF_SYMPTOM.get(kind, ()))
    ruled_out: list[str] = []
    if "labels" in rivals and unrelated_labels(e):
        cause = (
            "the labels have nothing to do with the inputs: they are neither the next tokens nor any nearby"
        )
        return Answer(cause, "Look at how inputs and labels are paired, shuffled and shifted.")
    if "positions" in rivals and (missing := positions_missing(e)):
        return Answer(missing, "Add position embeddings, rotation or biases by distance.")
    if e.trials and "rate" in rivals:
        verdict, sentence = rate_trial(e)
        if verdict in ("rate", "slow") and verdict in rivals:
            words = "high" if verdict == "rate" else "low"
            way = "Lower the rate tenfold, or warm up." if verdict == "rate" else "Raise the rate tenfold."
            return Answer(f"the learning rate is too {words}: {sentence}", way)
        if verdict == "neither":
            rivals.pop("rate", None)
            rivals.pop("slow", None)
            ruled_out.append(f"the learning rate ({sentence})")
    return Answer(could_be=tuple(RIVALS[name] for name in rivals), ruled_out=tuple(ruled_out))


def rate_trial(e: Evidence) -> tuple[str, str]:
    """Train copies for a few steps on the last batches at the rate, a tenth and ten times it.

    Returns ("rate", "slow", "neither" or "" if undecided, a sentence with the losses).
    """
    ends: dict[float, float] = {}
    began = time.perf_counter()
    for factor in (1.0, 0.1, 10.0):
        end = _trained(e, factor)
        if end is None or time.perf_counter() - began > TRIAL_SECONDS:
            return "", ""
        ends[factor] = end[1]
        start = end[0]
    words = (
        f"on a copy, {TRIAL_STEPS} steps on the last batches take the loss from {start:.3g} to {ends[1.0]:.3g}, with a "
        f"tenth of the rate to {ends[0.1]:.3g}, with ten times to {ends[10.0]:.3g}"
    )
    least = 0.02 * abs(start)
    if max(abs(end - start) for end in ends.values()) < least:  # nothing moves at all
        far = _trained(e, 1000.0)
        if far is not None and far[1] < start - least:
            return "slow", f"{words}, with a thousand times to {far[1]:.3g}"
    if ends[0.1] < min(start, ends[1.0]) - least and not ends[1.0] < start - least:
        return "rate", words
    if ends[10.0] < min(start, ends[1.0]) - max(least, 4 * abs(start - ends[1.0])):
        return "slow", words
    fine = ends[1.0] < start - least and ends[1.0] <= min(ends.values()) + least
    return ("neither", words) if fine else ("", words)


def _trained(e: Evidence, factor: float) -> tuple[float, float] | None:
    """The mean loss of the last batches before and after a few steps on a copy; None if it cannot be computed."""
    batches = list(e.batches)[-2:]
    if len(e.optimizers) != 1 or not batches:
        return None
    try:
        both: dict[str, Any] = copy.deepcopy({"model": e.model, "optimizer": e.optimizers[0]})
    except Exception:  # noqa: BLE001  some models cannot be copied: the rival then stays undecided
        return None
    model, optimizer = both["model"], both["optimizer"]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    with torch.enable_grad():
        start = _mean_loss(e, model, batches)
        if start is None:
            return None
        for k in range(TRIAL_STEPS):
            loss = e.loss(model, batches[k % len(batches)])
            if loss is None or not loss.requires_grad:
                return None
            optimizer.zero_grad()
            loss.backward()
            _plain_step(optimizer)
        end = _mean_loss(e, model, batches)
    return None if end is None else (start, end if math.isfinite(end) else math.inf)


def _plain_step(optimizer: Optimizer) -> None:
    """A step without the hooks that others, and this monitor, have on all optimizers."""
    step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
    step(optimizer)


@torch.no_grad()
def _mean_loss(e: Evidence, model: nn.Module, batches: Sequence[tuple[Call, Call | None]]) -> float | None:
    values = [e.loss(model, batch) for batch in batches]
    known = [float(v) for v in values if v is not None]
    return sum(known) / len(known) if len(known) == len(batches) else None


def label_information(e: Evidence) -> float | None:
    """Nats by which the loss rises when the labels are shuffled among tokens: 0 if nothing of the inputs is used."""
    labels = e.labels()
    if labels is None or not e.batches:
        return None
    order = torch.randperm(labels.numel(), generator=torch.Generator().manual_seed(0)).to(labels.device)
    other = labels.flatten()[order].view_as(labels)

    def put(call: Call | None) -> Call | None:
        if call is None:
            return None
        return (
            tuple(other if x is labels else x for x in call[0]),
            {name: other if x is labels else x for name, x in call[1].items()},
        )

    call, seen = e.batches[-1]
    new = put(call)
    assert new is not None
    with preserved(e.model, gradients=False):
        true, shuffled = e.loss(e.model, (call, seen)), e.loss(e.model, (new, put(seen)))
    return None if true is None or shuffled is None else float(shuffled) - float(true)


def earlier_batch(e: Evidence) -> tuple[float, float] | None:
    """The losses of the oldest and of the newest batch at hand with the weights of now, in evaluation mode."""
    if len(e.batches) < 3:
        return None
    with preserved(e.model, gradients=False):
        old, new = e.loss(e.model, e.batches[0]), e.loss(e.model, e.batches[-1])
    return None if old is None or new is None else (float(old), float(new))


def first_not_finite(e: Evidence, batch: tuple[Call, Call | None] | None) -> tuple[str, str]:
    """(module, sentence): the first place of a pass that is not finite, over the whole batch."""
    names = [
        n
        for n, p in (*e.model.named_parameters(), *e.model.named_buffers())
        if p.is_floating_point()
        and not hasattr(p, "to_local")
        and _broken(p, masks=not isinstance(p, nn.Parameter))
    ]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return names[0].rpartition(".")[
            0
        ], f"the parameter {names[0]}{more} is not finite before the pass begins"
    if batch is None:
        return "", ""
    (inputs, named), seen = batch
    for value in tensors([list(inputs), list(named.values())]):
        if value.is_floating_point() and _broken(value, masks=True):
            return "", f"the input is not finite, {_rows_broken(value)}"
    place: list[tuple[str, str]] = []
    with preserved(e.model) as stack, torch.no_grad():
        for name, module in e.model.named_modules():
            if not any(module.children()):
                stack.callback(module.register_forward_hook(_looking(name, place)).remove)
        output = e.model(*inputs, **named)
    if place:
        return place[0]
    first = next((t for t in tensors(output) if t.is_floating_point()), None)
    if first is not None and first.numel() > 1 and _broken(first, masks=True):
        return (
            "",
            "the output of the model is not finite, though those of all its modules are: look at its last lines",
        )
    labels = e.labels()
    if labels is not None and labels.numel() and bool((labels == IGNORED).all()):
        return "", "every label of the batch is ignored (-100), and the mean over nothing is not a number"
    if seen is not None:
        for value in tensors([list(seen[0])[1:], list(seen[1].values())]):
            if value.is_floating_point() and _broken(value):
                return "", f"the targets are not finite, {_rows_broken(value)}"
    return (
        "",
        "the outputs of the model are finite: look at how the loss is computed from them (a log or a division)",
    )


def _looking(name: str, place: list[tuple[str, str]]) -> Callable[..., None]:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
        if place:
            return
        given = [t for t in tensors(list(inputs)) if t.is_floating_point()]
        for value in tensors(output if not isinstance(output, Tensor) else [output]):
            if value.is_floating_point() and _broken(value, masks=True):
                before = any(_broken(t) for t in given)
                what = "what enters" if before else "the output of"
                place.append((name, f"{what} {name} is the first that is not finite, {_rows_broken(value)}"))
                return

    return look


def _broken(value: Tensor, *, masks: bool = False) -> bool:
    value = value.detach()
    return bool((value.isnan() | value.isposinf()).any()) if masks else not bool(value.isfinite().all())


def _rows_broken(value: Tensor) -> str:
    rows = (~value.detach().isfinite()).flatten(1).any(1) if value.dim() > 1 else ~value.detach().isfinite()
    which = rows.nonzero().flatten().tolist()
    return (
        f"in {len(which)} of {len(rows)} rows of the batch (first {which[0]})" if which else "in some entry"
    )


def unrelated_labels(e: Evidence) -> bool:
    """Whether labels are tokens of the inputs' vocabulary, one for each, and no shift of the inputs up to three."""
    pair = aligned(e)
    table = next((m for m in e.model.modules() if isinstance(m, nn.Embedding)), None)
    x = e.prediction
    if pair is None or table is None or x is None or table.num_embeddings != x.shape[1 if x.dim() > 1 else 0]:
        return False
    ids, labels = pair
    kept = float((labels != IGNORED).float().mean())
    return kept > 0.9 and max(agreement(ids, labels, s) for s in range(-3, 4)) < 0.5


def positions_missing(e: Evidence) -> str:
    """Whether neither the stream nor attention knows where a token is, as the model behaves; empty if it is not so."""
    from edgewise.models.model_map import ModelMap

    try:
        stack = ModelMap(e.model).reading().default
    except BadInput:
        return ""
    if stack is None or stack.absolute is not False or any(p is None or p for p in stack.positions):
        return ""
    return (
        "positions are missing: equal tokens are alike at every place, and attention has no positions either"
    )
