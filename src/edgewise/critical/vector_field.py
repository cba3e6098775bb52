"""The flow of (norm, overlap) under one block: the plane on which order and chaos can be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewise.architecture import Architecture
from edgewise.arrays import Array
from edgewise.critical.asymptotics import asymptotics
from edgewise.critical.block_map import BlockMap
from edgewise.errors import BadInput
from edgewise.theory.simplex.recursion import propagate_simplex
from edgewise.verdict import FixedPoint


@dataclass(frozen=True, eq=False)
class VectorField:
    """Change per block on a grid, (overlap, norm) arrays, with fixed points and orbits [norm, overlap]."""

    norm: Array
    overlap: Array
    d_log_norm: Array
    d_overlap: Array
    fixed_points: list[FixedPoint]
    trajectories: list[Array]
    architecture: Architecture

    def json(self) -> dict[str, Any]:
        names = ("norm", "overlap", "d_log_norm", "d_overlap")
        data: dict[str, Any] = {name: getattr(self, name).tolist() for name in names}
        data["fixed_points"] = [point.json() for point in self.fixed_points]
        data["trajectories"] = [orbit.tolist() for orbit in self.trajectories]
        return data


def flow(
    architecture: Architecture,
    norms: tuple[float, float, int] = (0.1, 10.0, 21),
    overlaps: tuple[float, float, int] = (0.0, 0.99, 21),
    starts: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9),
) -> VectorField:
    """Evaluate the last block on the grid (norms spaced by ratio) and follow the network from several overlaps."""
    if not architecture.symmetric:
        raise BadInput(
            "the plane (norm, overlap) describes networks without a special position; this one has a causal mask, "
            "window, RoPE or ALiBi. Use architecture.replace(causal=False, window=None, rope=False, alibi=False)."
        )
    norm, overlap = np.geomspace(*norms), np.linspace(*overlaps)
    q, c = np.meshgrid(norm, overlap)
    after, separation = BlockMap.of(architecture)(q, 1 - c)
    return VectorField(
        norm=norm,
        overlap=overlap,
        d_log_norm=np.log(after / q),
        d_overlap=(1 - c) - separation,
        fixed_points=list(asymptotics(architecture).fixed_points),
        trajectories=[_orbit(architecture, start) for start in starts],
        architecture=architecture,
    )


def _orbit(architecture: Architecture, start: float) -> Array:
    trace = propagate_simplex(architecture, start)
    return np.stack([trace.blocks("norm"), trace.blocks("overlap")], axis=1)
