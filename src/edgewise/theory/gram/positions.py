"""What positions do to attention: masks and windows, rotary positions (RoPE), linear biases (ALiBi), relative biases.

Products of masked matrices skip what the mask leaves out.

Shapes: n tokens, h heads of a group; a span is a run of rows with the columns they touch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from edgewise.arrays import Array
from edgewise.nouns.blocks import Attention
from edgewise.theory.gram.geometry import Precision, Real

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
    """The mask of a layer; a window as wide as the sequence hides nothing."""
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
    """A x for A (h, n, n) that is zero outside its spans, x (h, n, k)."""
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
    """|a - b| (n, n)."""
    position = np.arange(float(tokens))
    return np.abs(position - position[:, None])


def by_distance(table: Real) -> Real:
    """Row a, column b of each matrix is the entry for b - a: from (h, 2n - 1) to (h, n, n)."""
    size = (table.shape[-1] + 1) // 2
    return np.lib.stride_tricks.sliding_window_view(table, size, axis=-1)[:, ::-1]
