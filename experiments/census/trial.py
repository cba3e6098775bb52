"""One model from building to verdict: what edgewise said of it beside what is true of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import said, unchanged
from .batches import BATCH
from .checker import Facts, check
from .handwritten import MODELS, Label
from .isolated import Tell, isolated
from .outcome import Evidence, decide

LABELS = Path(__file__).with_name("labels.json")
SECONDS = 25  # of processor time for the checker
Made = tuple[nn.Module, Any, str]  # a model, its batch, and why there is no batch


def labels_of(name: str) -> list[Label]:
    """The label of each stack of a type of transformers, or of "package, model"; empty where it has none."""
    stacks: list[Label] = json.loads(LABELS.read_text())["labels"].get(name, {}).get("stacks", [])
    return [{fact: value for fact, value in stack.items() if fact != "evidence"} for stack in stacks]


@cache
def _warm_up() -> None:
    """Import what describing, measuring and predicting need, before processes are forked that each need it."""
    torch.set_num_threads(1)  # before anything is computed: a forked process has no threads but its own
    model, batch = MODELS["post"].build()
    described, trace = said.describe(model, batch), said.measure(model, batch)
    if described.value is not None and trace.value is not None:
        said.gap(described.value, trace.value)


def try_model(make: Callable[[], Made], labels: list[Label]) -> dict[str, Any]:
    """The record of one model, whatever happens to it."""
    _warm_up()
    value, stage = isolated(lambda tell: _trial(make, labels, tell))
    if value is not None:
        return value
    built = stage not in ("start", "build", "batch")
    return {"outcome": "too slow" if built else "not built", "why": f"stopped by a limit during: {stage}"}


def _trial(make: Callable[[], Made], labels: list[Label], tell: Tell) -> dict[str, Any]:
    tell("build")
    try:
        model, batch, said_no = make()
    except Exception as error:  # noqa: BLE001  what a stranger's constructor raises is why the model is not built
        return {"outcome": "not built", "why": f"{type(error).__name__}: {error}".replace("\n", " ")[:160]}
    if batch is None:
        return {"outcome": "not built", "why": f"no batch: {said_no}"[:160]}
    try:
        tell("run")
        outputs = unchanged.outputs(model, batch)
    except Exception as error:  # noqa: BLE001  nor is one that does not run on the batch of the list
        return {
            "outcome": "not built",
            "why": f"no batch: {type(error).__name__}: {error}".replace("\n", " ")[:160],
        }
    return decide(_evidence(model, batch, outputs, labels, tell))


def _evidence(model: nn.Module, batch: Any, outputs: Any, labels: list[Label], tell: Tell) -> Evidence:
    state = unchanged.state(model)
    tell("describe")
    described = said.describe(model, batch)
    stacks = said.stacks(model, batch)
    others, structures = said.of_each_stack(model, batch, list(stacks))
    tell("measure")
    trace = said.measure(model, batch)
    altered = unchanged.changed(state, unchanged.state(model))
    if outputs != unchanged.outputs(model, batch):
        altered.append("outputs")
    tell("predict")
    gap = (
        said.gap(described.value, trace.value)
        if described.value is not None and trace.value is not None
        else None
    )
    parted = said.departure(model, trace.value) if gap is not None else ""
    tell("check")
    facts, softmax, trouble = checked(model, batch)
    return Evidence(
        described,
        trace,
        stacks,
        labels,
        facts,
        trouble,
        altered,
        gap,
        softmax,
        others,
        parted,
        structures=structures,
    )


def checked(model: nn.Module, batch: Any) -> tuple[list[Facts], int, str]:
    """The checker's facts, in double precision where the model is the same in it; why there are none if it fails."""
    model.eval()
    before = signal.signal(signal.SIGPROF, _out_of_time)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        wide = _wide(batch)
        if not _same_in_double(model, batch, wide):
            model.float()
            wide = batch
        return *check(model, lambda: unchanged.call(model, wide), BATCH), ""
    except Exception as error:  # noqa: BLE001  a model that cannot be checked is one without opinion, and is counted
        return [], 0, f"{type(error).__name__}: {error}"[:100]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _out_of_time(*_: Any) -> None:
    raise TimeoutError(f"the checker took more than {SECONDS} seconds")


def _same_in_double(model: nn.Module, batch: Any, wide: Any) -> bool:
    """Make the model double and compare: a float mask beside double scores is misread by torch without a word."""
    try:
        with torch.no_grad():
            single, double = unchanged.call(model, batch), unchanged.call(model.double(), wide)
        pairs = zip(unchanged.tensors(single), unchanged.tensors(double), strict=True)
        return all(bool(torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4)) for a, b in pairs)
    except TimeoutError:
        raise
    except Exception:  # noqa: BLE001  some kernels know no double; then single precision must do
        return False


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _wide(item) for key, item in value.items()}
    return type(value)(map(_wide, value)) if isinstance(value, (tuple, list)) else value
