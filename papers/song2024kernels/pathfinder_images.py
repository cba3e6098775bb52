"""Pathfinder: two dots on one dashed curve, or on two? Images from a seed, with the audit of their shortcut.

After [Linsley 2018]; the drawing is our own. Every image holds two long curves and short distractors; label 1 puts both
dots on the ends of one long curve, label 0 one on each. A free placement lets the distance of the dots tell the
label (75 % right); here the pair of ends for label 0 is the one whose distance is nearest to the curve's own, and an
image in which the two differ by more than `tolerance` pixels is thrown away, whatever its label would have been.

Curves turn by bounded random angles, are placed uniformly and stay apart; points are stamped on a grid four times finer
and averaged down. Shapes: curves (images, dashes, 2) in pixels; images (count, size, size) in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput

FINE = 4  # fine pixels along a pixel
DASH_RADIUS, DOT_RADIUS = 0.45, 1.4  # in pixels
CHUNK = 1024  # images at a time
Layouts = tuple[Array, Array, NDArray[np.int64], Array]  # points, dots, labels, distances
BATCH = 2048  # candidates at a time


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
    """Return headings walk by at most `turn`; the curve's box is placed uniformly where it fits.

    No curve meets itself.
    """
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
    """Return points along every dash, (m, dashes * per_dash, 2)."""
    along = np.linspace(-0.5, 0.5, look.per_dash) * look.dash
    direction = np.stack([np.cos(curves.headings), np.sin(curves.headings)], -1)
    points = curves.centres[:, :, None] + along[:, None] * direction[:, :, None]
    return points.reshape(len(points), curves.centres.shape[1] * look.per_dash, 2)


def ends(curves: Curves) -> Array:
    """Return first and last dash of each curve, (m, 2, 2)."""
    return curves.centres[:, [0, -1]]


def apart(first: Array, second: Array, clear: float) -> NDArray[np.bool_]:
    """Return whether no point of one is nearer than `clear` to a point of the other.

    First (m, a, 2), second (m, b, 2).
    """
    squares = (
        (first**2).sum(-1)[:, :, None] + (second**2).sum(-1)[:, None] - 2 * first @ second.transpose(0, 2, 1)
    )
    return np.asarray(squares.min((1, 2)) > clear**2)


@dataclass(frozen=True, eq=False)
class Pathfinder:
    """Images with labels, and what a look at the distance of the dots alone would get right."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    distances: Array  # of the two dots, in pixels
    share: float  # share of candidate layouts that can be used

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
            f"{self.share:.1%} of layouts kept."
        )


def pathfinder(
    count: int,
    size: int = 32,
    paddles: int = 9,
    distractors: int | None = None,
    tolerance: float = 0.5,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Pathfinder:
    """Return `count` images from a seed: long curves of `paddles` dashes, short distractors a third as long.

    distractors: default about 18 dashes in total. tolerance: pixels by which dot distances may tell the label.
    """
    look = Look(size, paddles, _distractors(paddles, distractors))
    _refuse(count, look, tolerance)
    random = np.random.default_rng(seed)
    parts: list[Layouts] = []
    layouts = tried = 0
    while layouts < count:
        tried += BATCH
        part = _layouts(look, tolerance, random)
        parts.append(part)
        layouts += len(part[2])
        if tried > 10 * BATCH and layouts < tried / 5_000:
            raise BadInput(
                f"{paddles} paddles hardly fit into {size} x {size} pixels: {layouts} of {tried} tries did."
            )
        if progress is not None:
            progress(min(layouts / count, 1.0) / 2)
    points, dots, labels, distances = (np.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True))
    images = render(points, dots, look, progress)
    return Pathfinder(images, labels, distances, layouts / tried)


def best_window(distances: Array, labels: NDArray[np.int64], cuts: int = 64) -> float:
    """Return the best accuracy of "connected inside [low, high]", or outside it, over windows between quantiles."""
    edges = np.quantile(distances, np.linspace(0, 1, cuts + 1))
    place = np.clip(np.searchsorted(edges, distances, side="right") - 1, 0, cuts - 1)
    gain = np.bincount(place, weights=2.0 * labels - 1, minlength=cuts)  # ones minus zeros in each cell
    sums = np.concatenate([[0.0], gain.cumsum()])
    inside = np.triu(
        sums[None, :] - sums[:, None]
    )  # low <= high; with "connected inside", zeros outside are right too
    zeros = int((labels == 0).sum())
    return float(max((zeros + inside).max(), (len(labels) - zeros - inside).max()) / len(labels))


def _layouts(look: Look, tolerance: float, random: np.random.Generator) -> Layouts:
    """Candidates whose curves stay apart and whose dot distances do not tell the label: points, dots, labels."""
    first, second = (draw_curves(look, look.paddles, BATCH, random) for _ in range(2))
    fitting = np.flatnonzero(first.fits & second.fits)
    first, second = first.pick(fitting), second.pick(fitting)
    good = np.flatnonzero(apart(samples(first, look), samples(second, look), look.clear))
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


def _with_distractors(
    points: Array, look: Look, random: np.random.Generator
) -> tuple[Array, NDArray[np.bool_]]:
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


def render(
    points: Array, dots: Array, look: Look, progress: Callable[[float], None] | None = None
) -> NDArray[np.float32]:
    """Return images in [0, 1] from points (m, a, 2) of dashes and dots (m, 2, 2)."""
    images = np.empty((len(points), look.size, look.size), np.float32)
    for low in range(0, len(points), CHUNK):
        part = slice(low, low + CHUNK)
        fine = np.zeros((len(points[part]), look.size * FINE, look.size * FINE), np.uint8)
        _stamp(fine, points[part], DASH_RADIUS)
        _stamp(fine, dots[part], DOT_RADIUS)
        blocks = fine.reshape(len(fine), look.size, FINE, look.size, FINE)
        images[part] = blocks.sum((2, 4), dtype=np.uint8) / np.float32(FINE**2)
        if progress is not None:
            progress(0.5 + min(low + CHUNK, len(points)) / len(points) / 2)
    return images


def _stamp(fine: NDArray[np.uint8], points: Array, radius: float) -> None:
    """Set every fine pixel within `radius` of a point."""
    reach = int(np.ceil(radius * FINE))
    grid = np.arange(-reach, reach + 1)
    row, column = (offsets.ravel() for offsets in np.meshgrid(grid, grid, indexing="ij"))
    disc = row**2 + column**2 <= (radius * FINE) ** 2
    size = fine.shape[-1]
    at = np.rint(points * FINE).astype(np.int32)
    rows = np.clip(at[..., 1, None] + row[disc], 0, size - 1)
    columns = np.clip(at[..., 0, None] + column[disc], 0, size - 1)
    first = (np.arange(len(fine), dtype=np.int64) * size * size)[:, None, None]
    fine.reshape(-1)[first + rows * size + columns] = 1


def _distractors(paddles: int, count: int | None) -> int:
    return max(0, round(18 / max(1, paddles // 3)) // 2) if count is None else count


def _refuse(count: int, look: Look, tolerance: float) -> None:
    sizes = (("count", count, 1), ("size", look.size, 12), ("paddles", look.paddles, 2))
    for name, value, least in (*sizes, ("distractors", look.distractors, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise BadInput(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if not tolerance > 0:
        raise BadInput(f"tolerance must be a number of pixels above 0, got {tolerance!r}.")
