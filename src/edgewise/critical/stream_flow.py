"""The flow of (norm, overlap) under one block, on which order and chaos can be seen, and the maps of a perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import LARGEST, Array
from edgewise.critical.asymptotics import BlockMap, asymptotics
from edgewise.errors import BadInput
from edgewise.files import Document
from edgewise.models.describe import describe
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.verdict import FixedPoint
from edgewise.theory.perceptron.maps import PerceptronMaps
from edgewise.theory.simplex.state import Setting, SimplexState
from edgewise.theory.simplex.step import step

Range = tuple[float, float, int]  # low, high, number of points


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

    def json(self) -> Document:
        names = ("norm", "overlap", "d_log_norm", "d_overlap")
        data: Document = {name: getattr(self, name).tolist() for name in names}
        data["fixed_points"] = [point.json() for point in self.fixed_points]
        data["trajectories"] = [orbit.tolist() for orbit in self.trajectories]
        return data


def vector_field(
    source: object,
    *,
    norms: Range = (0.1, 10.0, 21),
    overlaps: Range = (0.0, 0.99, 21),
    starts: Sequence[float] = (0.0, 0.3, 0.6, 0.9),
) -> VectorField:
    """Compute the flow of (norm, overlap) under the last block, its fixed points and the network's own orbits.

    source    a transformer without a special position (no mask, window, RoPE, ALiBi), from any source
    norms     (low, high, points) of the mean square per coordinate, spaced by ratio
    overlaps  (low, high, points) of the mean cosine
    starts    overlaps from which the network's own orbit is followed

    >>> vector_field({"depth": 6, "tokens": 16}, norms=(0.5, 2.0, 3), overlaps=(0.0, 0.9, 4)).d_overlap.shape
    (4, 3)
    """
    architecture = describe(source)
    if not isinstance(architecture, Architecture):
        raise BadInput("this needs a transformer; for a perceptron use edgewise.critical.perceptron_maps.")
    if not architecture.symmetric:
        raise BadInput(
            "the plane (norm, overlap) describes networks without a special position; this one has a causal mask, "
            "window, RoPE or ALiBi. Use architecture.replace(causal=False, window=None, rope=False, alibi=False)."
        )
    norm, overlap = np.geomspace(*norms), np.linspace(*overlaps)
    d_log_norm, d_overlap = displacement(architecture, norm, overlap)
    return VectorField(
        norm=norm,
        overlap=overlap,
        d_log_norm=d_log_norm,
        d_overlap=d_overlap,
        fixed_points=list(asymptotics(architecture).fixed_points),
        trajectories=orbits(architecture, tuple(starts)),
        architecture=architecture,
    )


def perceptron_maps(source: object) -> PerceptronMaps:
    """Return length and correlation maps, limits, orbits, circles and the edge of chaos of one random perceptron.

    source  a Perceptron, a dict of its knobs, or "mlp:ACTIVATION"

    >>> round(perceptron_maps("mlp:tanh").limits.chi_1, 2) > 0
    True
    """
    network = describe(source)
    if not isinstance(network, Perceptron):
        raise BadInput(
            'perceptron_maps takes a perceptron, got a transformer. Give a Perceptron or "mlp:tanh".'
        )
    return PerceptronMaps(network)


def displacement(
    architecture: Architecture, norm: Array, overlap: Array, tabulated: bool = False
) -> tuple[Array, Array]:
    """Return changes of log norm and overlap by the last block, each (overlap, norm).

    tabulated: nan where logits are beyond the moment table, in place of a quadrature for each.
    """
    block = BlockMap.of(architecture)
    q, c = np.meshgrid(norm, overlap)
    inside = q <= block.tabulated_norms(1 - c, LARGEST) if tabulated else np.ones(q.shape, bool)
    after, separation = (np.full(q.shape, np.nan) for _ in range(2))
    if inside.any():
        after[inside], separation[inside] = block(q[inside], 1 - c[inside])
    with np.errstate(divide="ignore"):  # a stream of norm zero has fallen by all of it
        return np.log(after / q), (1 - c) - separation


def orbits(
    architecture: Architecture,
    starts: Sequence[float],
    norms: Sequence[float] | None = None,
    tabulated: bool = False,
) -> list[Array]:
    """[norm, overlap] at the input and after every block, from several overlaps at once, each (depth + 1, 2).

    norms: one per start, in place of the network's own.
    A stream that leaves the range of numbers has the norm 0 or inf from there, and keeps its overlap; with `tabulated`
    one whose logits leave the moment table has the norm nan.
    """
    norm = np.broadcast_to(architecture.embedding_norm if norms is None else norms, len(starts)).astype(float)
    state = SimplexState(norm, norm * (1 - np.asarray(starts, dtype=float)))
    lost, end = np.zeros(len(starts), bool), norm
    setting, points = Setting(architecture.tokens, architecture.width), [_point(state, lost, end)]
    for block in architecture.blocks:
        if tabulated:
            sharp = ~lost & ~(
                state.norm <= BlockMap(block, setting).tabulated_norms(state.separation, LARGEST)
            )
            lost, end = lost | sharp, np.where(sharp, np.nan, end)
            # Flat attention.
            state = SimplexState(np.where(sharp, 1.0, state.norm), np.where(sharp, 0.0, state.difference))
        for branch in block:
            with np.errstate(all="ignore"):
                after = step(state, branch, setting).state
            leaves = ~lost & ~((after.norm > 1 / LARGEST) & (after.norm < LARGEST))
            end = np.where(leaves, np.where(after.norm < 1, 0.0, np.inf), end)
            lost = lost | leaves
            # States that are lost continue from where they were; they are not inspected again.
            state = SimplexState(*(np.where(lost, now, then) for now, then in zip(state, after, strict=True)))
        points.append(_point(state, lost, end))
    return list(np.stack(points, axis=1))


def _point(state: SimplexState, lost: NDArray[np.bool_], end: Array) -> Array:
    return np.stack([np.where(lost, end, state.norm), 1 - state.separation], axis=-1)
