"""Both exponents over the given depth, for a whole grid of knob values in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.architecture import Architecture
from edgewise.blocks import fold
from edgewise.errors import BadInput
from edgewise.knobs import KNOBS
from edgewise.theory.simplex import Setting, backward, forward
from edgewise.theory.state import Simplex, Step

Array = NDArray[np.float64]

NEAR = 1e-12  # separation of the pair of near tokens that is followed beside the network's own orbit
CHUNK = 2000  # points at a time: the arrays of one chunk stay in the cache


@dataclass(frozen=True)
class Exponents:
    """Log-rates per block over this depth, one entry per grid point.

    angle: of 1 - overlap along the network's own orbit; near_angle: of the separation of two near tokens (its sign is
    the phase); gradient raw and relative, towards the input; the changes are twice those of the second half of depth.
    """

    angle: Array
    near_angle: Array
    gradient: Array
    relative_gradient: Array
    angle_change: Array
    gradient_change: Array
    overlap: Array

    @classmethod
    def concatenate(cls, parts: list[Exponents]) -> Exponents:
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def evaluate(
    architecture: Architecture, changed: Mapping[str, Array], readout: str = "token", start_overlap: float = 0.0
) -> Exponents:
    """Exponents of `architecture` with some real-valued knobs replaced by arrays of one common length."""
    refuse_structural(changed)
    count = len(next(iter(changed.values())))
    parts = []
    for low in range(0, count, CHUNK):
        chunk = {name: np.asarray(values, float)[low : low + CHUNK] for name, values in changed.items()}
        parts.append(_chunk(architecture, chunk, readout, start_overlap))
    return Exponents.concatenate(parts)


def refuse_structural(names: Mapping[str, Any]) -> None:
    """Only real-valued knobs can be arrays."""
    for name in names:
        if KNOBS[name].kind != "number" or name == "rope_base":
            allowed = ", ".join(k for k, knob in KNOBS.items() if knob.kind == "number" and k != "rope_base")
            raise BadInput(f"{name} cannot vary continuously; choose among {allowed}.")


def _chunk(
    architecture: Architecture, changed: Mapping[str, Array], readout: str, start_overlap: float
) -> Exponents:
    knobs: dict[str, Any] = architecture.knobs() | dict(changed)
    size = len(next(iter(changed.values())))
    q = np.broadcast_to(np.asarray(knobs["embedding_norm"], float), (size,)).copy()
    setting = Setting(architecture.tokens, architecture.width)
    blocks = fold(knobs)
    own = list(forward(blocks, Simplex(q, q * (1 - start_overlap)), setting))
    near = None
    for near in forward(blocks, Simplex(q, q * NEAR), setting):
        pass
    assert near is not None
    return _rates(architecture.depth, q, 1 - start_overlap, own, near, readout)


def _rates(depth: int, q: Array, separation: float, own: list[Step], near: Step, readout: str) -> Exponents:
    half, per_block = depth // 2, len(own) // depth
    logs = [g for _, g in backward(own, readout)][::-1]  # before each step
    middle = own[half * per_block - 1].state if half else Simplex(q, q * separation)
    last, doubled = own[-1].state, depth / (depth - half)
    with np.errstate(divide="ignore", invalid="ignore"):
        angle = np.log(last.separation / separation) / depth
        near_angle = np.log(near.state.separation / NEAR) / depth
        angle_change = np.log(last.separation / middle.separation) * doubled
        gradient_change = (logs[half * per_block] + np.log(middle.norm / last.norm)) * doubled
        relative = (logs[0] + np.log(q / last.norm)) / depth
    return Exponents(
        angle, near_angle, logs[0] / depth, relative, angle_change, gradient_change, 1 - last.separation
    )
