"""Random networks of this paper's block on tokens of the caller's choice; no formula of the theory enters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import edgewise
from edgewise.nets.build import BlockStack


def random_stack(knobs: dict[str, Any], seed: int) -> BlockStack:
    """The blocks of one random network in double precision, without gradients of weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BlockStack(edgewise.transformer(**knobs)).double().requires_grad_(False)


def tokens_of(gram: Tensor, width: int, seed: int) -> Tensor:
    """Random tokens with this Gram matrix x_a.x_b / width, up to their number over the width; (1, n, width)."""
    generator = torch.Generator().manual_seed(seed)
    values, vectors = torch.linalg.eigh(gram.double())
    root = vectors * values.clamp(min=0).sqrt()
    return (root @ torch.randn(len(gram), width, generator=generator, dtype=torch.float64))[None]


def cosines(tokens: Tensor) -> Tensor:
    """Of all pairs, (pairs,)."""
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    rows, columns = torch.triu_indices(len(tokens), len(tokens), 1)
    return 1 - (unit[rows] - unit[columns]).square().sum(-1) / 2


def lengths(tokens: Tensor) -> Tensor:
    """Mean squares, (n,)."""
    return tokens.square().mean(-1)
