"""The Gram recursion for 32 causal layers at 1,024 tokens, and real random networks of that size beside it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import edgewise
from benchmarks.clock import Timing, once
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.theory.gram.drive import propagate_gram
from tests.agreement.simulation.simulate import simulate

LIMIT = 60.0  # seconds
TURNS = 2  # recursion, network, recursion, network
NETWORK: dict[str, Any] = {
    "depth": 32,
    "tokens": 1024,
    "width": 2048,
    "heads": 16,
    "activation": "gelu",
    "norm": "pre",
    "causal": True,
}
SMALL = {"depth": 8, "tokens": 128, "width": 512, "heads": 8}


def recursion(knobs: dict[str, Any], seed: int, progress: Callable[[float], None]) -> edgewise.Trace:
    """As `predict` runs it: the default number of heads and draws."""
    return propagate_gram(edgewise.transformer(**knobs), seed=seed, progress=progress)


def theory_exponents(trace: edgewise.Trace) -> np.ndarray:
    """Angle and gradient exponent of every draw (2, draws)."""
    assert trace.log_gradient is not None
    angle = np.log(trace.separation[:, -1] / trace.separation[:, 0])
    return np.stack([angle, trace.log_gradient[0, :, 0]]) / trace.depth


def network_exponents(found: dict[str, np.ndarray]) -> np.ndarray:
    """The same of every network (2, seeds)."""
    separation, gradient = found["separation"], found["gradient_norm"]
    return np.log([separation[:, -1] / separation[:, 0], gradient[:, 0]]) / (separation.shape[1] - 1)


def run(quick: bool, tell: Tell) -> Findings:
    knobs = NETWORK | (SMALL if quick else {})
    traces, networks, times = [], [], {"theory": [], "network": []}
    for turn in range(TURNS):

        def share(done: float, turn: int = turn) -> None:
            tell((turn + 0.2 * done) / TURNS, "Gram recursion")

        trace, time = once(lambda turn=turn, share=share: recursion(knobs, turn, share))
        traces.append(trace)
        times["theory"].append(time)
        tell((turn + 0.2) / TURNS, f"a real network of width {knobs['width']:,}")
        found, time = once(lambda turn=turn: simulate(knobs, [turn]))
        networks.append(network_exponents(found))
        times["network"].append(time)
    theory = np.concatenate([theory_exponents(trace) for trace in traces], axis=1)
    return _findings(quick, knobs, traces[0], theory, np.concatenate(networks, axis=1), times)


def _findings(
    quick: bool,
    knobs: dict[str, Any],
    trace: edgewise.Trace,
    theory: np.ndarray,
    networks: np.ndarray,
    times: dict[str, list[Timing]],
) -> Findings:
    draws = trace.seeds
    error = theory.std(1, ddof=1) / np.sqrt(draws)  # of one prediction, which averages its draws
    distance = np.sqrt(((networks - theory.mean(1, keepdims=True)) ** 2).mean(1))
    cpu = {name: median(time.cpu for time in taken) for name, taken in times.items()}
    wall = {name: median(time.wall for time in taken) for name, taken in times.items()}
    rows = [
        ["Gram recursion, one prediction", cpu["theory"], wall["theory"], *_pairs(theory.mean(1), error)],
        [
            f"one real network of width {knobs['width']:,}",
            cpu["network"],
            wall["network"],
            *_pairs(networks.mean(1), distance),
        ],
        ["ratio", cpu["network"] / cpu["theory"], None, None, *_pairs(distance / error, [None, None])[:3]],
    ]
    columns = (
        "forward and backward",
        "CPU s",
        "wall s",
        "angle exponent",
        "error",
        "gradient exponent",
        "error",
    )
    title = f"{knobs['depth']} causal layers at {knobs['tokens']:,} tokens, float32, one core"
    goal = Goal(
        f"32 causal layers at 1,024 tokens in under {LIMIT:g} s on one core in float32, sampling error printed",
        f"{cpu['theory']:.1f} s of one core for {draws} draws, standard errors {error[0]:.1g} (angle) and "
        f"{error[1]:.1g} (gradient)",
        None if quick else cpu["theory"] < LIMIT,
    )
    return (
        [Table(title, columns, rows)],
        [goal],
        [
            f"{trace.source}; no weight matrix exists. Its error is the standard error of one prediction, from "
            f"{theory.shape[1]} draws; that of a network is its root mean square distance from the mean, over "
            f"{networks.shape[1]} networks (scatter and finite-width bias together).",
            f"A network of this size has {_gigabytes(knobs):.1f} GB of float32 weights, drawn block by block.",
        ],
    )


def _pairs(values: Any, errors: Any) -> list[Any]:
    """value, error, value, error."""
    return [
        None if number is None else float(number)
        for pair in zip(values, errors, strict=True)
        for number in pair
    ]


def _gigabytes(knobs: dict[str, Any]) -> float:
    return 12 * knobs["depth"] * knobs["width"] ** 2 * 4 / 1e9
