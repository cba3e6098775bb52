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
from edgewise.theory.gram_mask import Mask, alibi_slopes, distances
from edgewise.theory.gram_root import Root

GROUP = 2**23  # entries of (h, n, n) held at once


@dataclass(frozen=True)
class Sampling:
    """How many heads stand for the average over heads, and in which precision they are multiplied."""

    samples: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Heads:
    """A group of heads; queries and keys as they enter the logits: normalised and rotated, gains left out."""

    queries: Tensor  # (h, n, k)
    keys: Tensor
    query_lengths: Tensor | None  # (h, n, 1): root mean squares that QK-norm divided by
    key_lengths: Tensor | None
    content: Tensor  # (h, n, n): logits without position bias and mask
    logits: Tensor  # (h, n, n): content and position bias
    probabilities: Tensor  # (h, n, n)


def draw_heads(
    layer: Attention, root: Root, mask: Mask, sampling: Sampling, generator: torch.Generator
) -> Iterator[Heads]:
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
) -> Heads:  # fmt: skip
    shared, apart = root.draw(count, layer.head_width, generator, dtype)
    queries, query_lengths = _normed(shared + apart, layer)
    shared, apart = root.draw(count, layer.head_width, generator, dtype)
    if layer.qk_norm or layer.rope:
        keys, key_lengths = _normed(shared + apart, layer)
    else:  # what all keys share does not change a softmax
        keys, key_lengths = apart, None
    queries, keys = rotate(queries, layer), rotate(keys, layer)
    centred = keys if layer.rope else keys - keys.mean(1, keepdim=True)
    content = (queries * (layer.score_gain / math.sqrt(layer.head_width))) @ centred.mT
    logits = content if slopes is None else content - slopes[:, None, None].to(dtype) * distances(mask.tokens).to(dtype)
    seen = logits if mask.visible is None else logits.masked_fill(~mask.visible, -math.inf)
    return Heads(queries, keys, query_lengths, key_lengths, content, logits, seen.softmax(-1))


def _sampled_slopes(layer: Attention, samples: int, generator: torch.Generator) -> Tensor:
    """Heads spread evenly over the slopes, a random one in each stratum: every head counts alike on average."""
    place = (torch.arange(samples) + torch.rand(samples, generator=generator)) / samples
    return alibi_slopes(layer.heads)[(place * layer.heads).long().clamp_max(layer.heads - 1)]


def _normed(features: Tensor, layer: Attention) -> tuple[Tensor, Tensor | None]:
    if not layer.qk_norm:
        return features, None
    lengths = features.square().mean(-1, keepdim=True).sqrt()
    return features / lengths, lengths


def rotate(features: Tensor, layer: Attention, back: bool = False) -> Tensor:
    """Rotary positions [Su 2021]: coordinates j and j + r/2 of the first r turn by position * base^(-2j/r)."""
    rotated = 2 * round(layer.rope * layer.head_width / 2)
    if not rotated:
        return features
    half = rotated // 2
    frequency = layer.rope_base ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    angle = torch.arange(features.shape[-2], dtype=torch.float64)[:, None] * frequency
    cosine, sine = angle.cos().to(features.dtype), angle.sin().to(features.dtype)
    sine = -sine if back else sine
    first, second = features[..., :half], features[..., half:rotated]
    turned = [first * cosine - second * sine, first * sine + second * cosine, features[..., rotated:]]
    return torch.cat(turned, -1)


def unnormed(gradient: Tensor, normed: Tensor, lengths: Tensor | None) -> Tensor:
    """The gradient before QK-norm: (I - u u^T / |u|^2) g / length, for normed features u."""
    if lengths is None:
        return gradient
    along = (gradient * normed).mean(-1, keepdim=True)
    return (gradient - normed * along) / lengths
