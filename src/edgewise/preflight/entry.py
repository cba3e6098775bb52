"""edgewise.check: facts that must hold in any healthy training, from a few batches and real steps that are undone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from edgewise import interrupts
from edgewise.errors import BadInput
from edgewise.models.model_map import ModelMap
from edgewise.models.state import schedulers_of, undone
from edgewise.preflight import (  # noqa: F401  imported for their facts
    batch_facts,
    data_facts,
    flow_facts,
    gradient_facts,
    loop_facts,
    loss_facts,
    motion_facts,
    norm_facts,
    optimizer_facts,
    padding_facts,
    relation_facts,
    softmax_facts,
    start_facts,
    tensor_facts,
    wiring_facts,
)
from edgewise.preflight.catalog import FACTS, CheckFinding, Fact, NotAsked, Undecided, tidy
from edgewise.preflight.check_report import CheckReport
from edgewise.preflight.evidence import TrainingEvidence
from edgewise.preflight.passes import Passes
from edgewise.preflight.relations import unlabeled

SCAN_SECONDS = 0.5  # for looking at batches beyond the first three


def check(
    model: nn.Module | ModelMap,
    batches: Any = None,
    loss: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    optimizer: Any = None,
    *,
    step: Callable[[nn.Module, Any, Any, int], Any] | None = None,
    steps: int = 2,
    scan: int = 300,
    also: Iterable[Any] = (),
    only: str | None = None,
    theory: bool = False,
) -> CheckReport:
    """Check a training before it begins: facts that must hold in any healthy one.

    model      an `nn.Module`; alone, its tensors are inspected
    batches    one batch or any iterable of them; the first two feed the steps, up to `scan` are inspected
    loss       `loss(model, batch)` that returns a scalar; default: `model(**batch).loss`
    optimizer  real steps are made with it, and undone
    step       the user's own step, `step(model, optimizer, batch, k) -> loss`: the loop is inspected too
    steps      real steps to make
    scan       batches to check as data
    also       further objects that a step changes: networks, schedulers, scalers, anything with `state_dict`
    only       "tensors": no pass is made
    theory     also measure how signal and gradient run through the depth (seconds)

    Everything is put back bit for bit: weights, buffers, gradients, optimizer, schedulers, modes, hooks, random
    numbers.

    >>> import torch
    >>> model = torch.nn.Linear(4, 4)
    >>> check(model).ok
    True
    """
    began = time.perf_counter()
    _validate(model.model if isinstance(model, ModelMap) else model, steps, only)
    where, also = ModelMap.of(model), list(also)
    model = where.model if isinstance(model, ModelMap) else model
    _validate_training(batches, loss, optimizer, step, also)
    evidence = TrainingEvidence(where.model, optimizer, loss=loss, step=step, map=where)
    elsewhere = {id(p) for o in also if isinstance(o, nn.Module) for p in o.parameters()}
    evidence.known = _held([optimizer, *also]) | elsewhere
    evidence.data |= {"also": [o for o in also if o is not model], "also parameters": elsewhere}
    evidence.data["optimizers"] = [o for o in [optimizer, *also] if hasattr(o, "param_groups")]
    evidence.data["held elsewhere"] = _held(also)
    with nullcontext() if only == "tensors" else undone(model, optimizer, also, batches):
        if batches is not None and only != "tensors":
            given = evidence.data["given"] = _take(batches, scan)
            evidence.batches = sorted(given, key=unlabeled) if unlabeled(given[0]) else given
        if optimizer is not None:
            evidence.data["groups"] = [dict(g) for g in optimizer.param_groups]
        early = ("tensors",) if _runs(evidence) else ("tensors", "optimizer", "data")
        report = CheckReport()
        findings = _judge(evidence, early, report)
        if len(early) == 1:
            passes = Passes(evidence, model, [*also, *schedulers_of(optimizer)])
            passes.run(steps)
            rest = ("optimizer", "data", "pass", "loss", "steps", "changed", "loop")
            _prepare(evidence)
            findings += _judge(evidence, rest, report)
            report.cost["steps"] = (time.perf_counter() - began) / max(passes.step_seconds, 1e-9)
    if theory:
        findings += _judge(evidence, ("theory",), report)
    report.findings = tidy(findings)
    report.facts = _numbers(evidence)
    report.cost["seconds"] = time.perf_counter() - began
    return report


def _validate(model: Any, steps: int, only: str | None) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"check needs a torch.nn.Module, got {type(model).__name__}. Build the model first.")
    if not isinstance(steps, int) or not 1 <= steps <= 20:
        raise BadInput(f"steps must be a whole number from 1 to 20, got {steps!r}.")
    if only not in (None, "tensors"):
        raise BadInput(f'only must be "tensors" or None, got {only!r}.')


def _validate_training(batches: Any, loss: Any, optimizer: Any, step: Any, also: list[Any]) -> None:
    """Name what has another type than check can use."""
    for name, value, example in (
        ("loss", loss, "loss(model, batch) that returns a scalar"),
        ("step", step, "step(model, optimizer, batch, k) that makes one step"),
    ):
        if value is not None and not callable(value):
            raise BadInput(f"{name} must be a function {example}, got {type(value).__name__}.")
    if optimizer is not None and not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
        hint = " Call it first: give what it returns." if callable(optimizer) else ""
        raise BadInput(
            f"optimizer must be an optimizer with param_groups and step, such as torch.optim.AdamW, got "
            f"{type(optimizer).__name__}.{hint}"
        )
    if step is not None and (optimizer is None or batches is None):
        raise BadInput(
            "step needs batches and an optimizer: give check(model, batches, loss, optimizer, step=step)."
        )
    strange = [type(o).__name__ for o in also if not hasattr(o, "state_dict") and not hasattr(o, "__dict__")]
    if strange:
        raise BadInput(
            f"also must hold objects with a state (networks, schedulers, scalers, averages), got {strange[0]}."
        )


def _held(objects: list[Any]) -> set[int]:
    return {id(p) for o in objects for g in getattr(o, "param_groups", ()) for p in g["params"]}


def _take(batches: Any, scan: int) -> list[Any]:
    """One batch, or the first batches of an iterable: three, and more for half a second."""
    single = torch.is_tensor(batches) or hasattr(batches, "keys")
    if single or (isinstance(batches, tuple) and any(torch.is_tensor(b) for b in batches)):
        return [batches]
    taken, began = [], time.perf_counter()
    try:
        for batch in batches:
            taken.append(batch)
            if len(taken) >= scan or (len(taken) >= 3 and time.perf_counter() - began > SCAN_SECONDS):
                break
    except TypeError as error:
        raise BadInput(
            f"batches must be a batch or an iterable of batches, got {type(batches).__name__}."
        ) from error
    if not taken:
        raise BadInput("batches is empty. Give at least one batch.")
    return taken


def _runs(evidence: TrainingEvidence) -> bool:
    """Return whether a pass can run: there is a batch, and every part of the model has numbers."""
    return bool(evidence.batches) and not any(p.is_meta for p in evidence.model.parameters())


def _judge(evidence: TrainingEvidence, needs: tuple[str, ...], report: CheckReport) -> list[CheckFinding]:
    findings = []
    for fact in FACTS.values():
        if fact.needs not in needs:
            continue
        interrupts.check()
        findings += _one(fact, evidence, report)
    return findings


def _prepare(evidence: TrainingEvidence) -> None:
    """Find out if the network is causal, which several facts ask."""
    try:
        flow_facts.influence(evidence)
    except Exception as error:  # noqa: BLE001  the facts that ask say why
        evidence.problems.append(str(error))


def _one(fact: Fact, evidence: TrainingEvidence, report: CheckReport) -> list[CheckFinding]:
    try:
        with torch.no_grad():
            found = [replace(f, kind=fact.name) for f in fact.check(evidence)]
    except Undecided as why:
        report.undecided.append((fact.name, str(why)))
        return []
    except NotAsked as why:
        report.not_asked.append((fact.name, str(why)))
        return []
    except Exception as error:  # noqa: BLE001  one fact that fails on a strange model must not take the others with it
        report.undecided.append((fact.name, f"the fact itself failed: {type(error).__name__}: {error}"))
        return []
    if not any(f.severity != "note" for f in found):
        report.held.append(fact.name)
    return found


def _numbers(evidence: TrainingEvidence) -> dict[str, Any]:
    facts = dict(evidence.facts)
    facts["tensors"] = len(evidence.parameters) + sum(1 for _ in evidence.model.buffers())
    facts["state"] = evidence.state
    if evidence.steps:
        facts["steps"] = len(evidence.steps)
    return facts
