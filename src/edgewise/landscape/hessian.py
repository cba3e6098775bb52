"""Hessian of a network: top eigenvectors (ARPACK through scipy) and the spectrum by Lanczos.

    H v = d/dtheta (g(theta) . v): the graph of the gradient g is built once and serves all products.
Fused attention has no second derivative, so the pass runs on torch's MATH backend.

m steps of Lanczos from a random unit vector give Ritz values theta and weights w (squared first components of the
eigenvectors of the tridiagonal matrix). The ends of the spectrum appear first; sum w theta^k estimates tr(H^k)/P,
unbiased over draws of the first vector, for k < 2m [Golub 1994].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.landscape.direction import Direction
from edgewise.landscape.evaluation import Batch, Loss, LossOf, batches_of, check_loss, own_loss
from edgewise.landscape.support import Along, support
from edgewise.models.model_map import ModelMap
from edgewise.models.state import random_streams
from edgewise.models.twin import holding, twin
from edgewise.models.unwrap import unwrap


@dataclass(frozen=True, eq=False)
class Curvature:
    """Eigenvalues of largest absolute value, their unit eigenvectors as directions, and |H v - lambda v| of each."""

    values: tuple[float, ...]
    directions: tuple[Direction, ...]
    residuals: tuple[float, ...]


class Hessian:
    """v -> H v over the entries that `along` moves, the mean over batches."""

    def __init__(self, model: nn.Module, loss: Loss | None, batch: Batch, along: str | Along = "*") -> None:
        bare = unwrap(model)
        self.masks = support(ModelMap(bare), Along(along) if isinstance(along, str) else along)
        self.parameters = {name: bare.get_parameter(name).detach().requires_grad_() for name in self.masks}
        module = LossOf(twin(bare), loss or own_loss)
        with random_streams(), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            torch.manual_seed(0)
            self.gradients = [self._gradient(module, one) for one in batches_of(batch)]

    def _gradient(self, module: LossOf, batch: Batch) -> tuple[Tensor, ...]:
        weights = {f"model.{name}": p for name, p in self.parameters.items()}
        with holding(module, weights):
            value = check_loss(module(batch))
        if not bool(value.isfinite().all()):
            raise BadInput(f"the loss is {float(value.detach())}: it has no curvature here.")
        return torch.autograd.grad(value, list(self.parameters.values()), create_graph=True)

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self.parameters.values())

    def product(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return h v with entries that do not move left out on both sides."""
        v = self._masked(self.unflatten(vector))
        total = [torch.zeros_like(p) for p in self.parameters.values()]
        for gradient in self.gradients:
            slopes = torch.autograd.grad(
                gradient, list(self.parameters.values()), v, retain_graph=True, materialize_grads=True
            )
            total = [t + s / len(self.gradients) for t, s in zip(total, slopes, strict=True)]
        return in_double(torch.cat([t.flatten() for t in self._masked(total)])).cpu().numpy()

    def unflatten(self, vector: NDArray[np.float64]) -> list[Tensor]:
        like = list(self.parameters.values())
        parts = torch.from_numpy(np.asarray(vector, np.float64).reshape(-1)).split([p.numel() for p in like])
        return [part.view(p.shape).to(p) for part, p in zip(parts, like, strict=True)]

    def _masked(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t * mask for t, mask in zip(tensors, self.masks.values(), strict=True)]


def top_directions(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    count: int = 2,
    *,
    along: str | Along = "*",
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Curvature:
    """Return the `count` eigenvectors of the Hessian with the largest eigenvalues in absolute value, largest first."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    hessian = Hessian(model, loss, batch, along)
    if not 0 < count < hessian.size:
        raise BadInput(
            f"count must be between 1 and {hessian.size - 1} ({hessian.size} weights move), got {count}."
        )
    operator = LinearOperator((hessian.size, hessian.size), matvec=hessian.product, dtype=np.float64)
    first = np.random.default_rng(seed).standard_normal(hessian.size)
    try:
        values, vectors = eigsh(operator, k=count, which="LM", tol=tolerance, v0=hessian.product(first))
    except ArpackNoConvergence as error:
        words = f"the eigenvectors did not converge to {tolerance:g}: give a larger tolerance. {error}"
        raise BadInput(words) from error
    order = np.argsort(-np.abs(values))
    values, vectors = values[order], vectors[:, order]
    residuals = [
        float(np.linalg.norm(hessian.product(v) - c * v)) for c, v in zip(values, vectors.T, strict=True)
    ]
    names = list(hessian.parameters)
    directions = [
        Direction(
            f"Hessian eigenvector {k + 1} ({value:.3g})",
            dict(zip(names, (t.detach() for t in hessian.unflatten(v)), strict=True)),
        )
        for k, (value, v) in enumerate(zip(values, vectors.T, strict=True))
    ]
    return Curvature(tuple(map(float, values)), tuple(directions), tuple(residuals))


def top_eigenvalue(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    *,
    along: str | Along = "*",
    tolerance: float = 1e-3,
    seed: int = 0,
) -> float:
    """Return the eigenvalue of the Hessian that is largest in absolute value; arguments as in `top_directions`."""
    return top_directions(model, loss, batch, 1, along=along, tolerance=tolerance, seed=seed).values[0]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Ritz values in ascending order with their weights, which sum to one."""

    values: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def largest(self) -> float:
        return float(self.values[-1])

    @property
    def smallest(self) -> float:
        """The most negative one, if there is one."""
        return float(self.values[0])

    @property
    def root_mean_square(self) -> float:
        """sqrt(tr H^2 / P)."""
        return float(np.sqrt((self.weights * self.values**2).sum()))

    @property
    def condition(self) -> float:
        """Largest over smallest size of a Ritz value: a lower bound of the condition number."""
        sizes = np.abs(self.values)
        return float(sizes.max() / sizes.min()) if sizes.min() > 0 else float("inf")

    @property
    def spread(self) -> float:
        """Largest size over root mean square: how far the sharpest direction stands out; finite for singular H."""
        return float(np.abs(self.values).max() / self.root_mean_square)


def hessian_spectrum(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    *,
    steps: int = 30,
    along: str | Along = "*",
    seed: int = 0,
) -> Spectrum:
    """Return lanczos with full reorthogonalization on Hessian-vector products.

    It ends early if the space is used up.
    """
    hessian = Hessian(model, loss, batch, along)
    if not 0 < steps <= hessian.size:
        raise BadInput(f"steps must be between 1 and {hessian.size} (the weights that move), got {steps}.")
    first = np.random.default_rng(seed).standard_normal(hessian.size)
    vectors = [first / np.linalg.norm(first)]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        product = hessian.product(vectors[-1])
        diagonal.append(float(vectors[-1] @ product))
        basis = np.stack(vectors)
        for _ in range(2):  # once is not enough in double precision
            product = product - basis.T @ (basis @ product)
        size = float(np.linalg.norm(product))
        if len(diagonal) == steps or size <= 1e-10 * max(map(abs, diagonal)):
            break
        beside.append(size)
        vectors.append(product / size)
    values, eigenvectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return Spectrum(values, eigenvectors[0] ** 2)
