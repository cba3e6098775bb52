"""What is known of a held-out network before it trains, through the public doors, on the network and data themselves.

Orbits as in `geometry`: curves over blocks 0..L of log separation, log norm and log squared gradient by readout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import edgewise
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Architecture, Perceptron, transformer
from edgewise.nouns.trace import Trace
from edgewise.study.tasks import Task

from .koopman import near_unit_share, streams_of

SEQUENCES = 16
KOOPMAN_SEQUENCES = 32
NEAR_COLLAPSE = 1 - 1e-9
UNUSED = (
    "assumed",
    "unmodelled",
    "name",
    "key_gain",
    "output_gain",
)  # the last two enter gradients of weights only


def scores(model: nn.Module, data: Task, case: dict[str, Any]) -> dict[str, Any]:
    """Both orbits, the description and what the baselines read; `refused` says which of them there are not, and "
    "why."""
    inputs, labels = data.held_out(SEQUENCES)
    batch = {"inputs": inputs, "labels": labels}
    numbers: dict[str, Any] = {"refused": "", "koopman": koopman(model, data, case["depth"])}
    try:
        trace = edgewise.measure(model, batch, attention=False, pair=False)
        numbers["measured"] = _orbit(trace) | {name: _gradient(trace, name) for name in trace.readouts}
        return numbers | _by_theory(edgewise.describe(model, batch), trace)
    except BadInput as refusal:
        return numbers | {"refused": str(refusal)}


def compact(numbers: dict[str, Any], readout: str) -> dict[str, Any]:
    """Three digits, the gradient of one readout, knobs that are not the usual ones: what a record needs."""
    apart = ("measured", "theory", "description", "condensation")
    kept = {name: value for name, value in numbers.items() if name not in apart and value != ""}
    for name in ("measured", "theory"):
        if name in numbers:
            kept[name] = {curve: numbers[name][curve] for curve in ("separation", "norm", readout)}
    if "description" in numbers:
        words = {name: numbers["description"].get(name) for name in UNUSED}
        usual = transformer().to_dict() | words
        kept["description"] = {name: v for name, v in numbers["description"].items() if usual[name] != v}
    return dict(_short(kept))


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _by_theory(described: Architecture | Perceptron, trace: Trace) -> dict[str, Any]:
    assert isinstance(described, Architecture)
    theory = {name: edgewise.predict(described, start=trace, readout=name) for name in ("token", "pooled")}
    return {
        "description": described.to_dict(),
        "theory": _orbit(theory["token"]) | {name: _gradient(each, name) for name, each in theory.items()},
        "condensation": _largest(theory["token"].statistics.get("condensation")),
        "collapsed": collapsed(described),
        "random_energy": random_energy(described, trace),
    }


def _bare(described: Architecture) -> Architecture:
    return described.replace(causal=False, window=None, rope=0.0, alibi=False)


def collapsed(described: Architecture) -> dict[str, float | None]:
    """As in `geometry`: the paper's two exponents per block, linearised at full collapse [Cowsik 2024]."""
    trace = edgewise.predict(_bare(described), start_overlap=NEAR_COLLAPSE, readout="pooled")
    logs, gradient = _logs(trace.blocks("separation")), _gradient_logs(trace, "pooled")
    return {
        "angle": _digits((logs[-1] - logs[0]) / trace.depth),
        "gradient": _digits(gradient[0] / trace.depth),
    }


def random_energy(described: Architecture, measured: Trace) -> dict[str, float | None]:
    """As in `geometry`: collapse and condensation in the random-energy limit [Giorlandino 2025]."""
    start = float(np.clip(measured.overlap[:, 0].mean(), 1 / described.tokens, 0.999))
    trace = edgewise.predict(_bare(described), start_overlap=start, closure="random_energy")
    logs = _logs(trace.blocks("separation"))
    return {
        "angle": _digits(logs[-1] - logs[0]),
        "condensation": _largest(trace.statistics.get("condensation")),
    }


def koopman(model: nn.Module, data: Task, depth: int) -> dict[str, float | None]:
    """As in `geometry`: the share of modes near the unit circle, whitened in two ways [Kim 2026]."""
    blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth)
    with torch.no_grad():
        streams = streams_of(model, blocks, data.held_out(KOOPMAN_SEQUENCES)[0])
    finite = all(bool(stream.isfinite().all()) for stream in streams)
    kinds = {"first": False, "own": True}
    return {name: _digits(near_unit_share(streams, own)) if finite else None for name, own in kinds.items()}


def _orbit(trace: Trace) -> dict[str, list[float | None]]:
    return {name: _rounded(_logs(trace.blocks(name))) for name in ("separation", "norm")}


def _gradient(trace: Trace, readout: str) -> list[float | None]:
    return _rounded(_gradient_logs(trace, readout))


def _gradient_logs(trace: Trace, readout: str) -> Any:
    if trace.log_gradient is None:
        return np.full(trace.depth + 1, np.nan)
    return trace.blocks("log_gradient", readout)


def _logs(values: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _largest(values: Any) -> float | None:
    return None if values is None or np.isnan(values).all() else _digits(float(np.nanmax(values)))


def _rounded(values: Any) -> list[float | None]:
    return [_digits(value) for value in values]


def _digits(value: float) -> float | None:
    """Five digits, None where there is no finite number."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
