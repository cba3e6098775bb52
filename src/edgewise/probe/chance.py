"""Random numbers by purpose: a readout must not repeat the numbers an input was made from."""

from __future__ import annotations

import zlib

import torch


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """A stream of its own for every seed and purpose.

    `torch.manual_seed(0); x = torch.randn(...)` is how most inputs are made. A readout drawn from a generator of the
    same seed would be that input again, and its gradient not that of a random direction.
    """
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{purpose}".encode()))
