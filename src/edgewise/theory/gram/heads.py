"""Attention heads drawn at random, and what positions do to them: masks and windows, RoPE, ALiBi, relative biases.

Independent W_Q, W_K make queries and keys Gaussian features with covariance U; their finite head width is kept.
Products of masked matrices skip what the mask leaves out.

The heads that stand for an average are drawn at random. What that adds to an orbit arises in blocks that overwrite much
of the stream: the first ones behind a pre-norm. Draws are therefore followed apart until little is left to be
overwritten (`settled`), and are merged from the mean of their states.

Per draw, for n tokens and L blocks with S sampled heads: arrays of n^2 numbers, those of the attention probabilities if
they are kept between forward and backward, and per head products of n x n matrices and features of its width.

Shapes: n tokens, h heads of a group, k head width; a span is a run of rows with the columns they touch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from edgewise.arrays import Array, physical_memory
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Attention, Block, ResidualBranch
from edgewise.theory.gram.state import Normals, Precision, Real, Root

MOST = 32  # heads drawn per layer
FIRST, MORE = 2, 4  # blocks that get more heads, and how many times as many
LONG = 128  # tokens from which the number of heads matters
# Bytes of attention probabilities kept between forward and backward; above it they are drawn again.
HELD = 5e8
SETTLED = 0.05  # of the sum of squares of what blocks forget: what the blocks to come may add
WORKING = 220.0  # bytes per pair of tokens: the largest layer at work
BETWEEN = 60.0  # bytes per pair of tokens and block: what the way back needs
PER_PAIR, PER_TRIPLE = 7e-8, 2e-11  # seconds per head and pair of tokens, and for each further token
# per head, token and entry of a head; per pair of tokens and entry
PER_FEATURE, PER_PRODUCT = 2.5e-8, 1.2e-10
SHARE = 0.8  # of the memory of the machine
LONGEST = 24 * 3600.0  # seconds


@dataclass(frozen=True)
class Sampling:
    """How many heads stand for the average over heads, and in which precision they are multiplied."""

    samples: int
    dtype: Precision
    keep: bool = False  # hold the probabilities between forward and backward, or compute them again


SampledBlock = list[tuple[ResidualBranch, Sampling]]


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


SMALLEST_BLOCK = 64


@dataclass(frozen=True)
class Span:
    """Rows start:stop of a matrix that is zero outside columns low:high."""

    start: int
    stop: int
    low: int
    high: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def columns(self) -> slice:
        return slice(self.low, self.high)


@dataclass(frozen=True)
class Mask:
    """Token a sees b with a - window < b <= a (causal) or |a - b| < window; `visible` is None for all."""

    tokens: int
    visible: Real | None  # (n, n), 1 for visible keys, else 0
    hidden: Real | None  # (n, n), 0 for visible keys, else -inf: what is added to the logits
    rows: tuple[Span, ...]  # of the attention matrix
    columns: tuple[Span, ...]  # of its transpose

    @cached_property
    def counts(self) -> Array:
        """Keys that each token sees (n,)."""
        if self.visible is None:
            return np.full(self.tokens, float(self.tokens))
        return np.asarray(self.visible.sum(-1), np.float64)


@lru_cache(maxsize=8)
def sliding_window_mask(tokens: int, causal: bool, window: int | None, dtype: Precision) -> Mask:
    """Return the mask of a layer; a window as wide as the sequence hides nothing."""
    reach = tokens if window is None else min(window, tokens)
    if not causal and reach == tokens:
        everything = _spans(tokens, tokens - 1, tokens - 1, blocks=4)
        return Mask(tokens, None, None, everything, everything)
    back, ahead = reach - 1, 0 if causal else reach - 1
    position = np.arange(tokens)
    offset = position - position[:, None]
    visible = ((offset <= ahead) & (offset >= -back)).astype(dtype)
    hidden = np.where(visible > 0, 0.0, -np.inf).astype(dtype)
    return Mask(tokens, visible, hidden, _spans(tokens, back, ahead), _spans(tokens, ahead, back))


def _spans(tokens: int, back: int, ahead: int, blocks: int = 8) -> tuple[Span, ...]:
    """Blocks of rows whose columns reach `back` to the left and `ahead` to the right."""
    size = max(SMALLEST_BLOCK, math.ceil(tokens / blocks))
    starts = range(0, tokens, size)
    return tuple(
        Span(s, min(s + size, tokens), max(0, s - back), min(tokens, min(s + size, tokens) + ahead))
        for s in starts
    )


def sandwich(outer: Real, middle: Real, spans: Sequence[Span]) -> Real:
    """sum over heads of A M A^T for symmetric M (n, n) and A (h, n, n) that is zero outside its spans.

    Only blocks on and below the diagonal are computed, over the columns that both touch: a causal mask costs
    a quarter of the full product.
    """
    result = np.zeros_like(middle)
    outer = outer[0] if len(outer) == 1 else outer  # a stack of one costs a copy
    done: list[Span] = []
    low, high = len(middle), 0
    for span in sorted(spans, key=lambda s: s.high - s.low):
        done.append(span)
        low, high = min(low, span.low), max(high, span.high)
        half = outer[..., span.rows, span.columns] @ middle[span.columns, low:high]
        for other in done:
            columns = half[..., other.low - low : other.high - low]
            block = columns @ outer[..., other.rows, other.columns].swapaxes(-1, -2)
            block = block.sum(0) if block.ndim == 3 else block
            result[span.rows, other.rows] = block
            result[other.rows, span.rows] = block.T
    return result


def banded_product(matrix: Real, columns: Real, spans: Sequence[Span]) -> Real:
    """Return A x for A (h, n, n) that is zero outside its spans, x (h, n, k)."""
    product = np.empty_like(columns)
    for span in spans:
        np.matmul(matrix[:, span.rows, span.columns], columns[:, span.columns], out=product[:, span.rows])
    return product


def banded_scores(queries: Real, keys: Real, spans: Sequence[Span]) -> Real:
    """q . k (h, n, n) inside the spans, 0 outside."""
    n = queries.shape[1]
    scores = np.zeros((len(queries), n, n), queries.dtype)
    for span in spans:
        np.matmul(
            queries[:, span.rows],
            keys[:, span.columns].swapaxes(1, 2),
            out=scores[:, span.rows, span.columns],
        )
    return scores


def rotate(features: Real, layer: Attention, back: bool = False) -> Real:
    """Rotary positions [Su 2021]: coordinates j and j + r/2 of the first r turn by position * base^(-2j/r)."""
    rotated = 2 * round(layer.rope * layer.head_width / 2)
    if not rotated:
        return features
    cosine, sine = _turns(features.shape[-2], rotated, layer.rope_base, features.dtype)
    half, turned = rotated // 2, np.empty_like(features)
    first, second = features[..., :half], features[..., half:rotated]
    sine = -sine if back else sine
    np.multiply(first, cosine, out=turned[..., :half])
    turned[..., :half] -= second * sine
    np.multiply(second, cosine, out=turned[..., half:rotated])
    turned[..., half:rotated] += first * sine
    turned[..., rotated:] = features[..., rotated:]
    return turned


@lru_cache(maxsize=8)
def _turns(tokens: int, rotated: int, base: float, dtype: Precision) -> tuple[Real, Real]:
    frequency = base ** (-np.arange(0.0, rotated, 2) / rotated)
    angle = np.arange(float(tokens))[:, None] * frequency
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def alibi_slopes(heads: int) -> Array:
    """2^(-8h/H) for H a power of two; otherwise those of the power below, then every second of twice it.

    [Press 2022]; the rule for other counts is that of the authors' code.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2.0 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)]
    return np.array(slopes)


