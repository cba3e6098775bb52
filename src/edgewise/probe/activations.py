"""Geometry of a stream x of shape (sequences, tokens, width): its mean square and how far apart its tokens are."""

from __future__ import annotations

import torch
from torch import Tensor

from edgewise.errors import BadInput


def mean_square(x: Tensor, kept: Tensor | None = None) -> float:
    """q: the mean of x^2 over coordinates and tokens; kept (sequences, tokens) leaves padding out."""
    square = x.detach().double().square().mean(-1)
    return float(square.mean() if kept is None else square[kept].mean())


def separation(x: Tensor, kept: Tensor | None = None) -> float:
    """Mean of 1 - cosine over pairs of different tokens, mean over sequences, in O(n d).

    With unit vectors u and their mean m, the mean over pairs is sum_a |u_a - m|^2 / (n - 1): a sum of squares,
    so that nearly identical tokens lose no digits (1 - cosine itself would), and the n x n matrix is never made.
    A token that is zero (DeiT's class token) has no direction: its cosine with every other counts as zero.
    """
    wide = x.detach().double()
    length = torch.linalg.vector_norm(wide, dim=-1)  # (sequences, tokens)
    weight = torch.ones_like(length) if kept is None else kept.to(length.dtype)
    count = weight.sum(-1)
    if bool((count < 2).any()):
        raise BadInput("a sequence has fewer than two tokens: an overlap needs two. Give longer sequences.")
    unit = wide / length.clamp_min(1e-300)[..., None]
    mean = (weight[:, None] @ unit) / count[:, None, None]
    apart = torch.linalg.vector_norm(unit - mean, dim=-1).square() * weight
    zero = ((length == 0) * weight).sum(-1) / count  # the sum of squares gives such a pair a half, not one
    return float((apart.sum(-1) / (count - 1) + zero).mean())


def pair_separation(x: Tensor, y: Tensor, kept: Tensor | None = None) -> float:
    """Mean over tokens of 1 - cos(x_a, y_a) = |u_a - w_a|^2 / 2 for the same token in two nearby runs."""
    first, second = (torch.nn.functional.normalize(t.detach().double(), dim=-1, eps=1e-300) for t in (x, y))
    half = 0.5 * (first - second).square().sum(-1)
    return float(half.mean() if kept is None else half[kept].mean())
