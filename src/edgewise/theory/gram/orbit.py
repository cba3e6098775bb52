"""One orbit of the Gram recursion: forward over branches, then backward, one number per site each.

The heads that stand for an average are drawn at random. What that adds to an orbit arises where blocks overwrite much
of the stream: the first ones behind a pre-norm. Orbits of several draws are therefore followed until what is left to
be overwritten is little (`settled`), and go on as one from the mean of their states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgewise.arrays import Array
from edgewise.nouns.blocks import MLP, Attention, Block, Branch
from edgewise.nouns.trace import WEIGHTS
from edgewise.theory.gram.branch import PullWeights, apply_branch, log
from edgewise.theory.gram.geometry import Geometry, Precision, Real
from edgewise.theory.gram.heads import Sampling

STATISTICS = ("logit_variance", "condensation")  # of attention layers
SETTLED = 0.05  # of the sum of squares of what blocks forget: what the blocks to come may add
Tick = Callable[[], None]


class Orbit:
    """The sites from `site` on, which is the state's own."""

    def __init__(
        self, state: Geometry, site: int, sites: int, dtype: Precision, width: int, seed: int
    ) -> None:
        self.site, self.width, self.seed = site, width, seed
        self.norm, self.separation, self.entropy, self.log_gradient = (
            np.full(sites, math.nan) for _ in range(4)
        )
        names = (*STATISTICS, "gradient_coherence", *(f"weight_gradient.{name}" for name in WEIGHTS))
        self.statistics = {name: np.full(sites, math.nan) for name in names}
        self.norm[site], self.separation[site] = state.norm, state.separation
        self.state = _fitting(state, dtype)
        self.forgotten: list[float] = []  # of every branch
        self.left_range = False
        self._pulls: list[PullWeights] = []

    def forward(self, branches: Sequence[tuple[Branch, Sampling]], tick: Tick) -> None:
        """Through these branches; a stream that explodes or vanishes on the way ends it."""
        for branch, sampling in branches:
            if self.left_range:
                return
            step = apply_branch(branch, self.state, self.width, sampling, self.seed + 2 * self.site)
            if not _in_range(step.state, sampling.dtype):
                self._leave_range(step.state)
                return
            self.site += 1
            self.norm[self.site], self.separation[self.site] = step.state.norm, step.state.separation
            self.state = _fitting(step.state, step.state.spreads.dtype)
            self.entropy[self.site] = step.statistics.get("attention_entropy", math.nan)
            for name in STATISTICS:
                self.statistics[name][self.site] = step.statistics.get(name, math.nan)
            self.forgotten.append(step.forgotten)
            self._pulls.append(step.pull)
            tick()

    def backward(self, gamma: Real, log_scale: float, tick: Tick) -> tuple[Real, float]:
        """Gamma is rescaled to a mean diagonal of 1 at every site and its logarithm summed: no depth overflows."""
        self.log_gradient[self.site] = log_scale
        self._coherence(self.site, gamma)
        for site in range(self.site, self.site - len(self._pulls), -1):
            gamma, weights = self._pulls.pop()(gamma)  # each frees its memory
            for name, value in weights.items():
                self.statistics[f"weight_gradient.{name}"][site] = log(value) + log_scale
            size = float(gamma.diagonal().mean(dtype=np.float64))
            log_scale += log(size)
            gamma = gamma * (1 / size) if size > 0 else gamma
            self.log_gradient[site - 1] = log_scale
            self._coherence(site - 1, gamma)
            tick()
        return gamma, log_scale

    def take(self, trunk: Orbit) -> None:
        """Go on as another orbit did from here: its changes, from this one's own norm and separation."""
        here, rest = self.site, slice(self.site + 1, None)
        for mine, its in ((self.norm, trunk.norm), (self.separation, trunk.separation)):
            mine[rest] = its[rest] * (mine[here] / its[here] if its[here] > 0 else 1.0)
        self.entropy[rest], self.log_gradient[rest] = trunk.entropy[rest], trunk.log_gradient[rest]
        for name, values in trunk.statistics.items():
            self.statistics[name][rest] = values[rest]
        self.left_range = trunk.left_range

    def _coherence(self, site: int, gamma: Real) -> None:
        n, diagonal = len(gamma), float(gamma.diagonal().mean(dtype=np.float64))
        if diagonal > 0:
            off = (float(gamma.sum(dtype=np.float64)) - n * diagonal) / (n * (n - 1))
            self.statistics["gradient_coherence"][site] = off / diagonal

    def _leave_range(self, beyond: Geometry) -> None:
        """An answer: norms infinite or 0 from here on, no gradient. What overflowed on the way is not a number."""
        self.left_range = True
        self.norm[self.site + 1 :] = 0.0 if beyond.norm < 1 else math.inf
        self.separation[self.site + 1 :] = self.separation[self.site]


def mean_state(orbits: Sequence[Orbit]) -> Geometry:
    """The mean of squares and spreads."""
    squares, spreads = ([getattr(o.state, name) for o in orbits] for name in ("squares", "spreads"))
    return Geometry(np.mean(squares, 0), np.mean(spreads, 0))


def settled(forgotten: Array, depth: int) -> bool:
    """Whether the blocks to come, each like the last one, add little to the squares of what was forgotten so far."""
    squares = np.square(forgotten)
    return (
        bool(np.isfinite(squares).all()) and (depth - len(squares)) * squares[-1] <= SETTLED * squares.sum()
    )


def blocks_alike(blocks: Sequence[Block]) -> bool:
    """Whether all blocks are drawn alike, but for what their tokens see."""
    return all(_bare(block) == _bare(blocks[0]) for block in blocks[1:])


def _bare(block: Block) -> list[tuple[object, ...]]:
    return [(branch.skip, branch.norm, *(_unseeing(layer) for layer in branch.layers)) for branch in block]


def _unseeing(layer: Attention | MLP) -> Attention | MLP:
    return replace(layer, window=None, rope_base=0.0) if isinstance(layer, Attention) else layer


def _fitting(state: Geometry, dtype: Precision) -> Geometry:
    """In this precision while tokens are well apart; in double, and from then on, where they are not."""
    return state.in_precision(dtype if state.roomy else np.float64)


def _in_range(state: Geometry, dtype: Precision) -> bool:
    """Whether logits, which are products of two tokens, can still be drawn in this precision."""
    largest = float(np.finfo(dtype).max) ** 0.5
    return 1 / largest < state.norm < largest
