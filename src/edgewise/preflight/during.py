"""`edgewise.watch`: the monitor, which asks the facts of `check` about the first steps of a training that runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.monitor import watch as monitor
from edgewise.monitor.alarm import AlarmKind, Detection
from edgewise.monitor.capture import Call
from edgewise.monitor.cause_evidence import Evidence, StartFact, from_start, prediction_of
from edgewise.preflight.catalog import CheckFinding
from edgewise.preflight.entry import check

Batch = dict[str, Any]
KINDS = {
    "not in the optimizer": AlarmKind.PARAMETERS_STILL,
    "optimizer elsewhere": AlarmKind.PARAMETERS_STILL,
    "nothing moves": AlarmKind.PARAMETERS_STILL,
    "rate zero": AlarmKind.RATE_ZERO,
    "rounded away": AlarmKind.UPDATE_ROUNDED_AWAY,
    "half precision": AlarmKind.UPDATE_ROUNDED_AWAY,
    "no gradient": AlarmKind.NO_GRADIENT,
    "dead": AlarmKind.NO_GRADIENT,
    "leak": AlarmKind.LOSS_IMPOSSIBLE,
    "sharp attention": AlarmKind.ATTENTION_ONE_HOT,
    "loss not finite": AlarmKind.NOT_A_NUMBER,
    "gradient not finite": AlarmKind.NOT_A_NUMBER,
}  # of the monitor, by that of `check`
TOPICS = {
    "bounded outputs": "not_logits",
    "label offset": "labels_of_inputs",
    "skip": "missing_skip",
    "mode": "evaluation_mode",
    "same batch": "same_batch",
    "same samples": "constant_inputs",
    "eps": "adam_epsilon",
    "not in the optimizer": "outside",
    "no gradient": "unreached",
    "samples mixed": "leak",
    "constant output": "leak",
    "half precision": "rounded",
    "rounded away": "rounded",
}  # tests of the monitor that look for the same
TOLD = (
    "bounded outputs",
    "data",
    "decay",
    "documents mixed",
    "dropout",
    "eps",
    "far keys preferred",
    "first loss",
    "groups",
    "half precision",
    "label among inputs",
    "label offset",
    "labels",
    "linear pair",
    "loss and cross-entropy",
    "momentum",
    "norm size",
    "padding row",
    "past not seen",
    "positions",
    "rounded away",
    "shared",
    "sharp attention",
    "skip",
    "symmetric",
    "target scale",
    "update ratio",
)  # warnings that no healthy training of the lists has had (experiments/preflight, experiments/mistakes)
PLACES = ("optimizer", "loss", "labels", "data", "step", "model")  # that are not modules


@wraps(monitor.watch)
def watch(*arguments: Any, **options: Any) -> monitor.Watch:
    return monitor.watch(*arguments, **{"facts": facts_at_start} | options)


def facts_at_start(evidence: Evidence) -> Sequence[StartFact]:
    """Check the model with its first weights on the batches seen so far; everything is put back.

    Errors are certain, and so are the warnings of `TOLD`, which wait for harm (but betas that are swapped, which no one
    means); other warnings explain symptoms.
    """
    batches = [_batch(call, seen) for call, seen in evidence.batches]
    if not batches:
        return ()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = evidence.loss(model, ((batch["inputs"], batch["named"]), batch["seen"]))
        assert value is not None  # it was known before
        return value

    optimizer = evidence.optimizers[0] if evidence.optimizers else None
    with from_start(evidence, evidence.start):
        if any(evidence.loss(evidence.model, batch) is None for batch in evidence.batches):
            return ()
        report = check(evidence.map or evidence.model, batches, loss, optimizer)
    found = [item for item in report.findings if item.severity in ("error", "warning")]
    warms_up = evidence.rates.raised(len(evidence.rates.recent)) > 1.0  # then steps are small on purpose
    return [
        _start(
            item,
            item.severity == "error"
            or (
                item.kind in TOLD
                and not (item.kind == "update ratio" and warms_up)
                and item.numbers.get("classes") != 1
            ),
        )
        for item in found
        if item.kind != "does not run"  # since it trains
    ]


@dataclass(frozen=True)
class _Shape:
    """In place of a prediction, which is not part of a batch."""

    shape: torch.Size

    def numel(self) -> int:
        return self.shape.numel()


def _batch(call: Call, seen: Call | None) -> Batch:
    if seen is not None and prediction_of(seen) is not None and seen[0]:
        seen = (_Shape(seen[0][0].shape), *seen[0][1:]), seen[1]
    return {"inputs": call[0], "named": call[1], "seen": seen}


def _start(item: CheckFinding, certain: bool) -> StartFact:
    place = "" if item.places[0] in PLACES else item.places[0]
    where = f" ({', '.join(item.places[:4])})" if place else ""
    cause = f"{item.sentence[0].lower()}{item.sentence[1:].rstrip('.')}{where}"
    advice = f"{item.advice[:1].upper()}{item.advice[1:]}."
    return StartFact(
        item.kind,
        Detection(
            KINDS.get(item.kind, AlarmKind.MISTAKE),
            f"At the start: {item.evidence or item.sentence}.",
            cause,
            advice,
            module=place,
            topic=TOPICS.get(item.kind, item.kind),
        ),
        certain,
        not item.numbers.get("swapped") and (item.severity != "error" or item.kind == "first loss"),
    )
