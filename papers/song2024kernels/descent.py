"""Gradient descent on chosen weights of a kernel layer, with the bounds of theorem 1 beside the losses [Song 2024]."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.laboratory.kernel_theorems import TRAINED, KernelLayer, check_theorem1, largest_step


@dataclass(frozen=True, eq=False)
class KernelRun:
    """Losses before every step and after the last, the bounds beside them, and the last weights."""

    losses: Tensor
    initial_bound: Tensor  # f_0 (1 - eta beta_0)^t
    path_bound: Tensor  # f_0 prod_s (1 - eta beta_s), beta refreshed on the way
    betas: Tensor
    last: KernelLayer
    moved: dict[str, float]  # |W - W_0| / |W_0| of queries and keys

    @property
    def violations(self) -> int:
        """Steps at which the loss is above the initial bound."""
        return int((self.losses > self.initial_bound * (1 + 1e-9) + 1e-300).sum())

    def first_below(self, factor: float) -> int | None:
        below = (self.losses < self.losses[0] * factor).nonzero()
        return int(below[0]) if len(below) else None


def unchecked(kernel: str, **tensors: Tensor) -> KernelLayer:
    """A layer of all its tensors without its checks, which torch.func cannot trace."""
    made = object.__new__(KernelLayer)
    for name, value in (tensors | {"kernel": kernel}).items():
        object.__setattr__(made, name, value)
    return made


def descend(
    layer: KernelLayer,
    steps: int,
    trained: tuple[str, ...] = TRAINED,
    step: float | None = None,
    refresh: int = 50,
    until: float = 1e-24,
) -> KernelRun:
    """Gradient descent on f with theorem 1's bounds beside it; the step is 1/lambda_max, taken again every `refresh`.

    It ends early at `until` times the first loss, or once the trained weights no longer move the outputs.
    """
    if steps < 1 or refresh < 1:
        raise BadInput(f"steps = {steps} and refresh = {refresh} must be at least 1.")
    weights = {name: getattr(layer, name).clone().requires_grad_() for name in trained}
    first, losses, betas, etas = check_theorem1(layer), [], [], []
    beta, eta = first.beta_safe, largest_step(layer, trained) if step is None else step
    for t in range(steps):
        now = layer.with_weights(**weights)
        if t and t % refresh == 0:
            frozen = now.with_weights(**{k: w.detach() for k, w in weights.items()})
            beta, eta = (
                check_theorem1(frozen).beta_safe,
                largest_step(frozen, trained) if step is None else step,
            )
        loss = 0.5 * now.residual().square().sum()
        losses.append(float(loss.detach()))
        betas.append(beta)
        etas.append(eta if math.isfinite(eta) else 0.0)
        if losses[-1] < until * losses[0] or not math.isfinite(eta):
            break
        for w, g in zip(weights.values(), torch.autograd.grad(loss, list(weights.values())), strict=True):
            w.data -= eta * g
    last = layer.with_weights(**{k: w.detach() for k, w in weights.items()})
    return _finish(layer, last, losses, betas, etas)


def _finish(
    start: KernelLayer, last: KernelLayer, losses: list[float], betas: list[float], etas: list[float]
) -> KernelRun:
    values = torch.tensor(losses, dtype=torch.float64)
    b, eta = (torch.tensor(x, dtype=torch.float64) for x in (betas, etas))
    path = torch.cat(
        [torch.zeros(1, dtype=torch.float64), torch.log1p(-(eta * b).clamp(max=1 - 1e-16)).cumsum(0)[:-1]]
    )
    first = torch.arange(len(losses), dtype=torch.float64) * math.log1p(-min(etas[0] * betas[0], 1 - 1e-16))
    moved = {
        name: float(
            (getattr(last, name) - getattr(start, name)).norm()
            / getattr(start, name).norm().clamp_min(1e-300)
        )
        for name in ("query", "key")
    }
    return KernelRun(values, values[0] * first.exp(), values[0] * path.exp(), b, last, moved)
