"""A phase diagram of 64 layers with both exponents, its hot spots, and the same points one `predict` at a time."""

from __future__ import annotations

import cProfile
import pstats
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import edgewise
from benchmarks.clock import Task, interleaved
from benchmarks.report import Findings, Goal, Table, Tell, seconds

SIDE, LIMIT = 200, 15.0  # points per axis, seconds
ACTIVATIONS = ("relu", "gelu", "tanh")
ONE_BY_ONE = 8  # points that are also computed alone
X, Y = ("score_gain", 0.0, 4.0), ("mlp_in_gain", 0.5, 4.0)


def network(activation: str, **knobs: Any) -> edgewise.Architecture:
    return edgewise.transformer(
        depth=64, tokens=256, width=768, heads=12, activation=activation, norm="pre", **knobs
    )


def diagram(activation: str, side: int) -> Any:
    return edgewise.phase_diagram(network(activation), {X[0]: (*X[1:], side), Y[0]: (*Y[1:], side)})


def one_by_one(activation: str) -> None:
    """Points spread over the same rectangle, one verdict's worth of recursion each."""
    for share in np.linspace(0.1, 0.9, ONE_BY_ONE):
        knobs = {name: low + share * (high - low) for name, low, high in (X, Y)}
        edgewise.predict(network(activation, **knobs))


def run(quick: bool, tell: Tell) -> Findings:
    side = 50 if quick else SIDE
    tasks = {name: Task(partial(diagram, name, side)) for name in ACTIVATIONS}
    alone = {f"{name} alone": Task(partial(one_by_one, name)) for name in ACTIVATIONS}
    timings = interleaved(tasks | alone, 1 if quick else 3, lambda done, what: tell(0.9 * done, what))
    rows: list[list[Any]] = []
    for name in ACTIVATIONS:
        whole, point = timings[name], timings[f"{name} alone"].cpu / ONE_BY_ONE
        each = whole.cpu / side**2
        rows.append([name, whole.cpu, whole.wall, seconds(each), seconds(point), point / each])
    tell(0.9, "profile")
    slowest = max(timings[name].cpu for name in ACTIVATIONS)
    found = (
        f"{slowest:.2f} s of one core for the slowest of {', '.join(ACTIVATIONS)} ({side} x {side} points)"
    )
    goal = Goal(
        f"{SIDE} x {SIDE} points of 64 layers in under {LIMIT:g} s on one core",
        found,
        None if quick else slowest < LIMIT,
    )
    columns = ("activation", "CPU s", "wall s", "CPU per point", "predict, one point", "ratio")
    return (
        [
            Table(f"{side} x {side} phase diagram: 64 pre-norm layers, 256 tokens, 12 heads", columns, rows),
            hot_spots("gelu", side // 2),
        ],
        [goal],
        [
            "Every point has the angle exponent of the network's own orbit, that of a pair of near tokens, and the raw "
            "and relative gradient exponents; predict also reports entropies and weight gradients.",
        ],
    )


def hot_spots(activation: str, side: int, count: int = 10) -> Table:
    """Functions by their own time, and their share with all they call, under the profiler."""
    with cProfile.Profile() as profile:
        diagram(activation, side)
    stats: Any = pstats.Stats(profile)
    largest = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:count]
    rows = [
        [_place(*place), f"{100 * own / stats.total_tt:.0f} %", f"{100 * inclusive / stats.total_tt:.0f} %"]
        for place, (_, _, own, inclusive, _) in largest
    ]
    return Table(
        f"Hot spots of the {activation} diagram", ("function", "own time", "with what it calls"), rows
    )


def _place(file: str, _: int, function: str) -> str:
    if file == "~":
        return function.strip("<>").removeprefix("built-in method ").removeprefix("method ")
    return f"{Path(file).stem}.{function}"
