"""Standard normal numbers that depend on a seed alone: words of SFC64 [Doty-Humphrey 2018] and Box-Muller."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 2**14  # numbers whose work arrays stay in the cache; even


class Normals:
    """Draws in single or double precision; the same seed gives the same numbers."""

    def __init__(self, seed: int) -> None:
        self._words = np.random.SFC64(seed)

    def uniform(self, size: int, dtype: Any = np.float32) -> NDArray[Any]:
        """In [0, 1): 24 bits of half a word, or 53 of one."""
        if dtype == np.float32:
            halves = self._draw((size + 1) // 2).view(np.uint32)[:size]
            return (halves >> np.uint32(8)).view(np.int32).astype(np.float32) * np.float32(2.0**-24)
        return (self._draw(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, *shape: int, dtype: Any = np.float32) -> NDArray[Any]:
        """Independent normal numbers of this shape."""
        size = math.prod(shape)
        values = np.empty(size + size % 2, dtype)
        for first in range(0, size, CHUNK):
            part = values[first : first + CHUNK]
            _box_muller(self.uniform(part.size, dtype), part)
        return values[:size].reshape(shape)

    def _draw(self, size: int) -> NDArray[np.uint64]:
        return np.asarray(self._words.random_raw(size), np.uint64)


def _box_muller(uniform: NDArray[Any], out: NDArray[Any]) -> None:
    """r cos(a), r sin(a) with r = sqrt(-2 log(1 - u)), a = 2 pi u'."""
    radius, angle = uniform.reshape(2, -1)
    np.log(np.subtract(1, radius, out=radius), out=radius)
    np.sqrt(np.multiply(radius, -2, out=radius), out=radius)
    angle *= 2 * math.pi
    first, second = out.reshape(2, -1)
    np.multiply(np.cos(angle, out=first), radius, out=first)
    np.multiply(np.sin(angle, out=second), radius, out=second)