def distances(tokens: int) -> Array:
    """Return |a - b| (n, n)."""
    position = np.arange(float(tokens))
    return np.abs(position - position[:, None])


def by_distance(table: Real) -> Real:
    """Row a, column b of each matrix is the entry for b - a: from (h, 2n - 1) to (h, n, n)."""
    size = (table.shape[-1] + 1) // 2
    return np.lib.stride_tricks.sliding_window_view(table, size, axis=-1)[:, ::-1]


GROUP = 2**23  # entries of (h, n, n) drawn at once
CACHED = 2**17  # entries of (h, n, n) worked on at once


@dataclass(frozen=True)
class Features:
    """Queries or keys as they enter the logits: normalized and rotated, gains left out (h, n, k)."""

    values: Real
    lengths: Real | None = None  # (h, n, 1): root mean squares that QK-norm divided by

    def part(self, heads: slice) -> Features:
        return Features(self.values[heads], None if self.lengths is None else self.lengths[heads])

    def pull(self, gradient: Real, layer: Attention) -> Real:
        """Return the gradient before RoPE and QK-norm: turned back, then (I - u u^T / |u|^2) g / length."""
        if self.lengths is not None:
            along = (gradient * self.values).mean(-1, keepdims=True)
            gradient = (gradient - self.values * along) / self.lengths
        return rotate(gradient, layer, back=True)


