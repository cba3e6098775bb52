"""What is said of the atlas before training: theory, measurement and audit of every start, and apart from them check.

Each network of `train.py` is asked once, at its first batch, and nothing of its training is known. The numbers are what
a forecast of the slowdown may use; a verb that cannot answer is recorded with its own words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import edgewise
from edgewise.errors import BadInput
from edgewise.judgement.outcome import parts_of, score_of
from edgewise.judgement.profile import read

from . import train
from .data import Data, data


def readings(case: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """Ask every verb about every start of one shape; check, which costs more than all others, alone."""
    torch.set_num_threads(1)
    task = data(case["task"], case["tokens"])
    return {"starts": [{"start": start} | _asked(case, task, start, check) for start in case["starts"]]}


def checks(case: dict[str, Any]) -> dict[str, Any]:
    """Ask check about every start of one shape."""
    return readings(case, check=True)


def described(case: dict[str, Any]) -> dict[str, Any]:
    """Describe every start of one shape: the gains of its blocks, and if it has skips."""
    torch.set_num_threads(1)
    task = data(case["task"], case["tokens"])
    inputs, _ = next(task.batches(case["batch"], case["seed"]))
    rows = []
    for start in case["starts"]:
        try:
            network = edgewise.describe(train.build(case, task, start), (inputs,)).to_dict()
        except BadInput as error:
            rows.append({"start": start, "said": str(error)[:200]})
        else:
            told = ("name", "assumed", "unmodelled")
            rows.append(
                {"start": start, "network": {k: _short(v) for k, v in network.items() if k not in told}}
            )
    return {"starts": rows}


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value]
    return _digits(value) if isinstance(value, float) else value


def _asked(case: dict[str, Any], task: Data, start: list[Any], check: bool) -> dict[str, Any]:
    model = train.build(case, task, start)
    stream = task.batches(case["batch"], case["seed"])
    batches = [next(stream) for _ in range(3)]
    questions: dict[str, Callable[[], dict[str, Any]]] = {
        "predict": lambda: _verdict(edgewise.predict(model, (batches[0][0],))),
        "measure": lambda: _verdict(edgewise.measure(model, (batches[0][0],))),
        "audit": lambda: _audit(model),
        "first": lambda: _first(model, task, batches[0]),
    }
    if check:
        questions = {"check": lambda: _check(model, task, batches)}
    answers = {}
    for name, question in questions.items():
        try:
            answers[name] = question()
        except BadInput as error:
            answers[name] = {"said": str(error)[:200]}
    return answers


def _verdict(trace: Any) -> dict[str, Any]:
    """The changes over depth, what is forgotten, the probability and the outcome."""
    verdict, score = edgewise.judge(trace), score_of(read(trace))
    parts = None if score is None else parts_of(score, trace)
    chance = verdict.probability
    return {
        "outcome": str(verdict.outcome),
        "probability": None if chance is None else _digits(chance.value),
        "forgetting": None if chance is None else _digits(chance.forgetting),
        "risk": None if parts is None else _digits(parts.risk),
        "added": None if score is None else _digits(score.added),
        **{name: _ends(trace, name) for name in ("norm", "separation", "log_gradient")},
        "source": str(trace.provenance.source),
    }


def _ends(trace: Any, quantity: str) -> list[float | None] | None:
    """A quantity at the embedding, in the middle and after the last block."""
    if getattr(trace, quantity) is None:
        return None
    values = trace.blocks(quantity)
    return [_digits(float(values[k])) for k in (0, len(values) // 2, -1)]


def _audit(model: nn.Module) -> dict[str, Any]:
    severities = [str(finding.severity) for finding in edgewise.audit_initialization(model)]
    return {severity: severities.count(severity) for severity in sorted(set(severities))}


def _check(model: nn.Module, task: Data, batches: list[Any]) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    report = edgewise.check(model, batches, lambda m, batch: task.loss(m(batch[0]), batch[1]), optimizer)
    return {"kinds": sorted({f"{finding.severity}: {finding.kind}" for finding in report.findings})}


def _first(model: nn.Module, task: Data, batch: Any) -> dict[str, Any]:
    """The first loss, beside it that of a uniform guess and of the best constant answer; logits, first gradient."""
    model.zero_grad()
    outputs = model(batch[0])
    loss = task.loss(outputs, batch[1])
    loss.backward()
    squares = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    return {
        "loss": _digits(float(loss.detach())),
        "chance": None if task.outputs == 1 else _digits(math.log(task.outputs)),
        "constant": _digits(task.constant),
        "logits": _digits(float(outputs.detach().std())),
        "gradient": _digits(math.sqrt(squares)),
    }


def _digits(value: float | None) -> float | None:
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None
