"""Numbers of two passes held against each other, in double precision: tiny initializations would underflow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SAMPLE = 65536  # numbers kept of a tensor


def wide(value: Tensor) -> Tensor:
    """In double precision, where the device has it."""
    return value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)


def size(value: Tensor) -> float:
    return float(wide(value).norm())


def relative(value: Tensor, other: Tensor) -> float:
    """|value - other| / |other|"""
    return float((wide(value) - wide(other)).norm() / (wide(other).norm() + 1e-300))


def spread(value: Tensor) -> float:
    """How far the rows are from their mean, relative to all of them."""
    return relative(value, value.mean(0, keepdim=True).expand_as(value))


def growth(after: Tensor, before: Tensor, factor: float) -> float | None:
    """Exponent g of |after| = factor^g |before|."""
    return exponent(size(after), size(before), factor)


def exponent(after: float, before: float, factor: float) -> float | None:
    known = before > 0 and after > 0 and math.isfinite(after / before)
    return math.log(after / before) / math.log(factor) if known else None


def sample(value: Tensor) -> Tensor:
    return value.detach().flatten()[:SAMPLE].clone()
