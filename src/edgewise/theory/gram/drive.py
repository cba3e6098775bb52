"""The Gram recursion, token by token: for masks, positions and measured inputs, when tokens are not alike.

State C_ab = x_a.x_b / d forward, Gamma_ab = g_a.g_b backward; the stream's width never appears. Attention is averaged
over sampled heads of the real head width, so every number has a sampling error: the spread over `draws`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.errors import BadInput, SearchBudget
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import ResidualBranch
from edgewise.nouns.trace import WEIGHTS, Provenance, Trace, check_readout
from edgewise.theory.gram.heads import (
    SampledBlock,
    Sampling,
    affordable,
    blocks_alike,
    choose_sampling,
    settled,
    with_heads,
)
from edgewise.theory.gram.state import GramState, Precision, Real, from_overlaps, simplex
from edgewise.theory.gram.step import PullWeights, log, step

Progress = Callable[[float], None]
Tick = Callable[[], None]
STOPPED = ", stopped at the block whose stream overflows"
STATISTICS = ("logit_variance", "condensation")  # of attention layers


def propagate_gram(
    architecture: Architecture,
    *,
    start: ArrayLike | None = None,
    start_overlap: float = 0.0,
    readout: str = "token",
    samples: int | None = None,
    draws: int = 2,
    seed: int = 0,
    dtype: Precision = np.float32,
    progress: Progress | None = None,
    budget: SearchBudget | None = None,
) -> Trace:
    """Predict a transformer, token by token; the seed axis of the Trace holds the independent draws.

    start      (n, n) input Gram matrix x_a.x_b / width; a simplex of `start_overlap` unless given
    readout    token: independent output gradients; pooled: one shared by all tokens
    samples    heads drawn per attention layer; 1 to 32 by length, depth and variance of the scores unless given, more
               in the first blocks, and draws are merged once sampling noise is negligible
    progress   called with the fraction done
    budget     from which the estimated cost is taken before anything is computed
    """
    _check(readout, samples, draws, seed, dtype)
    sampling = choose_sampling(architecture, samples, dtype)
    head_width = architecture.head_width if architecture.heads else 0
    cost = affordable(architecture.tokens, architecture.depth, draws, sampling, head_width)
    if budget is not None:
        budget.spend(cost.seconds)
    first = _start(architecture, start, start_overlap)
    gamma = np.ones((first.tokens, first.tokens)) if readout == "pooled" else np.eye(first.tokens)
    seeds = [(seed << 32) + (draw << 24) for draw in range(draws)]
    may_join = samples is None and draws > 1 and blocks_alike(architecture.blocks)
    blocks = with_heads(architecture, sampling, more=may_join)
    runs = _orbits(architecture, first, gamma, blocks, seeds, may_join, progress)
    few, last = (block[0][1].samples for block in (blocks[0], blocks[-1]))
    heads = f"{last} {'head' if last == 1 else 'heads'}" if few == last else f"{few}, then {last} heads"
    return _trace(architecture, runs, readout, heads)


def _trace(architecture: Architecture, runs: Sequence[GramOrbit], readout: str, heads: str) -> Trace:
    left = any(run.left_range for run in runs)  # then no gradient was followed
    source = f"theory: gram recursion, {heads} x {len(runs)} draws"
    return Trace(
        sites=architecture.sites(),
        norm=np.array([run.norm for run in runs]),
        separation=np.array([run.separation for run in runs]),
        readouts=() if left else (readout,),
        log_gradient=None if left else np.array([[run.log_gradient for run in runs]]),
        attention_entropy=np.array([run.entropy for run in runs])[..., None],
        statistics={name: np.array([run.statistics[name] for run in runs]) for name in runs[0].statistics},
        architecture=architecture,
        provenance=Provenance(source + (STOPPED if left else "")),
    )


def _orbits(
    architecture: Architecture,
    first: GramState,
    gamma: Array,
    blocks: Sequence[SampledBlock],
    seeds: Sequence[int],
    may_join: bool,
    progress: Progress | None,
) -> list[GramOrbit]:
    """One orbit per seed: apart through the blocks in which chance matters, then as one, and all the way back."""
    sites, branches = len(architecture.sites()), [pair for block in blocks for pair in block]
    dtype, width = branches[0][1].dtype, architecture.width
    steps = _Steps(2 * len(branches) * len(seeds), progress)
    orbits = [GramOrbit(first, 0, sites, dtype, width, seed) for seed in seeds]
    apart = _until_settled(orbits[0], blocks, may_join, steps.tick)
    for orbit in orbits[1:]:
        orbit.follow(branches[:apart], steps.tick)
    log_scale = 0.0
    if apart == len(branches) or any(orbit.left_range for orbit in orbits):
        for orbit in orbits:
            orbit.follow(branches[apart:], steps.tick)
    else:
        steps.leave_out(2 * (len(branches) - apart) * (len(seeds) - 1))
        squares, spreads = ([getattr(o.state, name) for o in orbits] for name in ("squares", "spreads"))
        mean = GramState(np.mean(squares, 0), np.mean(spreads, 0))
        trunk = GramOrbit(mean, apart, sites, dtype, width, seeds[0] + (1 << 23))
        trunk.follow(branches[apart:], steps.tick)
        if not trunk.left_range:
            gamma, log_scale = trunk.pull_back(gamma.astype(trunk.state.spreads.dtype), log_scale, steps.tick)
        for orbit in orbits:
            orbit.take(trunk)
    if not any(orbit.left_range for orbit in orbits):
        for orbit in orbits:
            orbit.pull_back(gamma.astype(orbit.state.spreads.dtype), log_scale, steps.tick)
    return orbits


def _until_settled(
    orbit: GramOrbit, blocks: Sequence[SampledBlock], may_join: bool, tick: Callable[[], None]
) -> int:
    """Forward, block by block, until chance hardly matters any more or to the end: the number of branches."""
    forgotten = []
    for block in blocks:
        orbit.follow(block, tick)
        forgotten.append(sum(orbit.forgotten[-len(block) :]))
        if may_join and settled(np.array(forgotten), len(blocks)):
            break
    return len(orbit.forgotten)


class _Steps:
    """How much of the work is done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.done, self.progress = total, 0, progress

    def leave_out(self, steps: int) -> None:
        self.total -= steps

    def tick(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done / self.total)


