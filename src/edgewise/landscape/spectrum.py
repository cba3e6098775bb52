"""The spectrum of a network's Hessian by Lanczos: its ends, and how its mass lies between them.

m steps from a random unit vector give Ritz values theta and weights w (squared first components of the eigenvectors of
the tridiagonal matrix). The ends of the spectrum appear first; sum w theta^k estimates tr(H^k)/P, unbiased over draws
of the first vector, for k < 2m [Golub 1994].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from edgewise.errors import BadInput
from edgewise.landscape.evaluation import Loss
from edgewise.landscape.hessian import Hessian
from edgewise.landscape.support import Along


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
        """The most negative one, where there is one."""
        return float(self.values[0])

    @property
    def root_mean_square(self) -> float:
        """sqrt(tr H^2 / P)."""
        return float(np.sqrt((self.weights * self.values**2).sum()))

    @property
    def condition(self) -> float:
        """Largest over smallest size of a Ritz value: a lower bound of the condition number, infinite where H is
        singular.
        """
        sizes = np.abs(self.values)
        return float(sizes.max() / sizes.min()) if sizes.min() > 0 else float("inf")

    @property
    def spread(self) -> float:
        """Largest size over root mean square: how far the sharpest direction stands out; finite for singular H."""
        return float(np.abs(self.values).max() / self.root_mean_square)


def hessian_spectrum(
    model: nn.Module,
    loss: Loss | None,
    batch: Any,
    *,
    steps: int = 30,
    along: str | Along = "*",
    seed: int = 0,
) -> Spectrum:
    """Lanczos with full reorthogonalization on Hessian-vector products; it ends early where the space is used up."""
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
