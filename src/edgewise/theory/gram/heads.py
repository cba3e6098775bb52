"""Attention heads drawn at random: their queries, keys and probabilities, from the geometry alone.

Independent W_Q, W_K make queries and keys Gaussian features with covariance U; their finite head width is kept.
Shapes: n tokens, h heads of a group, k head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.blocks import Attention
from edgewise.theory.gram.geometry import Root
from edgewise.theory.gram.positions import Mask, alibi_slopes, distances, rotate

GROUP = 2**23  # entries of (h, n, n) held at once


@dataclass(frozen=True)
class Sampling:
    """How many heads stand for the average over heads, and in which precision they are multiplied."""

    samples: int
    dtype: torch.dtype
    keep: bool = False  # hold the heads between forward and backward, or draw them again


@dataclass(frozen=True)
class Features:
    """Queries or keys as they enter the logits: normalised and rotated, gains left out (h, n, k)."""

    values: Tensor
    lengths: Tensor | None = None  # (h, n, 1): root mean squares that QK-norm divided by

    def pull(self, gradient: Tensor, layer: Attention) -> Tensor:
        """The gradient before RoPE and QK-norm: turned back, then (I - u u^T / |u|^2) g / length."""
        if self.lengths is not None:
            along = (gradient * self.values).mean(-1, keepdim=True)
            gradient = (gradient - self.values * along) / self.lengths
        return rotate(gradient, layer, back=True)


@dataclass(frozen=True)
class Heads:
    """A group of heads with what the backward pass needs."""

    queries: Features
    keys: Features
    probabilities: Tensor  # (h, n, n)


@dataclass(frozen=True)
class Logits:
    """What the heads of a group were made of, without the mask (h, n, n)."""

    content: Tensor  # query . key
    biased: Tensor  # with the position bias


def draw_heads(
    layer: Attention, root: Root, mask: Mask, sampling: Sampling, generator: torch.Generator
) -> Iterator[tuple[Heads, Logits]]:
    """`samples` heads in groups that fit in memory; the same generator state gives the same heads."""
    slopes = _sampled_slopes(layer, sampling.samples, generator) if layer.alibi else None
    size = max(1, GROUP // mask.tokens**2)
    for first in range(0, sampling.samples, size):
        count = min(size, sampling.samples - first)
        part = None if slopes is None else slopes[first : first + count]
        yield _draw_group(layer, root, mask, count, part, generator, sampling.dtype)


def _draw_group(
    layer: Attention, root: Root, mask: Mask, count: int, slopes: Tensor | None,
    generator: torch.Generator, dtype: torch.dtype,
) -> tuple[Heads, Logits]:  # fmt: skip
    shared, apart = root.draw(count, layer.head_width, generator)
    queries = features(shared + apart, layer)
    shared, apart = root.draw(count, layer.head_width, generator)
    # Without positions or norm, what all keys share does not change a softmax.
    keys = features(shared + apart, layer) if layer.qk_norm or layer.rope else Features(apart)
    centred = keys.values if layer.rope else keys.values - keys.values.mean(1, keepdim=True)
    content = (queries.values * (layer.score_gain / math.sqrt(layer.head_width))) @ centred.mT
    biased = content
    if slopes is not None:
        biased = content - slopes[:, None, None].to(dtype) * distances(mask.tokens).to(dtype)
    masked = biased if mask.hidden is None else biased + mask.hidden
    return Heads(queries, keys, masked.softmax(-1)), Logits(content, biased)


def _sampled_slopes(layer: Attention, samples: int, generator: torch.Generator) -> Tensor:
    """Heads spread evenly over the slopes, a random one in each stratum: every head counts alike on average."""
    place = (torch.arange(samples) + torch.rand(samples, generator=generator)) / samples
    return alibi_slopes(layer.heads)[(place * layer.heads).long().clamp_max(layer.heads - 1)]


def features(raw: Tensor, layer: Attention) -> Features:
    """Queries or keys from what the projections give: QK-norm, then rotary positions."""
    if not layer.qk_norm:
        return Features(rotate(raw, layer))
    lengths = raw.square().mean(-1, keepdim=True).sqrt()
    return Features(rotate(raw / lengths, layer), lengths)
