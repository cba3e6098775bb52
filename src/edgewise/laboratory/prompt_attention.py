"""Prompt attention: f(X) = V^T X^T softmax(X W p), one softmax between a trained prompt and a trained value.

The model of [Tarmoun 2025]; vector outputs are ours (the condition-number theorem needs them).
Shapes: tokens X and keys K = X W (N, n, d); targets Y (N, m); prompt p (d,); value V (d, m); rows s (N, n).
Every pass costs O(N n d), Hessian products too: the Jacobian J(s) = diag(s) - s s^T is applied, never formed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.laboratory.descent import LeastSquares
from edgewise.softmax_jacobian import product


@dataclass(frozen=True, eq=False)
class PromptAttention:
    """Data and frozen keys of the model; parameters are passed to its methods."""

    tokens: Tensor
    keys: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        X, K, Y = self.tokens, self.keys, self.targets
        if X.ndim != 3 or K.shape[:2] != X.shape[:2] or K.ndim != 3 or Y.ndim != 2 or len(Y) != len(X):
            shapes = ", ".join(str(tuple(t.shape)) for t in (X, K, Y))
            raise BadInput(
                f"tokens, keys, targets have shapes {shapes}; expected (N, n, d), (N, n, d), (N, m)."
            )
        if not all(bool(torch.isfinite(t).all()) for t in (X, K, Y)):
            raise BadInput("tokens, keys or targets hold numbers that are not finite.")

    @property
    def width(self) -> int:
        return int(self.keys.shape[-1])

    @property
    def outputs(self) -> int:
        return int(self.targets.shape[-1])

    def log_rows(self, p: Tensor) -> Tensor:
        """log s_i = log softmax(K_i p), (N, n)."""
        return torch.log_softmax(self.keys @ p, -1)

    def features(self, p: Tensor) -> Tensor:
        """phi_i = X_i^T s_i, rows of Phi (N, d)."""
        return torch.einsum("ijd,ij->id", self.tokens, self.log_rows(p).exp())

    def predictions(self, p: Tensor, V: Tensor) -> Tensor:
        """f_i = V^T phi_i, (N, m)."""
        return self.features(p) @ V

    def loss(self, p: Tensor, V: Tensor) -> float:
        """|f - y|^2 / 2, summed over samples and outputs."""
        return 0.5 * float((self.predictions(p, V) - self.targets).square().sum())

    def gradients(self, p: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """grad_p = sum_i K_i^T J(s_i) X_i V r_i and grad_V = Phi^T r."""
        s = self.log_rows(p).exp()
        phi = torch.einsum("ijd,ij->id", self.tokens, s)
        r = phi @ V - self.targets
        a = torch.einsum("ijd,id->ij", self.tokens, r @ V.T)
        return torch.einsum("ijd,ij->d", self.keys, product(s, a)), phi.T @ r

    def prompt_jacobian(self, p: Tensor, V: Tensor) -> Tensor:
        """G: row (i, o) is d f_io / d p = K_i^T J(s_i) X_i V_o, (N m, d)."""
        s = self.log_rows(p).exp()
        a = torch.einsum("ijd,do->ioj", self.tokens, V)
        return torch.einsum("ijd,ioj->iod", self.keys, product(s[:, None], a)).reshape(-1, self.width)

    def value_jacobian(self, p: Tensor) -> Tensor:
        """d f / d vec(V), (N m, d m): Phi where there is one output."""
        return torch.kron(self.features(p), torch.eye(self.outputs, dtype=self.tokens.dtype))

    def metric(self, p: Tensor) -> Tensor:
        """sum_i K_i^T J(s_i) K_i (d, d): the Fisher information of the rows, for the natural gradient."""
        s = self.log_rows(p).exp()
        return torch.einsum("ijd,ije->de", self.keys, s[..., None] * (self.keys - _mean(s, self.keys)))

    def frozen(self, V: Tensor) -> LeastSquares:
        """The problem in p alone, with the value frozen."""
        return LeastSquares(
            residual=lambda p: (self.predictions(p, V) - self.targets).flatten(),
            gradient=lambda p: self.gradients(p, V)[0],
            jacobian=lambda p: self.prompt_jacobian(p, V),
            metric=self.metric,
        )

    def joint(self) -> LeastSquares:
        """The problem in theta = [p, vec(V)], (d + d m,)."""
        return LeastSquares(
            residual=lambda theta: (self.predictions(*self.split(theta)) - self.targets).flatten(),
            gradient=lambda theta: self.join(*self.gradients(*self.split(theta))),
            jacobian=self.jacobian,
            metric=self._joint_metric,
        )

    def jacobian(self, theta: Tensor) -> Tensor:
        """[G Phi], the Jacobian of all outputs in all parameters, (N m, d + d m)."""
        p, V = self.split(theta)
        return torch.cat([self.prompt_jacobian(p, V), self.value_jacobian(p)], -1)

    def _joint_metric(self, theta: Tensor) -> Tensor:
        """Fisher information of the rows for p, Phi^T Phi (linear regression) for V."""
        p, _ = self.split(theta)
        phi = self.features(p)
        value = torch.kron(phi.T @ phi, torch.eye(self.outputs, dtype=phi.dtype))
        return torch.block_diag(self.metric(p), value)

    def join(self, p: Tensor, V: Tensor) -> Tensor:
        """p (d,) and V (d, m) as one vector."""
        return torch.cat([p, V.reshape(-1)])

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of a joint vector."""
        return theta[: self.width], theta[self.width :].reshape(-1, self.outputs)


