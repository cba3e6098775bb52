"""Cost against tokens, depth and grid size, with the fitted power."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import edgewise
from benchmarks.clock import Task, interleaved
from benchmarks.report import Findings, Table, Tell
from edgewise.theory.gram.drive import propagate_gram

BASE: dict[str, Any] = {"width": 1024, "heads": 16, "activation": "gelu", "norm": "pre"}


def _gram(tokens: int, depth: int) -> None:
    propagate_gram(edgewise.transformer(**BASE, depth=depth, tokens=tokens, causal=True), samples=4, draws=1)


def _simplex(depth: int, tokens: int) -> None:
    edgewise.predict(edgewise.transformer(**BASE, depth=depth, tokens=tokens))


def _grid(side: int) -> None:
    architecture = edgewise.transformer(**BASE, depth=16, tokens=256)
    edgewise.phase_diagram(architecture, {"score_gain": (0.0, 4.0, side), "mlp_in_gain": (0.5, 4.0, side)})


@dataclass(frozen=True)
class Sweep:
    """What grows, its values, and the work for one value."""

    name: str
    sizes: tuple[int, ...]
    work: Callable[[int], None]
    points: Callable[[int], int] = lambda size: size


SWEEPS = (
    Sweep("Gram, 2 causal layers: tokens", (128, 256, 512, 1024), lambda n: _gram(n, 2)),
    Sweep("Gram, 256 tokens: layers", (2, 4, 8, 16), lambda depth: _gram(256, depth)),
    Sweep("simplex, 1,024 tokens: layers", (16, 64, 256, 1024), lambda depth: _simplex(depth, 1024)),
    Sweep("simplex, 32 layers: tokens", (16, 1024, 32768, 1000000), lambda n: _simplex(32, n)),
    Sweep("phase diagram of 16 layers: points", (40, 80, 160, 320), _grid, lambda side: side**2),
)


def run(quick: bool, tell: Tell) -> Findings:
    rows: list[list[Any]] = []
    for place, sweep in enumerate(SWEEPS):
        tell(place / len(SWEEPS), sweep.name)
        rows.append(_row(sweep, sweep.sizes[:3] if quick else sweep.sizes, 1 if quick else 5))
    columns = ("what grows", "CPU s at each size", "fitted power", "power of the last step")
    return (
        [Table("Cost = size^power", columns, rows)],
        [],
        [
            "CPU time of one core, medians of interleaved repetitions. A power below 1 means that a fixed cost still "
            "counts; the Gram recursion draws four heads per layer here, whatever the length.",
        ],
    )


def _row(sweep: Sweep, sizes: tuple[int, ...], repetitions: int) -> list[Any]:
    timings = interleaved({f"{size:09d}": Task(partial(sweep.work, size)) for size in sizes}, repetitions)
    points = np.array([sweep.points(size) for size in sizes], float)
    cpu = np.array([timing.cpu for timing in timings.values()])
    power = np.polyfit(np.log(points), np.log(cpu), 1)[0]
    last = np.log(cpu[-1] / cpu[-2]) / np.log(points[-1] / points[-2])
    shown = ", ".join(f"{int(point):,}: {time:.3g}" for point, time in zip(points, cpu, strict=True))
    return [sweep.name, shown, float(power), float(last)]
