"""Double precision, the range within which products of its numbers are finite, and the memory arrays may take."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgewise.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]
WITHOUT_DOUBLE = {"mps"}  # kinds of devices, Apple's
LARGEST = 1e150  # of a mean square: beyond it products overflow double precision
PER_PAIR = 8.0  # bytes for each pair of tokens: the weights of one head and their gradient


def physical_memory() -> float:
    """Return the memory of this machine in bytes; infinity if the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def with_double(x: Tensor) -> Tensor:
    """Return a tensor of torch, on the host if its device has no double precision."""
    return x.cpu() if x.device.type in WITHOUT_DOUBLE else x


def in_double(x: Tensor) -> Tensor:
    """Return a tensor of torch in double precision, on the host if its device has none."""
    return with_double(x).double()


def check_tokens(tokens: object) -> None:
    """Raise unless `tokens` is a length a model can run on: whole, at least two, its attention within memory."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 2:
        raise BadInput(f"tokens must be a whole number of at least 2, got {tokens!r}.")
    if PER_PAIR * tokens**2 > physical_memory():
        fitting = int((physical_memory() / PER_PAIR) ** 0.5)
        raise BadInput(
            f"{tokens:,} tokens would need {PER_PAIR * tokens**2 / 1e9:,.0f} GB for the attention of one head, and "
            f"this machine has {physical_memory() / 1e9:.0f} GB. Use at most {fitting:,} tokens; 64 are usually enough."
        )
