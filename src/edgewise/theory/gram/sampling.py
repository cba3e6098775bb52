"""How many heads stand for the average over heads, what that costs, and when draws go on as one.

The heads that stand for an average are drawn at random. What that adds to an orbit arises in blocks that overwrite much
of the stream: the first ones behind a pre-norm. Draws are therefore followed apart until little is left to be
overwritten (`settled`), and are merged from the mean of their states.

Per draw, for n tokens and L blocks with S sampled heads: arrays of n^2 numbers, those of the attention probabilities if
they are kept between forward and backward, and per head products of n x n matrices and features of its width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgewise.arrays import Array, physical_memory
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Attention, Block, Branch
from edgewise.theory.gram.state import Precision

MOST = 32  # heads drawn per layer
FIRST, MORE = 2, 4  # blocks that get more heads, and how many times as many
LONG = 128  # tokens from which the number of heads matters
HELD = (
    5e8  # bytes of attention probabilities kept between forward and backward; above it they are drawn again
)
SETTLED = 0.05  # of the sum of squares of what blocks forget: what the blocks to come may add
WORKING = 220.0  # bytes per pair of tokens: the largest layer at work
BETWEEN = 60.0  # bytes per pair of tokens and block: what the way back needs
PER_PAIR, PER_TRIPLE = 7e-8, 2e-11  # seconds per head and pair of tokens, and for each further token
PER_FEATURE, PER_PRODUCT = (
    2.5e-8,
    1.2e-10,
)  # per head, token and entry of a head; per pair of tokens and entry
SHARE = 0.8  # of the memory of the machine
LONGEST = 24 * 3600.0  # seconds


@dataclass(frozen=True)
class Sampling:
    """How many heads stand for the average over heads, and in which precision they are multiplied."""

    samples: int
    dtype: Precision
    keep: bool = False  # hold the probabilities between forward and backward, or compute them again


SampledBlock = list[tuple[Branch, Sampling]]


def choose_sampling(architecture: Architecture, samples: int | None, dtype: Precision) -> Sampling:
    """Return the heads per layer: those asked for, else as many as length, depth and scores need."""
    count = samples or fewer_samples(architecture, default_samples(architecture.tokens, architecture.depth))
    held = architecture.depth * count * architecture.tokens**2 * np.dtype(dtype).itemsize
    return Sampling(count, dtype, keep=held < HELD)


def default_samples(tokens: int, depth: int) -> int:
    """Return the heads per layer that bring exponents to about 0.001, and to 0.005 where attention is sharp.

    Rows average as heads do; noise of the first layers is divided by the depth, noise of all by its root. Short
    sequences cost little and get four times what that needs.
    """
    rows, whole = (4 * tokens, round) if tokens >= LONG else (tokens, math.ceil)
    return min(MOST, max(_fewest(tokens), whole(2**20 / (rows * depth**2)), whole(2**16 / (rows * depth))))


def _fewest(tokens: int) -> int:
    return max(1, min(4, 256 // tokens))


def fewer_samples(architecture: Architecture, count: int) -> int:
    """Return how many heads suffice if scores hardly vary: then weights differ little from head to head.

    The variance of the scores of normed tokens is score_gain^2 q^2, q at most that of the embedding where a norm
    follows the sum. Noise falls with it; the fewest keep exponents to 0.0002 below a variance of one quarter.
    """
    normed = architecture.norm in ("pre", "post", "sandwich")
    if architecture.tokens < LONG or not normed or architecture.kernel != "softmax":
        return count
    q = max(1.0, architecture.embedding_norm) if architecture.norm == "post" else 1.0
    variance = (float(np.max(architecture.score_gain)) * q) ** 2
    return min(count, max(_fewest(architecture.tokens), math.ceil(count * variance)))


def with_heads(architecture: Architecture, sampling: Sampling, more: bool) -> list[SampledBlock]:
    """Return the branches of every block with the heads drawn for them; with `more`, more in the first blocks."""
    count, long = sampling.samples, architecture.tokens >= LONG
    first = replace(sampling, samples=max(count, min(MOST, MORE * count))) if more else sampling
    rest = replace(sampling, samples=max(1, count // 2)) if more and long else sampling
    return [
        [(branch, first if number < FIRST else rest) for branch in block]
        for number, block in enumerate(architecture.blocks)
    ]


def settled(forgotten: Array, depth: int) -> bool:
    """Return whether the blocks to come, each like the last one, add little to what was forgotten so far, squared."""
    squares = np.square(forgotten)
    return (
        bool(np.isfinite(squares).all()) and (depth - len(squares)) * squares[-1] <= SETTLED * squares.sum()
    )


def blocks_alike(blocks: Sequence[Block]) -> bool:
    """Return whether all blocks are drawn alike, but for what their tokens see."""
    return all(_bare(block) == _bare(blocks[0]) for block in blocks[1:])


def _bare(block: Block) -> list[tuple[object, ...]]:
    return [
        (
            branch.skip,
            branch.norm,
            *(
                replace(layer, window=None, rope_base=0.0) if isinstance(layer, Attention) else layer
                for layer in branch.layers
            ),
        )
        for branch in block
    ]


@dataclass(frozen=True)
class GramCost:
    """Bytes at the peak, and seconds on one core."""

    memory: float
    seconds: float


def cost(tokens: int, depth: int, draws: int, sampling: Sampling, head_width: int = 64) -> GramCost:
    """Estimate bytes and seconds, to a factor of about two."""
    pairs = float(tokens) ** 2
    held = depth * sampling.samples * 4.0 if sampling.keep else 0.0
    again = 1.0 if sampling.keep else 1.5  # probabilities are drawn a second time
    one = (
        pairs * (PER_PAIR + PER_TRIPLE * tokens + PER_PRODUCT * head_width)
        + PER_FEATURE * tokens * head_width
    )
    return GramCost(
        pairs * (WORKING + depth * BETWEEN + held), draws * depth * sampling.samples * again * one
    )


def affordable(tokens: int, depth: int, draws: int, sampling: Sampling, head_width: int = 64) -> GramCost:
    """Return the cost; raise if it is more memory than there is, or more than a day, and say what would fit."""

    def of(count: int) -> GramCost:
        return cost(count, depth, draws, sampling, head_width)

    need, most = of(tokens), SHARE * physical_memory()
    if need.memory <= most and need.seconds <= LONGEST:
        return need
    fitting = tokens
    while fitting > 2 and (of(fitting).memory > most or of(fitting).seconds > LONGEST):
        fitting //= 2
    less = of(fitting)
    raise BadInput(
        f"{tokens:,} tokens through {depth:,} blocks with a mask or positions would need {_text(need)}, and this "
        f"machine has {physical_memory() / 1e9:.0f} GB. tokens = {fitting:,} needs {_text(less)}; without mask, "
        "window, RoPE and ALiBi the cost does not depend on the length."
    )


def _text(cost: GramCost) -> str:
    hours = cost.seconds / 3600
    time = f"{hours:,.0f} h" if hours >= 1 else f"{max(cost.seconds / 60, 1):.0f} min"
    return f"{cost.memory / 1e9:,.1f} GB and about {time}"
