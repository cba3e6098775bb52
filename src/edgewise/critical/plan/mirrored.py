"""Mirrored pairs of units, which make a layer linear at the start whatever its activation's even part does.

[V; -V] makes (phi(v), phi(-v)) and [U, -U] reads U (phi(v) - phi(-v)): exactly U v for ReLU, GELU and SiLU, twice the
function for odd ones such as tanh [Shang 2016, Balduzzi 2017]. A unit left over by an odd size has no mirror image.
"""

from __future__ import annotations

import torch
from torch import Tensor

# phi(v) - phi(-v) = v for these, whatever the size of v, and 2 phi(v) for those
LINEAR = ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu")
ODD = ("tanh", "erf", "linear")


def halves(out: int, into: int, rows: bool, columns: bool) -> tuple[int, int]:
    """The shape of the part that is drawn."""
    return (out + 1) // 2 if rows else out, (into + 1) // 2 if columns else into


def reflected(part: Tensor, out: int, into: int) -> Tensor:
    """The part with its negatives beside and below it, cut to (..., out, into)."""
    wide = torch.cat([part, -part], -1)[..., :into]
    return torch.cat([wide, -wide], -2)[..., :out, :]