@dataclass(frozen=True)
class Heads:
    """A group of heads: what their logits are made of."""

    layer: Attention
    mask: Mask
    queries: Features
    keys: Features
    centred: Real  # keys as they enter the logits (h, n, k)
    slopes: Array | None  # of ALiBi (h,)
    table: Real | None  # biases of the distances 1 - n to n - 1 (h, 2n - 1)

    def parts(self) -> list[slice]:
        """Return runs of heads whose matrices fit in the cache."""
        size, count = max(1, CACHED // self.mask.tokens**2), len(self.centred)
        return [slice(first, min(first + size, count)) for first in range(0, count, size)]

    def content(self, part: slice) -> Real:
        """Query . key over sqrt(d_k) with its gain (h, n, n), without mask and position bias."""
        scale = self.layer.score_gain / math.sqrt(self.layer.head_width)
        queries = self.queries.values[part] * self.centred.dtype.type(scale)
        return banded_scores(queries, self.centred[part], self.mask.rows)

    def biased(self, content: Real, part: slice) -> Real:
        """With the position bias; the content itself if there is none."""
        if self.slopes is not None:
            slopes = self.slopes[part].astype(content.dtype)[:, None, None]
            content = content - slopes * distances(self.mask.tokens).astype(content.dtype)
        return content if self.table is None else content + by_distance(self.table[part])

    def softmax(self, biased: Real) -> tuple[Real, Real]:
        """Probabilities of what the mask shows (h, n, n), and the log of their normalizer (h, n)."""
        S = biased.copy() if self.mask.hidden is None else biased + self.mask.hidden
        largest = S.max(-1, keepdims=True)
        np.subtract(S, largest, out=S)
        np.exp(S, out=S)
        total = S.sum(-1, keepdims=True)
        np.multiply(S, 1 / total, out=S)
        return S, (largest + np.log(total))[..., 0]

    def probabilities(self, part: slice) -> Real:
        """Return the softmax of some heads (h, n, n)."""
        return self.softmax(self.biased(self.content(part), part))[0]


def draw_heads(
    layer: Attention, root: Root, mask: Mask, sampling: Sampling, normals: Normals
) -> Iterator[Heads]:
    """Yield `samples` heads in groups that fit in memory; the same seed gives the same heads."""
    slopes = _sampled_slopes(layer, sampling.samples, normals) if layer.alibi else None
    size = max(1, GROUP // mask.tokens**2)
    for first in range(0, sampling.samples, size):
        count = min(size, sampling.samples - first)
        part = None if slopes is None else slopes[first : first + count]
        shared, apart = root.draw(count, layer.head_width, normals)
        queries = features(shared + apart, layer)
        shared, apart = root.draw(count, layer.head_width, normals)
        # Without positions or norm, what all keys share does not change a softmax.
        keys = features(shared + apart, layer) if layer.qk_norm or layer.rope else Features(apart)
        centred = keys.values if layer.rope else keys.values - keys.values.mean(1, keepdims=True)
        table = None
        if layer.position_bias:
            scale = centred.dtype.type(layer.position_bias)
            table = scale * normals.normal(count, 2 * mask.tokens - 1, dtype=centred.dtype)
        yield Heads(layer, mask, queries, keys, centred, part, table)


def _sampled_slopes(layer: Attention, samples: int, normals: Normals) -> Array:
    """Heads spread evenly over the slopes, a random one in each stratum: every head counts alike on average."""
    place = (np.arange(samples) + normals.uniform(samples)) / samples
    return np.asarray(
        alibi_slopes(layer.heads)[np.minimum((place * layer.heads).astype(np.int64), layer.heads - 1)]
    )


def features(raw: Real, layer: Attention) -> Features:
    """Return queries or keys from what the projections give: QK-norm, then rotary positions."""
    if not layer.qk_norm:
        return Features(rotate(raw, layer))
    lengths = np.sqrt((raw**2).mean(-1, keepdims=True))
    return Features(rotate(raw / lengths, layer), lengths)
