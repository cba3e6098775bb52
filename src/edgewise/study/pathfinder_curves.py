"""Dashed curves for Pathfinder: bounded random turning, placed uniformly, kept apart; all images at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """Sizes in pixels of the final image."""

    size: int
    paddles: int  # dashes of a long curve
    distractors: int
    dash: float = 1.6  # length of a dash
    gap: float = 1.2  # from one dash to the next
    turn: float = 0.6  # largest turn between dashes, radians
    clear: float = 2.0  # least distance between curves
    margin: float = 1.5
    per_dash: int = 3  # points by which a dash is drawn
    tries: int = 4

    @property
    def short(self) -> int:
        """Dashes of a distractor."""
        return max(1, self.paddles // 3)


@dataclass(frozen=True)
class Curves:
    """Centres (m, dashes, 2) and headings (m, dashes) of dashes, and whether the curve fits into the image."""

    centres: Array
    headings: Array
    fits: NDArray[np.bool_]

    def pick(self, index: NDArray[np.intp]) -> Curves:
        return Curves(self.centres[index], self.headings[index], self.fits[index])


def draw_curves(look: Look, dashes: int, count: int, random: np.random.Generator) -> Curves:
    """Headings walk by at most `turn`; the curve's box is placed uniformly where it fits; no curve meets itself."""
    turns = random.uniform(-look.turn, look.turn, (count, dashes))
    turns[:, 0] = random.uniform(0, 2 * np.pi, count)
    headings = turns.cumsum(1)
    half = (look.dash + look.gap) / 2
    steps = np.stack([np.cos(headings), np.sin(headings)], -1) * half
    centres = np.cumsum(2 * steps, axis=1) - steps  # a dash is entered and left in its own direction
    low, high = centres.min(1), centres.max(1)
    edge = look.margin + look.dash / 2
    room = look.size - 2 * edge - (high - low)
    shift = edge - low + np.maximum(room, 0) * random.random((count, 2))
    return Curves(centres + shift[:, None], headings, (room > 0).all(-1) & _open(centres, look))


def _open(centres: Array, look: Look) -> NDArray[np.bool_]:
    """No dash comes near one that is not its neighbour."""
    dashes = centres.shape[1]
    far = np.triu_indices(dashes, 3)
    if not len(far[0]):
        return np.ones(len(centres), bool)
    gaps = np.linalg.norm(centres[:, far[0]] - centres[:, far[1]], axis=-1)
    return np.asarray((gaps > look.clear + look.dash).all(-1))


def samples(curves: Curves, look: Look) -> Array:
    """Points along every dash, (m, dashes * per_dash, 2)."""
    along = np.linspace(-0.5, 0.5, look.per_dash) * look.dash
    direction = np.stack([np.cos(curves.headings), np.sin(curves.headings)], -1)
    points = curves.centres[:, :, None] + along[:, None] * direction[:, :, None]
    return points.reshape(len(points), curves.centres.shape[1] * look.per_dash, 2)


def ends(curves: Curves) -> Array:
    """First and last dash of each curve, (m, 2, 2)."""
    return curves.centres[:, [0, -1]]


def apart(first: Array, second: Array, clear: float) -> NDArray[np.bool_]:
    """Whether no point of one is nearer than `clear` to a point of the other; first (m, a, 2), second (m, b, 2)."""
    squares = (first**2).sum(-1)[:, :, None] + (second**2).sum(-1)[:, None] - 2 * first @ second.transpose(0, 2, 1)
    return np.asarray(squares.min((1, 2)) > clear**2)
