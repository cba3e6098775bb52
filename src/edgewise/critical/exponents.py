"""Both exponents over the given depth, for a whole grid of knob values in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import LARGEST, Array
from edgewise.errors import BadInput, OutOfBudget, SearchBudget
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Block, fold
from edgewise.nouns.knobs import KNOBS
from edgewise.theory.predict import predict_transformer
from edgewise.theory.simplex.drive import pull_back
from edgewise.theory.simplex.state import Gradient, Setting, SimplexState, SimplexStep
from edgewise.theory.simplex.step import step
from edgewise.theory.softmax.moments import LARGEST_VARIANCE

NEAR = 1e-12  # separation of the pair of near tokens that is followed beside the network's own orbit
EFFORT = 15.0  # estimated seconds of integrals for one diagram or critical point
CHUNK = 2000  # points at a time: the arrays of one chunk stay in the cache


@dataclass(frozen=True)
class Exponents:
    """Log-rates per block over this depth, one entry per grid point.

    angle: of 1 - overlap along the network's own orbit; gradient raw and relative, towards the input; the changes are
    twice those of the second half of depth. near_angle and near_gradient are those of nearly identical tokens, whose
    signs are the phase [Cowsik 2024]: their separation, and the relative gradient of a readout they share.
    """

    angle: Array
    near_angle: Array
    near_gradient: Array
    gradient: Array
    relative_gradient: Array
    angle_change: Array
    gradient_change: Array
    overlap: Array

    def without(self, lost: NDArray[np.bool_]) -> Exponents:
        """Not a number at the points whose stream left the range of numbers."""
        return Exponents(
            **{name: np.where(lost, np.nan, getattr(self, name)) for name in self.__dataclass_fields__}
        )

    @classmethod
    def concatenate(cls, parts: list[Exponents]) -> Exponents:
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@contextmanager
def within_reach() -> Iterator[SearchBudget]:
    """Yield a budget; raise `BadInput` if points beyond the table of softmax moments exceed it."""
    try:
        yield SearchBudget(EFFORT)
    except OutOfBudget as cause:
        raise BadInput(
            f"attention is nearly hard here (logits of variance above {LARGEST_VARIANCE:g}): each such state is an "
            f"integral of its own, and those that are needed take more than {EFFORT:g} s. Use a smaller score_gain or "
            "a smaller range of knobs, or norms that keep the stream from growing."
        ) from cause


def evaluate(
    architecture: Architecture,
    changed: Mapping[str, Array],
    readout: str = "token",
    start_overlap: float = 0.0,
    budget: SearchBudget | None = None,
) -> Exponents:
    """Compute the exponents of `architecture` with some real-valued knobs replaced by arrays of one common length."""
    refuse_structural(changed)
    count = len(next(iter(changed.values())))
    parts = []
    for low in range(0, count, CHUNK):
        chunk = {name: np.asarray(values, float)[low : low + CHUNK] for name, values in changed.items()}
        # The own and the near orbit of every point go through the blocks side by side, in one array.
        doubled = {name: np.concatenate([values, values]) for name, values in chunk.items()}
        knobs: dict[str, Any] = architecture.knobs() | doubled
        size = len(next(iter(chunk.values())))
        q = np.broadcast_to(np.asarray(knobs["embedding_norm"], float), (2 * size,))
        separation = np.repeat([1 - start_overlap, NEAR], size)
        setting = Setting(architecture.tokens, architecture.width, budget=budget)
        steps, lost = follow_grid(fold(knobs), SimplexState(q, q * separation), setting)
        shared = np.repeat([float(readout == "pooled"), 1.0], size)
        logs = [log for _, log in pull_back(steps, Gradient(np.ones(2 * size), shared))][::-1]
        rates = _rates(architecture.depth, SimplexState(q, q * separation), steps, logs, size)
        parts.append(rates.without(lost[:size] | lost[size:]))
    return Exponents.concatenate(parts)


def totals(
    architecture: Architecture,
    readout: str = "token",
    start_overlap: float = 0.0,
    budget: SearchBudget | None = None,
) -> tuple[float, float]:
    """Log-changes over the whole depth (angle, relative gradient) by the theory that fits: with mask and positions.

    `evaluate` leaves both out: it is for many points at once. A number reported for one network comes from here.
    """
    trace = predict_transformer(architecture, start_overlap=start_overlap, readout=readout, budget=budget)
    return trace.total_changes(readout)


def refuse_structural(names: Mapping[str, object]) -> None:
    """Only real-valued knobs can be arrays."""
    for name in names:
        if KNOBS[name].kind != "number" or name == "rope_base":
            allowed = ", ".join(k for k, knob in KNOBS.items() if knob.kind == "number" and k != "rope_base")
            raise BadInput(f"{name} cannot vary continuously; choose among {allowed}.")


def follow_grid(
    blocks: Sequence[Block], start: SimplexState, setting: Setting
) -> tuple[list[SimplexStep], NDArray[np.bool_]]:
    """Return every branch's step, and which points left the range of numbers: their states are those of the start."""
    steps, state, lost = [], start, np.zeros(np.shape(start.norm), bool)
    for branch in (branch for block in blocks for branch in block):
        with np.errstate(over="ignore", invalid="ignore"):
            after = step(state, branch, setting)
        lost |= ~((after.state.norm > 1 / LARGEST) & (after.state.norm < LARGEST))
        state = SimplexState(
            *(np.where(lost, first, now) for first, now in zip(start, after.state, strict=True))
        )
        steps.append(replace(after, state=state))
    return steps, lost


def _rates(
    depth: int, start: SimplexState, steps: list[SimplexStep], logs: list[Array], size: int
) -> Exponents:
    """Exponents from the states after every step and the log gradients before it; own orbits first, near ones after."""
    half, per_block = depth // 2, len(steps) // depth
    middle = steps[half * per_block - 1].state if half else start
    last, twice = steps[-1].state, depth / (depth - half)
    with np.errstate(divide="ignore", invalid="ignore"):
        angle = np.log(last.separation / start.separation) / depth
        relative = (logs[0] + np.log(start.norm / last.norm)) / depth
        angle_change = np.log(last.separation / middle.separation) * twice
        gradient_change = (logs[half * per_block] + np.log(middle.norm / last.norm)) * twice
    own, near = slice(None, size), slice(size, None)
    return Exponents(
        angle=angle[own],
        near_angle=angle[near],
        near_gradient=relative[near],
        gradient=logs[0][own] / depth,
        relative_gradient=relative[own],
        angle_change=angle_change[own],
        gradient_change=gradient_change[own],
        overlap=1 - last.separation[own],
    )
