"""Tokens (one near copy, one opposite, lengths that differ) and the small network the Gram tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.nouns.architecture import Architecture, transformer
from edgewise.theory.gram.state import GramState


def tokens(seed: int = 0, spread: float = 1.0) -> Array:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((6, 8)) / np.sqrt(8)
    x[3] = 1.2 * x[2] + 1e-4 * x[3]
    x[5] = -0.9 * x[4] + 0.1 * x[5]
    return np.asarray(x * np.exp(generator.uniform(-spread, spread, (6, 1))))


def geometry(x: Array) -> GramState:
    return GramState((x**2).sum(-1), ((x[:, None] - x) ** 2).sum(-1) / 2)


def small(**knobs: Any) -> Architecture:
    shape: dict[str, Any] = {"depth": 2, "tokens": 12, "width": 64, "heads": 2, "causal": True, "rope": True}
    return transformer(**(shape | knobs))
