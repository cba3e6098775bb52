"""Theorem 2 along a run: only W^Q is trained, with what is promised beside the loss [Song 2024].

    gaussian:  f_t <= f_0 prod_s (1 - eta_s gamma) ,   gamma = lambda_min of the tangent kernel of W^Q at the start
    both:      f_t <= f_0 - sum_s eta_s |grad f_s|^2 / 2 ,   all that is promised to softmax

Every step is the first of eta, eta/2, eta/4, ... that keeps the second line, beginning with twice the last one: where
the kernel is steep a step of 1/lambda_max throws queries into the region in which a Gaussian is dead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.laboratory.kernel_layer import KernelLayer
from edgewise.laboratory.kernel_theorems import Theorem2, check_theorem2

HALVINGS = 60  # after which a step counts as impossible


@dataclass(frozen=True, eq=False)
class QueryRun:
    """Losses before every step and after the last, steps taken, gammas on the way, and the last weights."""

    start: Theorem2
    losses: Tensor  # (t + 1,)
    steps: Tensor  # (t,)
    gammas: Tensor  # (t,), as they were when last looked at
    squared_gradients: Tensor  # (t,)
    last: KernelLayer

    @property
    def rate_bound(self) -> Tensor:
        """f_0 prod (1 - eta_s gamma_0): the promise from the start."""
        return self._product(torch.full_like(self.gammas, self.start.gamma))

    @property
    def path_bound(self) -> Tensor:
        """The same with gamma as it was on the way: exact up to the curvature that a step meets."""
        return self._product(self.gammas)

    @property
    def violations(self) -> int:
        """Steps at which the loss is above the promise from the start."""
        return int((self.losses > self.rate_bound * (1 + 1e-9) + 1e-300).sum())

    @property
    def fell_to(self) -> float:
        return float(self.losses[-1] / self.losses[0])

    def _product(self, gammas: Tensor) -> Tensor:
        logs = torch.log1p(-(self.steps * gammas).clamp(max=1 - 1e-16)).cumsum(0)
        return self.losses[0] * torch.cat([torch.zeros(1, dtype=torch.float64), logs]).exp()


def descend_queries(layer: KernelLayer, steps: int, refresh: int = 25, until: float = 1e-24) -> QueryRun:
    """Gradient descent on W^Q alone, with steps that keep the descent lemma."""
    if steps < 1 or refresh < 1:
        raise BadInput(f"steps = {steps} and refresh = {refresh} must be at least 1.")
    start = constants = check_theorem2(layer)
    eta = start.step if math.isfinite(start.step) else 1.0
    losses, rows, now = [layer.loss()], [], layer
    for t in range(steps):
        if t and t % refresh == 0:
            constants = check_theorem2(now)
        gradient = query_gradient(now)
        squared = float(gradient.square().sum())
        taken = _step(now, gradient, squared, losses[-1], 2 * eta)
        if taken is None or losses[-1] < until * losses[0]:
            break
        eta, now = taken
        losses.append(now.loss())
        rows.append((eta, constants.gamma, squared))
    etas, gammas, squares = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).unbind(1)
    return QueryRun(start, torch.tensor(losses, dtype=torch.float64), etas, gammas, squares, now)


def query_gradient(layer: KernelLayer) -> Tensor:
    """sum_ik r_ik X_ik (outer) u_ikh, shaped like W^Q (H, D, d)."""
    _, _, width, heads, head_width = layer.sizes
    slopes = layer.query_slopes().unflatten(-1, (heads, head_width))
    weighted = layer.residual().flatten()[:, None] * layer.inputs.reshape(-1, width)
    return torch.einsum("rD,rhd->hDd", weighted, slopes)


def _step(
    layer: KernelLayer, gradient: Tensor, squared: float, loss: float, eta: float
) -> tuple[float, KernelLayer] | None:
    """The first of eta, eta/2, ... after which the loss has fallen by eta |grad|^2 / 2 at least; None at rest."""
    for _ in range(HALVINGS):
        moved = layer.with_weights(query=layer.query - eta * gradient)
        if squared > 0 and moved.loss() <= loss - eta * squared / 2:
            return eta, moved
        eta /= 2
    return None
