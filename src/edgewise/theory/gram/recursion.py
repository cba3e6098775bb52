"""The Gram recursion, token by token: for masks, positions and measured inputs, where tokens are not alike.

State C_ab = x_a.x_b / d forward, Gamma_ab = g_a.g_b backward; the stream's width never appears. Attention is averaged
over sampled heads of the real head width, so every number has a sampling error: the spread over `draws`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.effort import spend
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Branch
from edgewise.nouns.trace import Trace
from edgewise.theory.gram.cost import affordable
from edgewise.theory.gram.geometry import Geometry, Precision, from_overlaps, simplex
from edgewise.theory.gram.heads import Sampling
from edgewise.theory.gram.orbit import Orbit, blocks_alike, mean_state, settled
from edgewise.theory.start import refuse_readout, refuse_two_starts

Progress = Callable[[float], None]
Heads = list[tuple[Branch, Sampling]]

MOST = 32  # heads drawn per layer
FIRST, MORE = 2, 4  # blocks that get more heads, and how many times as many
LONG = 128  # tokens from which the number of heads matters
HELD = (
    5e8  # bytes of attention probabilities held between forward and backward; above it they are drawn again
)


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
) -> Trace:
    """The orbit of a transformer, token by token; the seed axis of the Trace holds the independent draws.

    start      (n, n) input Gram matrix x_a.x_b / width; a simplex of `start_overlap` unless given
    readout    token: independent output gradients; pooled: one shared by all tokens
    samples    heads drawn per attention layer; 1 to 32 by length, depth and variance of the scores unless given, more
               in the first blocks, and the draws go on as one where chance hardly matters any more
    progress   called with the fraction done
    """
    _refuse(readout, samples, draws, seed, dtype)
    sampling = _sampling(architecture, samples, dtype)
    head_width = architecture.head_width if architecture.heads else 0
    spend(affordable(architecture.tokens, architecture.depth, draws, sampling, head_width).seconds)
    first = _start(architecture, start, start_overlap)
    seeds = [(seed << 32) + (draw << 24) for draw in range(draws)]
    may_join = samples is None and draws > 1 and blocks_alike(architecture.blocks)
    blocks = _with_heads(architecture, sampling, more=may_join)
    runs = _orbits(
        architecture, first, _output_gradient(first.tokens, readout), blocks, seeds, may_join, progress
    )
    left = any(run.left_range for run in runs)  # then no gradient was followed
    source = f"theory: gram recursion, {_heads_of(blocks)} x {draws} draws"
    return Trace(
        sites=architecture.sites(),
        source=source + (", stopped where the stream leaves the range of numbers" if left else ""),
        norm=np.array([run.norm for run in runs]),
        separation=np.array([run.separation for run in runs]),
        readouts=() if left else (readout,),
        log_gradient=None if left else np.array([[run.log_gradient for run in runs]]),
        attention_entropy=np.array([run.entropy for run in runs])[..., None],
        statistics={name: np.array([run.statistics[name] for run in runs]) for name in runs[0].statistics},
        architecture=architecture,
    )


def _orbits(
    architecture: Architecture,
    first: Geometry,
    gamma: Array,
    blocks: Sequence[Heads],
    seeds: Sequence[int],
    may_join: bool,
    progress: Progress | None,
) -> list[Orbit]:
    """One orbit per seed: apart through the blocks in which chance matters, then as one, and all the way back."""
    sites, branches = len(architecture.sites()), [pair for block in blocks for pair in block]
    dtype, width = branches[0][1].dtype, architecture.width
    steps = _Steps(2 * len(branches) * len(seeds), progress)
    orbits = [Orbit(first, 0, sites, dtype, width, seed) for seed in seeds]
    apart = _follow(orbits[0], blocks, may_join, steps.tick)
    for orbit in orbits[1:]:
        orbit.forward(branches[:apart], steps.tick)
    log_scale = 0.0
    if apart == len(branches) or any(orbit.left_range for orbit in orbits):
        for orbit in orbits:
            orbit.forward(branches[apart:], steps.tick)
    else:
        steps.leave_out(2 * (len(branches) - apart) * (len(seeds) - 1))
        trunk = Orbit(mean_state(orbits), apart, sites, dtype, width, seeds[0] + (1 << 23))
        trunk.forward(branches[apart:], steps.tick)
        if not trunk.left_range:
            gamma, log_scale = trunk.backward(gamma.astype(trunk.state.spreads.dtype), log_scale, steps.tick)
        for orbit in orbits:
            orbit.take(trunk)
    if not any(orbit.left_range for orbit in orbits):
        for orbit in orbits:
            orbit.backward(gamma.astype(orbit.state.spreads.dtype), log_scale, steps.tick)
    return orbits


def _with_heads(architecture: Architecture, sampling: Sampling, more: bool) -> list[Heads]:
    """The branches of every block with the heads that are drawn for them: more in the first blocks, if asked for."""
    count, long = sampling.samples, architecture.tokens >= LONG
    first = replace(sampling, samples=max(count, min(MOST, MORE * count))) if more else sampling
    rest = replace(sampling, samples=max(1, count // 2)) if more and long else sampling
    return [
        [(branch, first if number < FIRST else rest) for branch in block]
        for number, block in enumerate(architecture.blocks)
    ]


def _heads_of(blocks: Sequence[Heads]) -> str:
    first, last = (block[0][1].samples for block in (blocks[0], blocks[-1]))
    return f"{last} {'head' if last == 1 else 'heads'}" if first == last else f"{first}, then {last} heads"


def _follow(orbit: Orbit, blocks: Sequence[Heads], may_join: bool, tick: Callable[[], None]) -> int:
    """Forward, block by block, until chance hardly matters any more or to the end: the number of branches."""
    forgotten = []
    for block in blocks:
        orbit.forward(block, tick)
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


def default_samples(tokens: int, depth: int) -> int:
    """Heads per layer that bring exponents to about 0.001, and to 0.005 where attention is sharp.

    Rows average as heads do; noise of the first layers is divided by the depth, noise of all by its root. Short
    sequences cost little and get four times what that needs.
    """
    rows, whole = (4 * tokens, round) if tokens >= LONG else (tokens, math.ceil)
    return min(MOST, max(_fewest(tokens), whole(2**20 / (rows * depth**2)), whole(2**16 / (rows * depth))))


def _fewest(tokens: int) -> int:
    return max(1, min(4, 256 // tokens))


def fewer_samples(architecture: Architecture, count: int) -> int:
    """Heads where scores hardly vary: weights then differ little from head to head, and so do their averages.

    The variance of the scores of normed tokens is score_gain^2 q^2, q at most that of the embedding where a norm
    follows the sum. Noise falls with it; the fewest keep exponents to 0.0002 below a variance of one quarter.
    """
    normed = architecture.norm in ("pre", "post", "sandwich")
    if architecture.tokens < LONG or not normed or architecture.kernel != "softmax":
        return count
    q = max(1.0, architecture.embedding_norm) if architecture.norm == "post" else 1.0
    variance = (float(np.max(architecture.score_gain)) * q) ** 2
    return min(count, max(_fewest(architecture.tokens), math.ceil(count * variance)))


def _sampling(architecture: Architecture, samples: int | None, dtype: Precision) -> Sampling:
    count = samples or fewer_samples(architecture, default_samples(architecture.tokens, architecture.depth))
    held = architecture.depth * count * architecture.tokens**2 * np.dtype(dtype).itemsize
    return Sampling(count, dtype, keep=held < HELD)


def _refuse(readout: str, samples: int | None, draws: int, seed: int, dtype: Precision) -> None:
    refuse_readout(readout)
    if dtype not in (np.float32, np.float64):
        raise BadInput(f"dtype must be numpy.float32 or numpy.float64, got {dtype}.")
    for name, value, least in (("samples", samples, 1), ("draws", draws, 1), ("seed", seed, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise BadInput(f"{name} must be a whole number of at least {least}, got {value!r}.")


def _start(architecture: Architecture, start: Any, overlap: float) -> Geometry:
    n = architecture.tokens
    if start is None:
        lowest = -1.0 / (n - 1)
        if not lowest <= overlap <= 1.0:
            raise BadInput(f"start_overlap must lie between {lowest:g} and 1, got {overlap!r}.")
        return simplex(n, architecture.embedding_norm, overlap)
    refuse_two_starts(start, overlap)
    gram = _as_matrix(start)
    if gram.shape != (n, n):
        raise BadInput(f"the start Gram matrix has shape {gram.shape}; the architecture needs {(n, n)}.")
    return from_overlaps(gram)


def _as_matrix(start: Any) -> Array:
    plain = start.detach().cpu() if hasattr(start, "detach") else start  # a tensor may carry a gradient
    try:
        return np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise BadInput(
            f"a start of type {type(start).__name__} cannot be read as a matrix of numbers ({cause}). Give a Trace, or "
            "a Gram matrix x_a.x_b / width of shape (tokens, tokens)."
        ) from cause


def _output_gradient(tokens: int, readout: str) -> Array:
    if readout == "pooled":
        return np.ones((tokens, tokens))
    return np.eye(tokens)
