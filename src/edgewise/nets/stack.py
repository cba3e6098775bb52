"""The blocks alone, from a stream to a stream: a network that starts exactly where the theory starts.

Shapes: B sequences, n tokens, d width; the stream x is (B, n, d).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.nets.transformer import BranchNet


class Stack(nn.Module):
    """Random blocks of a description, without embedding, last norm and readout."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        d, n = architecture.width, architecture.tokens
        branches = [[BranchNet(branch, d, n) for branch in block] for block in architecture.blocks]
        self.blocks = nn.ModuleList(nn.Sequential(*parts) for parts in branches)

    def forward(self, x: Tensor) -> Tensor:
        return self.streams(x)[-1]

    def streams(self, x: Tensor) -> list[Tensor]:
        """The stream that enters, and the one after every block."""
        found = [x]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found


def random_tokens(architecture: Architecture, overlap: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Gaussian tokens x_a = sqrt(q) (sqrt(c) common + sqrt(1 - c) own_a), q = embedding_norm; (1, n, d)."""
    if not 0 <= overlap <= 1:
        raise BadInput(f"overlap = {overlap!r} is not possible: expected a mean cosine from 0 to 1.")
    n, d = architecture.tokens, architecture.width
    common, own = torch.randn(1, 1, d, dtype=dtype), torch.randn(1, n, d, dtype=dtype)
    return math.sqrt(architecture.embedding_norm) * (math.sqrt(overlap) * common + math.sqrt(1 - overlap) * own)
