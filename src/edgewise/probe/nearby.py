"""A pair of nearby inputs: where the second one starts, and how fast the two drift apart from site to site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewise.probe.activations import pair_separation
from edgewise.probe.chance import generator_for

DISTANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative; 0.1 for half precisions, which is not local


def nearby_input(first: Tensor, seed: int) -> Tensor:
    """first (…, width) plus Gaussian noise of a small part of each token's length; a draw of its own per seed."""
    generator = generator_for(seed, "nearby")
    noise = torch.randn(first.shape, generator=generator, dtype=torch.float32).to(first)
    scale = first.square().mean(-1, keepdim=True).sqrt()
    return first + DISTANCE.get(first.dtype, 0.1) * scale * noise


def pair_growth(
    streams: Sequence[Tensor], near: Sequence[Tensor], kept: Tensor | None
) -> NDArray[np.float64]:
    """log-growth of 1 - cos between the same token of two nearby inputs, site before to site; 0 at the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log([pair_separation(a, b, kept) for a, b in zip(streams, near, strict=True)])
        return np.diff(logs, prepend=logs[:1])
