"""Attention heads drawn at random: their queries, keys and probabilities, from the geometry alone.

Independent W_Q, W_K make queries and keys Gaussian features with covariance U; their finite head width is kept.
Shapes: n tokens, h heads of a group, k head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgewise.arrays import Array
from edgewise.nouns.blocks import Attention
from edgewise.theory.gram.geometry import Precision, Real
from edgewise.theory.gram.normals import Normals
from edgewise.theory.gram.positions import Mask, alibi_slopes, banded_scores, by_distance, distances, rotate
from edgewise.theory.gram.roots import Root

GROUP = 2**23  # entries of (h, n, n) drawn at once
CACHED = 2**17  # entries of (h, n, n) worked on at once


@dataclass(frozen=True)
class Sampling:
    """How many heads stand for the average over heads, and in which precision they are multiplied."""

    samples: int
    dtype: Precision
    keep: bool = False  # hold the probabilities between forward and backward, or compute them again


@dataclass(frozen=True)
class Features:
    """Queries or keys as they enter the logits: normalised and rotated, gains left out (h, n, k)."""

    values: Real
    lengths: Real | None = None  # (h, n, 1): root mean squares that QK-norm divided by

    def part(self, heads: slice) -> Features:
        return Features(self.values[heads], None if self.lengths is None else self.lengths[heads])

    def pull(self, gradient: Real, layer: Attention) -> Real:
        """The gradient before RoPE and QK-norm: turned back, then (I - u u^T / |u|^2) g / length."""
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
        """Runs of heads whose matrices fit in the cache."""
        size, count = max(1, CACHED // self.mask.tokens**2), len(self.centred)
        return [slice(first, min(first + size, count)) for first in range(0, count, size)]

    def content(self, part: slice) -> Real:
        """Query . key over sqrt(d_k) with its gain (h, n, n), without mask and position bias."""
        scale = self.layer.score_gain / math.sqrt(self.layer.head_width)
        queries = self.queries.values[part] * self.centred.dtype.type(scale)
        return banded_scores(queries, self.centred[part], self.mask.rows)

    def biased(self, content: Real, part: slice) -> Real:
        """With the position bias; the content itself where there is none."""
        if self.slopes is not None:
            slopes = self.slopes[part].astype(content.dtype)[:, None, None]
            content = content - slopes * distances(self.mask.tokens).astype(content.dtype)
        return content if self.table is None else content + by_distance(self.table[part])

    def softmax(self, biased: Real) -> tuple[Real, Real]:
        """Probabilities of what the mask shows (h, n, n), and the log of their normaliser (h, n)."""
        S = biased.copy() if self.mask.hidden is None else biased + self.mask.hidden
        largest = S.max(-1, keepdims=True)
        np.subtract(S, largest, out=S)
        np.exp(S, out=S)
        total = S.sum(-1, keepdims=True)
        np.multiply(S, 1 / total, out=S)
        return S, (largest + np.log(total))[..., 0]

    def probabilities(self, part: slice) -> Real:
        """The softmax of some heads (h, n, n)."""
        return self.softmax(self.biased(self.content(part), part))[0]


def draw_heads(
    layer: Attention, root: Root, mask: Mask, sampling: Sampling, normals: Normals
) -> Iterator[Heads]:
    """`samples` heads in groups that fit in memory; the same seed gives the same heads."""
    slopes = _sampled_slopes(layer, sampling.samples, normals) if layer.alibi else None
    size = max(1, GROUP // mask.tokens**2)
    for first in range(0, sampling.samples, size):
        count = min(size, sampling.samples - first)
        part = None if slopes is None else slopes[first : first + count]
        yield _draw_group(layer, root, mask, count, part, normals)


def _draw_group(
    layer: Attention, root: Root, mask: Mask, count: int, slopes: Array | None, normals: Normals
) -> Heads:
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
    return Heads(layer, mask, queries, keys, centred, slopes, table)


def _sampled_slopes(layer: Attention, samples: int, normals: Normals) -> Array:
    """Heads spread evenly over the slopes, a random one in each stratum: every head counts alike on average."""
    place = (np.arange(samples) + normals.uniform(samples)) / samples
    return alibi_slopes(layer.heads)[np.minimum((place * layer.heads).astype(np.int64), layer.heads - 1)]


def features(raw: Real, layer: Attention) -> Features:
    """Queries or keys from what the projections give: QK-norm, then rotary positions."""
    if not layer.qk_norm:
        return Features(rotate(raw, layer))
    lengths = np.sqrt((raw**2).mean(-1, keepdims=True))
    return Features(rotate(raw / lengths, layer), lengths)
