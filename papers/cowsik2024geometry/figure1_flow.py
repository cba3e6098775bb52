"""Figure 1: norm and overlap of the tokens flow to a line in the ordered phase, to a simplex in the chaotic one.

Arrows and lines are theory without a fitted number; points are random networks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, select, simulated_orbit

from .common import ABSTRACT, beyond_error, paper_block, scale_of

TOLERANCE = 0.005  # of the largest number in an entry; seeds scatter by 0.045 or more
PHASES = {"ordered": 1.0, "chaotic": 4.0}  # gain of the MLP's first matrix; both strengths are the same
STARTS = ((0.1, 0.1), (0.1, 0.9), (4.0, 0.05), (4.0, 0.8), (0.6, 0.97))  # norm q, overlap
SMALL, FULL = {"depth": 12, "tokens": 16, "width": 128}, {"depth": 24, "tokens": 32, "width": 256}
WITHIN = {"overlap": 0.03, "log norm": 0.05}


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Two phases, five starts, several seeds."""
    size, seeds = (FULL, 6) if scale == "full" else (SMALL, 2)
    return [
        {
            "phase": phase,
            "start": i,
            "start_overlap": overlap,
            "seed": seed,
            "knobs": paper_block(0.5, 0.8, mlp_in_gain=gain, embedding_norm=norm, **size),
        }
        for phase, gain in PHASES.items()
        for i, (norm, overlap) in enumerate(STARTS)
        for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The orbit of one random network."""
    return simulated_orbit(case)


def theory(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Predicted norm and overlap at every block."""
    trace = _predicted(tuple(case["knobs"].items()), case["start_overlap"])
    return trace.blocks("norm"), trace.blocks("overlap")


@cache
def _predicted(knobs: tuple[tuple[str, Any], ...], start_overlap: float) -> edgewise.Trace:
    return edgewise.predict(edgewise.transformer(**dict(knobs)), start_overlap=start_overlap)


def claim(results: list[Result]) -> Claim:
    """Collapse, the simplex, and how well the equations follow both."""
    return Claim.all([_collapse(results), _simplex(results), _tracking(results)])


def _ends(results: list[Result], phase: str) -> np.ndarray:
    """Overlap after the last block: mean and standard error, per start."""
    pairs = [over_seeds(results, "separation", phase=phase, start=i) for i in range(len(STARTS))]
    return np.array([(1 - mean[-1], error[-1]) for mean, error in pairs]).T


def _collapse(results: list[Result]) -> Claim:
    rows = [over_seeds(results, "separation", phase="ordered", start=i)[0] for i in range(len(STARTS))]
    fall = np.array([row[-1] / row[0] for row in rows])
    falling = all((np.diff(row[len(row) // 2 :]) < 0).all() for row in rows)
    return Claim(
        f"In the ordered phase the tokens attract each other and collapse to a line {ABSTRACT}.",
        f"1 - overlap falls in every later block, to at most {fall.max():.2g} of its start.",
        scale_of(results, "start"),
        bool(falling and fall.max() < 0.1),
        {"largest_remaining_fraction": fall.max()},
        rows=("C17",),
    )


def _simplex(results: list[Result]) -> Claim:
    field = _field(results, "chaotic")
    fixed = next(point.overlap for point in field.fixed_points if point.stable)
    ends, errors = _ends(results, "chaotic")
    coming = [theory(select(results, phase="chaotic", start=i)[0].case)[1][-1] for i in range(len(STARTS))]
    left = float(np.max(np.abs(np.array(coming) - fixed)))  # this depth is not infinity, by theory
    held = fixed < 0.99 and not beyond_error(ends - fixed, errors, left + WITHIN["overlap"])
    return Claim(
        f"In the chaotic phase they repel each other and converge to a regular simplex {ABSTRACT}.",
        f"Overlaps end between {ends.min():.3f} and {ends.max():.3f} from all starts, with standard errors of "
        f"{errors.mean():.3f}; the fixed point is {fixed:.3f}, theory at this depth still up to {left:.3f} away.",
        scale_of(results, "start"),
        held,
        {"fixed_point": fixed, "ends": ends.tolist(), "theory_still_to_go": left},
        rows=("C18",),
    )


def _tracking(results: list[Result]) -> Claim:
    gaps = np.array([_gaps(results, phase, i) for phase in PHASES for i in range(len(STARTS))])
    (overlap_gap, overlap_error), (norm_gap, norm_error) = (
        gaps[:, 0].swapaxes(0, 1),
        gaps[:, 1].swapaxes(0, 1),
    )
    pairs = {"overlap": (overlap_gap, overlap_error), "log norm": (norm_gap, norm_error)}
    beyond = any(beyond_error(*pair, WITHIN[name]) for name, pair in pairs.items())
    worst = {name: float(np.abs(gap).max()) for name, (gap, _) in pairs.items()}
    mean = {name: float(np.abs(gap).mean()) for name, (gap, _) in pairs.items()}
    return Claim(
        f"The update equations quantitatively track the geometry with MLP layers present {ABSTRACT}.",
        f"At the worst block of all starts theory is off by {worst['overlap']:.3f} in overlap and "
        f"{100 * worst['log norm']:.1f} % in norm (mean {mean['overlap']:.3f}, {100 * mean['log norm']:.1f} %).",
        scale_of(results, "start"),
        not beyond,
        {"largest": worst, "mean": mean, "allowed": WITHIN},
        rows=("C16", "C18"),
    )


def _gaps(results: list[Result], phase: str, start: int) -> list[list[np.ndarray]]:
    """Measured minus predicted overlap and log norm at every block, each with its standard error."""
    norm, overlap = theory(select(results, phase=phase, start=start)[0].case)
    q, q_error = over_seeds(results, "norm", phase=phase, start=start)
    s, s_error = over_seeds(results, "separation", phase=phase, start=start)
    return [[1 - s - overlap, s_error], [np.log(q / norm), q_error / q]]


def _field(results: list[Result], phase: str) -> Any:
    """The flow and its fixed points in one phase, computed once."""
    return _flow(tuple(select(results, phase=phase)[0].case["knobs"].items()))


@cache
def _flow(knobs: tuple[tuple[str, Any], ...]) -> Any:
    network = edgewise.transformer(**dict(knobs))
    return edgewise.critical.vector_field(
        network, norms=(0.07, 40.0, 15), overlaps=(0.0, 0.995, 15), starts=()
    )


def draw(results: list[Result]) -> Figure:
    """The two planes, side by side."""
    panels = tuple(_panel(results, phase, gain) for phase, gain in PHASES.items())
    title = "Two phases of one block: attention strength 0.5, MLP strength 0.8, tanh, pre-norm"
    foot = f"lines and arrows: theory; points: {scale_of(results, 'start')}, bars: standard error"
    return Sheet(title, panels, foot).draw()


def _panel(results: list[Result], phase: str, gain: float) -> Panel:
    curves, field = [], _field(results, phase)
    for i in range(len(STARTS)):
        norm, overlap = theory(select(results, phase=phase, start=i)[0].case)
        q, q_error = over_seeds(results, "norm", phase=phase, start=i)
        s, s_error = over_seeds(results, "separation", phase=phase, start=i)
        hidden = "_" if i else ""  # one entry in the legend for all starts
        curves += [
            Curve(hidden + "theory", norm, overlap, i),
            Curve(hidden + "random networks", q, 1 - s, i, "points", s_error, q_error),
        ]
    (plane,) = edgewise.present.vector_field(field).panels
    stable = next(point for point in field.fixed_points if point.stable)
    note = f"black: stable fixed point, q = {stable.norm:.3f}, overlap {stable.overlap:.3f}"
    if any(not point.stable for point in field.fixed_points):
        note += "\nwhite: unstable fixed point"
    title = f"{phase} phase, MLP input gain {gain:g}"
    return replace(plane, title=title, note=note, curves=tuple(curves), legend=False, legend_at="upper right")
