"""A phase diagram judged: the probability of training at every point of its grid, and the outcome that follows.

The same score and curves as for one network (`edgewise.judgement.outcome`), on arrays. Positions are left out, as in
every phase diagram; the verdict on a single network is never read from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.critical.exponents import follow_grid
from edgewise.critical.phase_diagram import PhaseDiagram, compute_diagram, over_grid
from edgewise.errors import SearchBudget
from edgewise.judgement.outcome import BEYOND, CURVES, OUTCOME_BANDS, calibration, curve_at
from edgewise.judgement.profile import ALIKE, APART
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import fold
from edgewise.theory.simplex.state import Setting, SimplexState
from edgewise.theory.simplex.step import step


def judged_diagram(
    architecture: Architecture,
    axes: Mapping[str, object],
    readout: str = "token",
    start_overlap: float = 0.0,
    budget: SearchBudget | None = None,
) -> PhaseDiagram:
    """Compute the phase diagram with its share of networks that train and the outcome of every point."""
    diagram = compute_diagram(architecture, axes, readout, start_overlap, budget)
    share = shares(diagram, budget)
    bands = [share >= OUTCOME_BANDS.trains_from, share > OUTCOME_BANDS.fails_up_to]
    return replace(diagram, share=share, outcome=np.select(bands, [0, 1], 2).astype(np.int8))


def shares(diagram: PhaseDiagram, budget: SearchBudget | None = None) -> Array:
    """Return the probability of training (Y, X); 0 if the stream leaves the range of numbers, as for one network.

    Where tokens are one at the output and each has a label, it is the least that a record can show, as for one network.
    """
    forgetting, lost, apart = over_grid(
        diagram.architecture,
        [(diagram.x_name, diagram.x), (diagram.y_name, diagram.y)],
        lambda network, knobs: late_forgetting(network, knobs, diagram.start_overlap, budget),
    )
    merged = (apart < ALIKE) & (diagram.readout == "token") & (1 - diagram.start_overlap >= APART)
    angle = np.where(merged, BEYOND, np.abs(diagram.angle_change))
    exponents = angle + np.abs(diagram.gradient_change)
    return np.where(lost, 0.0, probability(exponents, forgetting, diagram.readout))


def probability(exponents: Array, forgetting: Array, readout: str) -> Array:
    """Return the curve at every point; an F that is not a number is not known, and has a curve of its own."""
    curves = calibration()["curves"][CURVES[readout]]
    sizes = np.where(np.isfinite(exponents), np.minimum(exponents, 2 * BEYOND), 2 * BEYOND)
    described = curve_at(sizes, forgetting, curves["described"]["all"])
    return np.where(np.isfinite(forgetting), described, curve_at(sizes, 0.0, curves["bare"]["all"]))


def late_forgetting(
    architecture: Architecture,
    changed: Mapping[str, Array],
    start_overlap: float = 0.0,
    budget: SearchBudget | None = None,
) -> tuple[Array, NDArray[np.bool_], Array]:
    """|F_L - F_half| L / (L - half) with F of `forgetting`, whether the stream left the range, and 1 - overlap at last.

    F is not a number if there is none: with a skip of zero.
    """
    knobs: dict[str, Any] = architecture.knobs() | dict(changed)
    size = len(next(iter(changed.values())))
    norm = np.broadcast_to(np.asarray(knobs["embedding_norm"], float), (size,))
    state = SimplexState(norm, norm * (1 - start_overlap))
    setting, half = Setting(architecture.tokens, architecture.width, budget=budget), architecture.depth // 2
    blocks, total, middle = fold(knobs), np.zeros(size), np.zeros(size)
    steps, lost = follow_grid(blocks, state, setting)
    afters = iter(steps)
    with np.errstate(all="ignore"):
        for number, block in enumerate(blocks):
            middle = total if number == half else middle
            for branch in block:
                after = next(afters)
                inside = replace(branch, norm=replace(branch.norm, outside=False))
                whole = step(state, inside, setting) if branch.norm.outside else after
                total = total + np.log(whole.state.norm) - np.log(np.square(branch.skip) * state.norm)
                state = after.state
        late = np.abs(total - middle) * architecture.depth / (architecture.depth - half)
    return np.where(np.isfinite(late), late, np.nan), lost, state.separation
