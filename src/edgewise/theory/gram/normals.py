"""Standard normal numbers that depend on a seed alone: Mersenne Twister [Matsumoto 1998] and Box-Muller.

The stream is that of torch.randn on a CPU, so that results do not depend on which of the two drew them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

RUN = 16  # eight radii, then eight angles
CHUNK = 2**14  # numbers whose work arrays stay in the cache


class Normals:
    """Draws in single or double precision; the same seed gives the same numbers."""

    def __init__(self, seed: int) -> None:
        self._words = np.random.RandomState(seed & 0xFFFFFFFF)

    def uniform(self, size: int, dtype: Any = np.float32) -> NDArray[Any]:
        """In [0, 1): 24 bits of one word, or 53 of two."""
        if dtype == np.float32:
            return (self._draw(size) & 0xFFFFFF).astype(np.float32) * np.float32(2.0**-24)
        high, low = self._draw(2 * size).reshape(size, 2).astype(np.uint64).T
        return (((high << np.uint64(32)) | low) & np.uint64(2**53 - 1)).astype(np.float64) * 2.0**-53

    def normal(self, *shape: int, dtype: Any = np.float32) -> NDArray[Any]:
        """Independent normal numbers of this shape."""
        size = math.prod(shape)
        whole = size - size % RUN
        values = np.empty(max(size, RUN), dtype)
        for first in range(0, whole, CHUNK):
            part = values[first : min(first + CHUNK, whole)]
            _box_muller(self.uniform(part.size, dtype), part)
        if size % RUN:  # what is left over is passed by, and the last sixteen are drawn again
            self.uniform(size % RUN, dtype)
            _box_muller(self.uniform(RUN, dtype), values[-RUN:])
        return values[:size].reshape(shape)

    def _draw(self, size: int) -> NDArray[np.uint32]:
        return np.asarray(self._words.randint(0, 2**32, size, np.uint32))


def _box_muller(uniform: NDArray[Any], out: NDArray[Any]) -> None:
    """radius cos(angle), radius sin(angle) with radius = sqrt(-2 log(1 - u)), angle = 2 pi u'."""
    u, pairs = uniform.reshape(-1, 2, RUN // 2), out.reshape(-1, 2, RUN // 2)
    radius, angle = np.ascontiguousarray(u[:, 0]), np.ascontiguousarray(u[:, 1])  # strided runs of eight are slow
    np.log(np.subtract(1, radius, out=radius), out=radius)
    np.sqrt(np.multiply(radius, -2, out=radius), out=radius)
    angle *= 2 * math.pi
    pairs[:, 0] = np.cos(angle) * radius
    pairs[:, 1] = np.sin(angle) * radius
