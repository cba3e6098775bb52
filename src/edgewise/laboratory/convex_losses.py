"""Losses other than the square for prompt attention, and gradient descent on them.

What the theorems need of a loss l(f, y): the flows any slope; the over-parametrized rate a curvature from m > 0 to M
(then mu = m sigma_0^2 / 4, and the excess over the smallest value takes the place of the loss). Logistic and Huber have
m = 0: they are measured, not certified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise.laboratory.prompt_attention import PromptAttention

Pairwise = Callable[[Tensor, Tensor], Tensor]  # outputs f and targets y, entry by entry


@dataclass(frozen=True)
class ConvexLoss:
    """l and dl/df; `value` is the excess over the smallest value, zero at a perfect fit."""

    name: str
    value: Pairwise
    slope: Pairwise
    curvatures: tuple[float, float] = (1.0, 1.0)  # m <= l'' <= M everywhere
    target: Callable[[Tensor], Tensor] = lambda outputs: outputs  # the y that given outputs fit perfectly


def _log_loss(f: Tensor, y: Tensor) -> Tensor:
    """-y log sigma(f) - (1 - y) log(1 - sigma(f)), less the entropy of y."""
    return F.softplus(f) - y * f + torch.special.xlogy(y, y) + torch.special.xlogy(1 - y, 1 - y)


def _huber(f: Tensor, y: Tensor) -> Tensor:
    return F.huber_loss(f, y, reduction="none")


SHARE = 0.1  # of the square in `tempered`


def _tempered(f: Tensor, y: Tensor) -> Tensor:
    r = f - y
    return SHARE * r.square() / 2 + (1 - SHARE) * ((1 + r.square()).sqrt() - 1)


def _tempered_slope(f: Tensor, y: Tensor) -> Tensor:
    r = f - y
    return SHARE * r + (1 - SHARE) * r / (1 + r.square()).sqrt()


SQUARED = ConvexLoss("squared", lambda f, y: (f - y).square() / 2, lambda f, y: f - y)
LOGISTIC = ConvexLoss("logistic", _log_loss, lambda f, y: torch.sigmoid(f) - y, (0.0, 0.25), torch.sigmoid)
HUBER = ConvexLoss("huber", _huber, lambda f, y: (f - y).clamp(-1, 1), (0.0, 1.0))
TEMPERED = ConvexLoss("tempered", _tempered, _tempered_slope, (SHARE, 1.0))
LOSSES = {loss.name: loss for loss in (SQUARED, LOGISTIC, HUBER, TEMPERED)}


def risk(model: PromptAttention, loss: ConvexLoss, p: Tensor, V: Tensor) -> float:
    """Sum over samples and outputs of the excess."""
    return float(loss.value(model.predictions(p, V), model.targets).sum())


def risk_gradients(model: PromptAttention, loss: ConvexLoss, p: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """grad_p = G^T l' and grad_V = Phi^T l', as for the square with l' in place of the residual."""
    slope = loss.slope(model.predictions(p, V), model.targets)
    return model.prompt_jacobian(p, V).T @ slope.flatten(), model.features(p).T @ slope


def row_slope(model: PromptAttention, loss: ConvexLoss, V: Tensor) -> Callable[[Tensor], Tensor]:
    """grad l_i(s_i) = X_i V l'(V^T X_i^T s_i, y_i), for the flows of the rows."""

    def slope(s: Tensor) -> Tensor:
        outputs = torch.einsum("ijd,ij->id", model.tokens, s) @ V
        return torch.einsum("ijd,id->ij", model.tokens, loss.slope(outputs, model.targets) @ V.T)

    return slope


def fitted(model: PromptAttention, loss: ConvexLoss) -> PromptAttention:
    """The same data with targets that the former outputs fit perfectly under this loss."""
    return PromptAttention(model.tokens, model.keys, loss.target(model.targets))
