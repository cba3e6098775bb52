"""The share of networks that trained, over two knobs: the calibrated probability on a whole grid at once.

Positions are left out, as in every phase diagram; the verdict of a single network is never read from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgewise.architecture import Architecture
from edgewise.arrays import LARGEST, Array
from edgewise.blocks import fold
from edgewise.critical.phase_diagram import AXES, Lines, PhaseDiagram, as_knobs, compute_diagram
from edgewise.errors import BadInput
from edgewise.judgement.probability import CERTAIN, calibration
from edgewise.theory.simplex.recursion import Setting, apply_branch
from edgewise.theory.simplex.state import Simplex

LARGEST_GRID = 64
MOST_STEPS = 64 * LARGEST_GRID**2  # blocks times points: more would keep a reader waiting
LEVELS = (0.25, 0.75)


@dataclass(frozen=True)
class ShareMap:
    """share (Y, X), the lines on which both exponents of near tokens vanish, and those of a quarter and three."""

    diagram: PhaseDiagram
    share: Array
    levels: Mapping[float, Lines]


def share_map(
    architecture: Architecture, axes: Mapping[str, tuple[float, float]], points: int, readout: str = "token"
) -> ShareMap:
    """The map of two knobs from low to high, `points` on each axis; fewer where the network is deep."""
    points = affordable(points, architecture.depth)
    diagram = compute_diagram(architecture, {k: (*span, points) for k, span in axes.items()}, readout)
    xs, ys = np.meshgrid(diagram.x, diagram.y)
    changed = as_knobs(diagram.x_name, xs.ravel()) | as_knobs(diagram.y_name, ys.ravel())
    forgetting, lost = (values.reshape(xs.shape) for values in late_forgetting(architecture, changed))
    share = probability(np.abs(diagram.angle_change) + np.abs(diagram.gradient_change), forgetting, lost, readout)
    return ShareMap(diagram, share, {level: _lines(diagram, share, level) for level in LEVELS})


def affordable(points: int, depth: int) -> int:
    """As many points on an axis as answer in a few seconds."""
    if not 2 <= points <= LARGEST_GRID:
        raise BadInput(f"points must be from 2 to {LARGEST_GRID}, got {points}.")
    return max(2, min(points, int((MOST_STEPS / depth) ** 0.5)))


def probability(score: Array, forgetting: Array, lost: Array, readout: str) -> Array:
    """P = 1 / (1 + exp(w s + u F - b)), the curve of `edgewise.judgement.probability`; 0 where the stream is lost."""
    curves = calibration()["curves"][readout]
    known = np.isfinite(forgetting)  # without a skip there is nothing to forget, and a curve of its own
    described, bare = curves["described"]["all"], curves["bare"]["all"]
    constant = {name: np.where(known, described[name], bare[name]) for name in ("exponents", "forgetting", "offset")}
    risk = constant["exponents"] * score + constant["forgetting"] * np.where(known, forgetting, 0) - constant["offset"]
    share = 1 / (1 + np.exp(np.clip(np.nan_to_num(risk, nan=700.0), -700, 700)))
    return np.where(lost, 0.0, np.clip(share, CERTAIN, 1 - CERTAIN))


def late_forgetting(architecture: Architecture, changed: Mapping[str, Array]) -> tuple[Array, Array]:
    """|F_L - F_half| L / (L - half), with F the log of how much of the stream is no longer a copy of the input.

    Not finite where there is no skip. Also whether the stream left the range of numbers.
    """
    knobs: dict[str, Any] = architecture.knobs() | dict(changed)
    size = len(next(iter(changed.values())))
    norm = np.broadcast_to(np.asarray(knobs["embedding_norm"], float), (size,))
    start = state = Simplex(norm, norm)
    setting, half = Setting(architecture.tokens, architecture.width), architecture.depth // 2
    total = middle = np.zeros(size)
    gone = np.zeros(size, bool)
    with np.errstate(all="ignore"):
        for number, block in enumerate(fold(knobs)):
            middle = total if number == half else middle
            for branch in block:
                step = apply_branch(branch, state, setting)
                inside = replace(branch, norm=replace(branch.norm, outside=False))
                whole = apply_branch(inside, state, setting) if branch.norm.outside else step
                total = total + np.log(whole.state.norm) - np.log(np.square(branch.skip) * state.norm)
                lost = ~((step.state.norm > 1 / LARGEST) & (step.state.norm < LARGEST))
                gone = gone | lost  # such points go on from the start, and have no share
                state = Simplex(*(np.where(lost, first, now) for first, now in zip(start, step.state, strict=True)))
        late = np.abs(total - middle) * architecture.depth / (architecture.depth - half)
    return np.asarray(late), gone


def _lines(diagram: PhaseDiagram, share: Array, level: float) -> Lines:
    from contourpy import contour_generator

    return [np.asarray(line) for line in contour_generator(x=diagram.x, y=diagram.y, z=share).lines(level)]


def axes_of(architecture: Architecture) -> list[str]:
    """The knobs that can be an axis here: real-valued, of a layer that is there, one value for all blocks."""
    absent = {"attention": not architecture.heads, "mlp": not architecture.mlp_width, "score": not architecture.heads,
              "value": not architecture.heads}  # fmt: skip
    names = [name for name in CHOICES if not absent.get(name.partition("_")[0], False)]
    return [name for name in names if name not in AXES or not isinstance(getattr(architecture, name, 0.0), tuple)]


CHOICES = (
    "mlp_in_gain", "attention_branch", "value_gain", "score_gain", "mlp_out_gain", "mlp_bias", "mlp_branch",
    "attention_skip", "mlp_skip", "embedding_norm",
)  # fmt: skip


def span_of(name: str, value: float) -> tuple[float, float]:
    """From nothing to well beyond where the network stands."""
    usual = {"attention_branch": 1.25, "mlp_branch": 1.25, "attention_skip": 1.25, "mlp_skip": 1.25, "mlp_bias": 1.0}
    high = max(usual.get(name, 3.0), _nice(1.5 * value))
    return (0.0 if name in usual else high / 60), high


def _nice(value: float) -> float:
    """The next number of one and a half digits above.

    >>> _nice(3.2), _nice(0.61), _nice(0.0)
    (3.5, 0.65, 0.0)
    """
    if value <= 0:
        return 0.0
    unit = 10.0 ** np.floor(np.log10(value)) / 2
    return float(f"{np.ceil(value / unit) * unit:.3g}")
