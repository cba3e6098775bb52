"""Gains read from weights: gain = root mean square * sqrt(fan_in), the norm before the matrix folded in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.adapters.discovery import unwrap
from edgewise.adapters.norm_sites import norm_kind
from edgewise.adapters.projections import Projection

if TYPE_CHECKING:
    from torch import Tensor, nn

SIGNIFICANT = 4.0  # standard errors; the largest of a thousand normal numbers is near 3.2


@dataclass(frozen=True)
class Gain:
    """A measured gain and its relative sampling error, 1/sqrt(2 N) for N independent normal entries."""

    value: float
    error: float

    def __mul__(self, other: Gain | float) -> Gain:
        if isinstance(other, Gain):
            return Gain(self.value * other.value, math.hypot(self.error, other.error))
        return Gain(self.value * other, self.error)


def measured_gain(model: nn.Module, matrix: Projection, norm: str | None = None) -> Gain:
    """rms(W diag(g)) sqrt(fan_in), g the gains of the norm whose output the matrix reads."""
    weight = matrix.weight(model).detach()
    columns = _columns(weight)
    if norm is not None:
        columns = columns * norm_gains(model, norm).to(weight.device).square()
    mean_square = float(columns.sum()) / weight.numel()
    return Gain(math.sqrt(mean_square * matrix.fan_in), 1 / math.sqrt(2 * weight.numel()))


def root_mean_square(tensor: Tensor) -> float:
    return math.sqrt(float(_columns(tensor.detach()).sum()) / tensor.numel())


def _columns(weight: Tensor) -> Tensor:
    """Sum of squares over all but the last dimension; squares in single, sums in double precision: half the time."""
    import torch

    squares = weight.to(torch.promote_types(weight.dtype, torch.float32)).square()
    return squares.sum(tuple(range(weight.ndim - 1)), dtype=torch.float64) if weight.ndim > 1 else squares.double()


def norm_gains(model: nn.Module, name: str) -> Tensor:
    """What a norm multiplies each normalised coordinate by, measured: half of norm(x) - norm(-x), over x/|x|.

    Gemma stores g - 1, others g; the norm itself knows.
    """
    import torch

    module = unwrap(model).get_submodule(name)
    weight = module._parameters.get("weight")
    if weight is None:  # an Identity, or a norm without gains
        return torch.ones(1, dtype=torch.float64)
    x = torch.ones(weight.numel(), device=weight.device, dtype=torch.float64)
    x *= 100.0  # large, so that the epsilon inside does not show
    x[::2] *= -1
    centred = x - x.mean() if norm_kind(module) == "layer" else x
    normal = centred / centred.pow(2).mean().sqrt()
    with torch.no_grad():
        up, down = (module(z.to(weight.dtype)[None]).double()[0] for z in (x, -x))
    return (up - down) / 2 / normal


def one_or_each(gains: Sequence[Gain]) -> float | tuple[float, ...]:
    """One value where the layers agree within their sampling errors, else one per layer."""
    pooled = math.sqrt(sum(g.value**2 for g in gains) / len(gains))
    agree = all(abs(g.value - pooled) <= SIGNIFICANT * g.error * pooled for g in gains)
    return pooled if agree else tuple(g.value for g in gains)