def _mean(s: Tensor, vectors: Tensor) -> Tensor:
    """sum_j s_j x_j per sample, (N, 1, d)."""
    return torch.einsum("ij,ijd->id", s, vectors)[:, None]


def hessian_product(
    model: PromptAttention, p: Tensor, V: Tensor, dp: Tensor, dV: Tensor
) -> tuple[Tensor, Tensor]:
    """The exact Hessian of the loss applied to (dp, dV): the derivative of both gradients along it.

    d grad_p = sum_i K_i^T ( dJ a + J da ),  dJ a = ds (a - s.a) - s (ds.a),  a = X V r,  da = X (dV r + V dr)
    d grad_V = dPhi^T r + Phi^T dr
    """
    s, phi, r = _state(model, p, V)
    ds, dphi = _moved_rows(model, s, dp)
    dr = phi @ dV + dphi @ V
    a = torch.einsum("ijd,id->ij", model.tokens, r @ V.T)
    da = torch.einsum("ijd,id->ij", model.tokens, r @ dV.T + dr @ V.T)
    centred = a - (s * a).sum(-1, keepdim=True)
    moved = ds * centred - s * (ds * a).sum(-1, keepdim=True) + product(s, da)
    return torch.einsum("ijd,ij->d", model.keys, moved), dphi.T @ r + phi.T @ dr


def _state(model: PromptAttention, p: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s = model.log_rows(p).exp()
    phi = torch.einsum("ijd,ij->id", model.tokens, s)
    return s, phi, phi @ V - model.targets


def _moved_rows(model: PromptAttention, s: Tensor, dp: Tensor) -> tuple[Tensor, Tensor]:
    """ds = J(s) K dp and dphi = X^T ds."""
    ds = product(s, model.keys @ dp)
    return ds, torch.einsum("ijd,ij->id", model.tokens, ds)


def largest_curvature(model: PromptAttention, theta: Tensor, steps: int = 100, seed: int = 0) -> float:
    """|lambda|_max of the Hessian at theta by power iteration on its products."""

    def apply(vector: Tensor) -> Tensor:
        return model.join(*hessian_product(model, *model.split(theta), *model.split(vector)))

    return power_iteration(apply, len(theta), steps, seed)


def power_iteration(apply: Callable[[Tensor], Tensor], size: int, steps: int = 100, seed: int = 0) -> float:
    """The eigenvalue of largest size of a symmetric map of (size,) vectors; from below."""
    vector = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    value = 0.0
    for _ in range(steps):
        vector = vector / vector.norm()
        image = apply(vector)
        before, value = value, float(image.norm())
        if value == 0 or abs(value - before) <= 1e-12 * value:
            break
        vector = image
    return value
