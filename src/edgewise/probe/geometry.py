"""Geometry of a stream x (sequences, tokens, width): its mean square, its tokens' separation, two nearby inputs' drift.

A `mask` (sequences, tokens) is True where a token counts; None where all do.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewise.errors import BadInput

DISTANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative; 0.1 for half precisions, which is not local


def mean_square(x: Tensor, mask: Tensor | None = None) -> float:
    """q: the mean of x^2 over coordinates and tokens."""
    square = x.detach().double().square().mean(-1)
    return float(square.mean() if mask is None else square[mask].mean())


def separation(x: Tensor, mask: Tensor | None = None) -> float:
    """Mean of 1 - cosine over pairs of different tokens, mean over sequences, in O(n d).

    With unit vectors u and their mean m, the mean over pairs is sum_a |u_a - m|^2 / (n - 1): a sum of squares,
    so that nearly identical tokens lose no digits (1 - cosine itself would), and the n x n matrix is never formed.
    A token that is zero (DeiT's class token) has no direction: its cosine with every other counts as zero.
    """
    wide = x.detach().double()
    wide = wide if mask is None else torch.where(mask[..., None], wide, 0.0)  # padding may be NaN
    length = torch.linalg.vector_norm(wide, dim=-1)  # (sequences, tokens)
    weight = torch.ones_like(length) if mask is None else mask.to(length.dtype)
    count = weight.sum(-1)
    if bool((count < 2).any()):
        raise BadInput("a sequence has fewer than two tokens: an overlap needs two. Give longer sequences.")
    unit = wide / length.clamp_min(1e-300)[..., None]
    mean = (weight[:, None] @ unit) / count[:, None, None]
    apart = torch.linalg.vector_norm(unit - mean, dim=-1).square() * weight
    zero = ((length == 0) * weight).sum(-1) / count  # the sum of squares gives such a pair a half, not one
    return float((apart.sum(-1) / (count - 1) + zero).mean())


def pair_separation(x: Tensor, y: Tensor, mask: Tensor | None = None) -> float:
    """Mean over tokens of 1 - cos(x_a, y_a) = |u_a - w_a|^2 / 2 for the same token in two nearby runs."""
    first, second = (torch.nn.functional.normalize(t.detach().double(), dim=-1, eps=1e-300) for t in (x, y))
    half = 0.5 * (first - second).square().sum(-1)
    return float(half.mean() if mask is None else half[mask].mean())


def pair_growth(
    streams: Sequence[Tensor], near: Sequence[Tensor], mask: Tensor | None
) -> NDArray[np.float64]:
    """log-growth of 1 - cos between the same token of two nearby inputs, site before to site; 0 at the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log([pair_separation(a, b, mask) for a, b in zip(streams, near, strict=True)])
        return np.diff(logs, prepend=logs[:1])


def nearby_input(first: Tensor, seed: int) -> Tensor:
    """first (…, width) plus Gaussian noise of a small part of each token's length; a draw of its own per seed."""
    generator = generator_for(seed, "nearby")
    noise = torch.randn(first.shape, generator=generator, dtype=torch.float32).to(first)
    scale = first.square().mean(-1, keepdim=True).sqrt()
    return first + DISTANCE.get(first.dtype, 0.1) * scale * noise


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """A random stream of its own for every seed and purpose (readout, nearby input).

    `torch.manual_seed(0); x = torch.randn(...)` is how most inputs are drawn. A readout from a generator of the
    same seed would be that input again, and its gradient not that of a random direction.
    """
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{purpose}".encode()))
