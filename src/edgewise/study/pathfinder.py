"""Pathfinder: two dots on one dashed curve, or on two? Images from a seed, with the audit of their shortcut.

After Linsley 2018; the drawing is our own. Every image holds two long curves and short distractors; label 1 puts both
dots on the ends of one long curve, label 0 one on each. A free placement lets the distance of the dots tell the
label (75 % right); here the pair of ends for label 0 is the one whose distance is nearest to the curve's own, and an
image in which the two differ by more than `tolerance` pixels is thrown away, whatever its label would have been.

Shapes: curves (images, dashes, 2) in pixels; images (count, size, size) in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgewise.errors import BadInput
from edgewise.study.pathfinder_curves import Look, apart, draw_curves, ends, samples
from edgewise.study.pathfinder_pixels import render

Array = NDArray[np.float64]
Layouts = tuple[Array, Array, NDArray[np.int64], Array]  # points, dots, labels, distances
BATCH = 2048  # candidates at a time


@dataclass(frozen=True, eq=False)
class Pathfinder:
    """Images with labels, and what a look at the distance of the dots alone would get right."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    distances: Array  # of the two dots, in pixels
    kept: float  # share of candidate layouts that were kept

    @property
    def shortcut(self) -> float:
        """The best accuracy of a window on the distance of the dots, 0.5 being chance."""
        return best_window(self.distances, self.labels)

    @property
    def ink(self) -> tuple[float, float]:
        """Mean brightness of images with label 0 and 1."""
        return tuple(float(self.images[self.labels == k].mean()) for k in (0, 1))  # type: ignore[return-value]

    def __str__(self) -> str:
        size = self.images.shape[-1]
        low, high = self.ink
        return (
            f"{len(self.labels)} images of {size} x {size}, {self.labels.mean():.1%} connected; shortcut by the "
            f"distance of the dots alone {self.shortcut:.1%} (chance 50 %); ink {low:.4f} / {high:.4f}; "
            f"{self.kept:.1%} of layouts kept."
        )


def pathfinder(
    count: int, size: int = 32, paddles: int = 9, distractors: int | None = None, tolerance: float = 0.5, seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Pathfinder:  # fmt: skip
    """`count` images from a seed: long curves of `paddles` dashes, short distractors a third as long.

    distractors: about 18 dashes in total unless given. tolerance: pixels by which dot distances may tell the label.
    """
    look = Look(size, paddles, _distractors(paddles, distractors))
    _refuse(count, look, tolerance)
    random = np.random.default_rng(seed)
    parts: list[Layouts] = []
    made = tried = 0
    while made < count:
        tried += BATCH
        part = _layouts(look, tolerance, random)
        parts.append(part)
        made += len(part[2])
        if tried > 10 * BATCH and made < tried / 5_000:
            raise BadInput(f"{paddles} paddles hardly fit into {size} x {size} pixels: {made} of {tried} layouts did.")
        if progress is not None:
            progress(min(made / count, 1.0) / 2)
    points, dots, labels, distances = (np.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True))
    images = render(points, dots, look, progress)
    return Pathfinder(images, labels, distances, made / tried)


def best_window(distances: Array, labels: NDArray[np.int64], cuts: int = 64) -> float:
    """The best accuracy of "connected inside [low, high]", or outside it, over windows between quantiles."""
    edges = np.quantile(distances, np.linspace(0, 1, cuts + 1))
    place = np.clip(np.searchsorted(edges, distances, side="right") - 1, 0, cuts - 1)
    gain = np.bincount(place, weights=2.0 * labels - 1, minlength=cuts)  # ones minus zeros in each cell
    sums = np.concatenate([[0.0], gain.cumsum()])
    inside = sums[None, :] - sums[:, None]  # of every window; with "connected inside", zeros outside are right too
    zeros = int((labels == 0).sum())
    return float(max((zeros + inside).max(), (len(labels) - zeros - inside).max()) / len(labels))


def _layouts(look: Look, tolerance: float, random: np.random.Generator) -> Layouts:
    """Candidates whose curves stay apart and whose dot distances do not tell the label: points, dots, labels."""
    first, second = (draw_curves(look, look.paddles, BATCH, random) for _ in range(2))
    good = np.flatnonzero(apart(samples(first, look), samples(second, look), look.clear) & first.fits & second.fits)
    first, second = first.pick(good), second.pick(good)
    own, other = ends(first), ends(second)
    length = np.linalg.norm(own[:, 0] - own[:, 1], axis=-1)
    pairs = np.linalg.norm(own[:, :, None] - other[:, None], axis=-1).reshape(-1, 4)  # (own end, other end)
    nearest = np.abs(pairs - length[:, None]).argmin(-1)
    fair = np.flatnonzero(np.abs(pairs[np.arange(len(pairs)), nearest] - length) < tolerance)
    first, second, nearest = first.pick(fair), second.pick(fair), nearest[fair]
    points = np.concatenate([samples(first, look), samples(second, look)], 1)
    points, free = _with_distractors(points, look, random)
    labels = random.integers(0, 2, len(points))
    rows = np.arange(len(points))
    unlinked = np.stack([ends(first)[rows, nearest // 2], ends(second)[rows, nearest % 2]], 1)
    dots = np.where(labels[:, None, None] == 1, ends(first), unlinked)
    distances = np.linalg.norm(dots[:, 0] - dots[:, 1], axis=-1)
    return points[free], dots[free], labels[free], distances[free]


def _with_distractors(points: Array, look: Look, random: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """Short curves away from all before, each with a few tries; an image in which one found no room is not free."""
    free = np.ones(len(points), bool)
    for _ in range(look.distractors):
        placed = np.zeros(len(points), bool)
        chosen = np.full((len(points), look.short * look.per_dash, 2), -10.0 * look.size)
        for _ in range(look.tries):
            left = np.flatnonzero(~placed)
            curves = draw_curves(look, look.short, len(left), random)
            drawn = samples(curves, look)
            good = curves.fits & apart(drawn, points[left], look.clear)
            chosen[left[good]], placed[left[good]] = drawn[good], True
        free &= placed
        points = np.concatenate([points, chosen], 1)
    return points, free


def _distractors(paddles: int, given: int | None) -> int:
    return max(0, round(18 / max(1, paddles // 3)) // 2) if given is None else given


def _refuse(count: int, look: Look, tolerance: float) -> None:
    sizes = (("count", count, 1), ("size", look.size, 12), ("paddles", look.paddles, 2))
    for name, value, least in (*sizes, ("distractors", look.distractors, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise BadInput(f"{name} = {value!r} is not possible: expected a whole number of at least {least}.")
    if not tolerance > 0:
        raise BadInput(f"tolerance = {tolerance!r} is not possible: expected a number of pixels above 0.")
