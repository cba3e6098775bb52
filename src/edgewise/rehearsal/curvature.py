"""Where SGD on the curvature at the start becomes unstable, for a quadratic exactly.

With momentum b, dampening t and the largest eigenvalue c of the Hessian (in the metric of the groups' rates)

    rate < 2 (1 + b) / ((1 - t) c),    with Nesterov  2 (1 + b) / ((1 + 2 b) c)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer

from edgewise.errors import BadInput
from edgewise.landscape.hessian import Hessian
from edgewise.landscape.support import Along
from edgewise.models.unwrap import unwrap
from edgewise.rehearsal.gauge import Loss
from edgewise.rehearsal.optimizers import innermost

TOLERANCE = 0.01


def sgd_limit(optimizer: Optimizer, curvature: float) -> float:
    """The largest stable rate of the first group."""
    group = innermost(optimizer).param_groups[0]
    momentum = float(group["momentum"])
    damped = 1 + 2 * momentum if group["nesterov"] else 1 - float(group["dampening"]) if momentum else 1.0
    return 2 * (1 + momentum) / (damped * curvature)


def largest_curvature(
    model: nn.Module, loss: Loss, batch: Any, optimizer: Optimizer, ratios: tuple[float, ...]
) -> float:
    """The largest eigenvalue of D^1/2 H D^1/2 on one batch, D the ratios of the parameters' rates to the first group's.

    Weight decay adds to the curvature. Refused where it is not positive: then it bounds no rate.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    bare = unwrap(model)
    hessian = Hessian(bare, loss, [batch], Along("*", vectors=True))
    root = _roots(bare, hessian, optimizer, ratios)
    operator = LinearOperator(
        (hessian.size, hessian.size), matvec=lambda v: root * hessian.product(root * v), dtype=np.float64
    )
    first = root * hessian.product(np.random.default_rng(0).standard_normal(hessian.size))
    if hessian.size < 3:
        value = float(np.linalg.eigvalsh(np.stack([operator @ e for e in np.eye(hessian.size)]))[-1])
    else:
        try:
            value = float(
                eigsh(operator, k=1, which="LA", tol=TOLERANCE, v0=first, return_eigenvectors=False)[0]
            )
        except ArpackNoConvergence as error:
            raise BadInput(f"the curvature did not converge ({error})") from error
    value += float(innermost(optimizer).param_groups[0].get("weight_decay", 0.0))
    if not value > 0:
        raise BadInput(f"the largest curvature at the start is {value:.2g}, so it bounds no rate")
    return value


def _roots(bare: nn.Module, hessian: Hessian, optimizer: Optimizer, ratios: tuple[float, ...]) -> Any:
    """The square root of every entry's share of the first group's rate; 0 for what the optimizer does not train."""
    names = {id(p): name for name, p in bare.named_parameters()}
    ratio = {
        names[id(p)]: r
        for group, r in zip(optimizer.param_groups, ratios, strict=True)
        for p in group["params"]
        if p.requires_grad and id(p) in names
    }
    parts = [
        np.full(p.numel(), max(ratio.get(name, 0.0), 0.0) ** 0.5) for name, p in hessian.parameters.items()
    ]
    return np.concatenate(parts)
