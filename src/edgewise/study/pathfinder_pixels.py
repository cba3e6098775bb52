"""Pathfinder's points as pixels: stamped on a grid four times finer, then averaged down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgewise.study.pathfinder_curves import Look

Array = NDArray[np.float64]
FINE = 4  # fine pixels along a pixel
DASH_RADIUS, DOT_RADIUS = 0.45, 1.4  # in pixels
CHUNK = 1024  # images at a time


def render(
    points: Array, dots: Array, look: Look, progress: Callable[[float], None] | None = None
) -> NDArray[np.float32]:
    """Images in [0, 1] from points (m, a, 2) of dashes and dots (m, 2, 2)."""
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
