"""What can be said of a start before it trains: orbits by theory and by measurement, and what other methods read.

An orbit is stored as curves over blocks 0..L: log separation (1 - cosine), log norm q, log squared gradient by readout.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from edgewise.arrays import Array
from edgewise.judgement.outcome import forgotten
from edgewise.nouns.trace import Trace
from edgewise.probe.measure import measure
from edgewise.study.tasks import Task
from edgewise.study.train import seeded
from edgewise.verbs import predict

from .koopman import near_unit_share, streams_of
from .starts import Knobs, architecture, network

Orbit = dict[str, list[float | None]]
NEAR_COLLAPSE = 1 - 1e-9


def geometry(knobs: Knobs, task: Task, seed: int) -> dict[str, Any]:
    """Theory, measurement, the paper's linearised exponents, the random-energy limit, the Koopman score."""
    return {
        "overlap": round(input_overlap(task), 4),
        "theory": theory(knobs, task),
        "measured": measured(knobs, task, seed),
        "collapsed": collapsed(knobs, task),
        "random_energy": random_energy(knobs, task),
        "koopman": koopman(knobs, task, seed),
    }


def theory(knobs: Knobs, task: Task) -> Orbit:
    """From the description and the overlap of the data alone: no network is built."""
    traces = {readout: _predicted(knobs, task, readout=readout) for readout in ("token", "pooled")}
    orbit = _orbit(traces["token"]) | {
        readout: _gradient(trace, readout) for readout, trace in traces.items()
    }
    return orbit | {"forgotten": forgetting(knobs, task, orbit)}


def forgetting(knobs: Knobs, task: Task, orbit: Orbit) -> list[float | None]:
    """The log-share of the stream that is no longer the input, after every block of an orbit."""
    norms, separations = (
        [np.exp(-np.inf if v is None else v) for v in orbit[n]] for n in ("norm", "separation")
    )
    return _rounded(forgotten(architecture(knobs, task), norms, separations))


def measured(knobs: Knobs, task: Task, seed: int) -> Orbit:
    """From the very network that trains, on its first examples; `own` is the gradient of its own loss."""
    model = seeded(network, seed, knobs, task)()
    inputs, labels = task.held_out(16)
    trace = measure(model, {"inputs": inputs, "labels": labels}, attention=False, pair=False)
    return _orbit(trace) | {readout: _gradient(trace, readout) for readout in trace.readouts}


def collapsed(knobs: Knobs, task: Task) -> dict[str, float | None]:
    """The paper's two exponents per block: linearised at full collapse, gradient of the token mean, no mask.

    [Cowsik 2024]; there attention drops out of the angle, whatever its closure.
    """
    bare = architecture(knobs, task).replace(causal=False, rope=0.0)
    trace = predict(bare, start_overlap=NEAR_COLLAPSE, readout="pooled")
    logs, gradient = _logs(trace.blocks("separation")), _gradient_logs(trace, "pooled")
    L = trace.depth
    return {"angle": _digits((logs[-1] - logs[0]) / L), "gradient": _digits(gradient[0] / L)}


def random_energy(knobs: Knobs, task: Task) -> dict[str, float | None]:
    """Collapse and condensation in the random-energy limit, the axes of its diagram [Giorlandino 2025].

    In that limit tokens without overlap never get one, so it starts at 1/n at least: one average over n tokens.
    """
    bare = architecture(knobs, task).replace(causal=False, rope=0.0)
    start = max(input_overlap(task), 1 / task.tokens)
    trace = predict(bare, start_overlap=start, closure="random_energy")
    logs = _logs(trace.blocks("separation"))
    return {
        "angle": _digits(logs[-1] - logs[0]),
        "condensation": _digits(np.nanmax(trace.statistics["condensation"])),
    }


def koopman(knobs: Knobs, task: Task, seed: int) -> dict[str, float | None]:
    """Share of modes near the unit circle, from one forward pass over 64 sequences, whitened in two ways."""
    model = seeded(network, seed, knobs, task)()
    streams = streams_of(model, model.blocks, task.held_out(64)[0])  # type: ignore[arg-type]
    finite = all(bool(stream.isfinite().all()) for stream in streams)
    kinds = {"first": False, "own": True}
    return {name: _digits(near_unit_share(streams, own)) if finite else None for name, own in kinds.items()}


@lru_cache(maxsize=4)
def input_overlap(task: Task) -> float:
    """Mean cosine of two tokens of one example as the network embeds them, from the data alone; at least 0.

    Tokens are W x + position with E|W x|^2 proportional to |x|^2 and positions of unit norm.
    """
    inputs = task.train[0][:512]
    if task.vectors:
        gram = inputs.double() @ inputs.double().transpose(1, 2) / task.inputs
    else:
        gram = (inputs[:, :, None] == inputs[:, None, :]).double()
    length = (1 + gram.diagonal(dim1=1, dim2=2)).sqrt()
    cosine = gram / (length[:, :, None] * length[:, None, :])
    n = gram.shape[1]
    between = (cosine.sum((1, 2)) - cosine.diagonal(dim1=1, dim2=2).sum(1)).mean()
    return max(float(between) / (n * (n - 1)), 0.0)


def _predicted(knobs: Knobs, task: Task, **how: Any) -> Trace:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return predict(architecture(knobs, task), start_overlap=input_overlap(task), **how)


def _orbit(trace: Trace) -> Orbit:
    return {name: _rounded(_logs(trace.blocks(name))) for name in ("separation", "norm")}


def _gradient(trace: Trace, readout: str) -> list[float | None]:
    return _rounded(_gradient_logs(trace, readout))


def _gradient_logs(trace: Trace, readout: str) -> Array:
    """log |g_l|^2 / |g_L|^2; nan where the stream left the range of numbers."""
    if trace.log_gradient is None:
        return np.full(trace.depth + 1, np.nan)
    return trace.blocks("log_gradient", readout)


def _logs(values: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _rounded(values: Array) -> list[float | None]:
    return [_digits(value) for value in values]


def _digits(value: float) -> float | None:
    """Four digits, None where there is no finite number."""
    return float(f"{value:.4g}") if np.isfinite(value) else None
