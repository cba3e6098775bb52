"""The share of networks that trained, over two knobs: the calibrated probability on a whole grid at once.

Positions are left out, as in every phase diagram; the verdict of a single network is never read from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgewise.arrays import Array
from edgewise.critical.phase_diagram import AXES, Lines, PhaseDiagram
from edgewise.errors import BadInput
from edgewise.judgement.bands import FAILS_UP_TO, TRAINS_FROM
from edgewise.judgement.grid import judged_diagram
from edgewise.nouns.architecture import Architecture

LARGEST_GRID = 64
MOST_STEPS = 64 * LARGEST_GRID**2  # blocks times points: more would keep a reader waiting
LEVELS = (FAILS_UP_TO, TRAINS_FROM)


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
    diagram = judged_diagram(architecture, {k: (*span, points) for k, span in axes.items()}, readout)
    assert diagram.share is not None
    share = diagram.share
    return ShareMap(diagram, share, levels_of(diagram.x, diagram.y, share))


def affordable(points: int, depth: int) -> int:
    """As many points on an axis as answer in a few seconds."""
    if not 2 <= points <= LARGEST_GRID:
        raise BadInput(f"points must be from 2 to {LARGEST_GRID}, got {points}.")
    return max(2, min(points, int((MOST_STEPS / depth) ** 0.5)))


def levels_of(x: Array, y: Array, share: Array) -> dict[float, Lines]:
    """The lines on which a quarter and three quarters of the networks train."""
    from contourpy import contour_generator

    contours = contour_generator(x=x, y=y, z=share)
    return {level: [np.asarray(line) for line in contours.lines(level)] for level in LEVELS}


def axes_of(architecture: Architecture) -> list[str]:
    """The knobs that can be an axis here: real-valued, of a layer that is there, one value for all blocks."""
    absent = {
        "attention": not architecture.heads,
        "mlp": not architecture.mlp_width,
        "score": not architecture.heads,
        "value": not architecture.heads,
    }
    names = [name for name in CHOICES if not absent.get(name.partition("_")[0], False)]
    return [
        name for name in names if name not in AXES or not isinstance(getattr(architecture, name, 0.0), tuple)
    ]


CHOICES = (
    "mlp_in_gain",
    "attention_branch",
    "value_gain",
    "score_gain",
    "mlp_out_gain",
    "mlp_bias",
    "mlp_branch",
    "attention_skip",
    "mlp_skip",
    "embedding_norm",
)


def span_of(name: str, value: float) -> tuple[float, float]:
    """From nothing to well beyond where the network stands."""
    usual = {
        "attention_branch": 1.25,
        "mlp_branch": 1.25,
        "attention_skip": 1.25,
        "mlp_skip": 1.25,
        "mlp_bias": 1.0,
    }
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