def _check(readout: str, samples: int | None, draws: int, seed: int, dtype: Precision) -> None:
    check_readout(readout)
    if dtype not in (np.float32, np.float64):
        raise BadInput(f"dtype must be numpy.float32 or numpy.float64, got {dtype}.")
    for name, value, least in (("samples", samples, 1), ("draws", draws, 1), ("seed", seed, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise BadInput(f"{name} must be a whole number of at least {least}, got {value!r}.")


def _start(architecture: Architecture, start: Any, overlap: float) -> GramState:
    n = architecture.tokens
    if start is None:
        lowest = -1.0 / (n - 1)
        if not lowest <= overlap <= 1.0:
            raise BadInput(f"start_overlap must lie between {lowest:g} and 1, got {overlap!r}.")
        return simplex(n, architecture.embedding_norm, overlap)
    if overlap:
        raise BadInput("give start or start_overlap, not both: the start has its own overlap.")
    plain = start.detach().cpu() if hasattr(start, "detach") else start  # a tensor may carry a gradient
    try:
        gram = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise BadInput(
            f"a start of type {type(start).__name__} cannot be read as a matrix of numbers ({cause}). Give a Trace, or "
            "a Gram matrix x_a.x_b / width of shape (tokens, tokens)."
        ) from cause
    if gram.shape != (n, n):
        raise BadInput(f"the start Gram matrix has shape {gram.shape}; the architecture needs {(n, n)}.")
    return from_overlaps(gram)


class GramOrbit:
    """One draw: forward over branches, then backward; a number per site each, from `site` on, the state's own."""

    def __init__(
        self, state: GramState, site: int, sites: int, dtype: Precision, width: int, seed: int
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

    def follow(self, branches: Sequence[tuple[ResidualBranch, Sampling]], tick: Tick) -> None:
        """Send the state through these branches; a stream that explodes or vanishes on the way ends it."""
        for branch, sampling in branches:
            if self.left_range:
                return
            after = step(self.state, branch, self.width, sampling, self.seed + 2 * self.site)
            largest = float(np.finfo(sampling.dtype).max) ** 0.5
            if not 1 / largest < after.state.norm < largest:  # logits are products of two tokens
                # An answer: norms infinite or 0 from here on, no gradient. What overflowed is not a number.
                self.left_range = True
                self.norm[self.site + 1 :] = 0.0 if after.state.norm < 1 else math.inf
                self.separation[self.site + 1 :] = self.separation[self.site]
                return
            self.site += 1
            self.norm[self.site], self.separation[self.site] = after.state.norm, after.state.separation
            self.state = _fitting(after.state, after.state.spreads.dtype)
            self.entropy[self.site] = after.statistics.get("attention_entropy", math.nan)
            for name in STATISTICS:
                self.statistics[name][self.site] = after.statistics.get(name, math.nan)
            self.forgotten.append(after.forgotten)
            self._pulls.append(after.pull)
            tick()

    def pull_back(self, gamma: Real, log_scale: float, tick: Tick) -> tuple[Real, float]:
        """Pull Gamma back, rescaled to a mean diagonal of 1 at every site its logarithm summed: no depth overflows."""
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

    def take(self, trunk: GramOrbit) -> None:
        """Continue as another orbit did from here: its changes, from this one's own norm and separation."""
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


def _fitting(state: GramState, dtype: Precision) -> GramState:
    """In this precision while tokens are well apart; in double, and from then on, if they are not."""
    return state.in_precision(dtype if state.roomy else np.float64)
