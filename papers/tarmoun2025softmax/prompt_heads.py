"""Several prompts at once: heads, and a matrix prompt whose softmax goes by rows.

    f(X) = sum_h V_h^T X^T softmax(X W_h p_h)

The rows of all heads together have the block-diagonal Jacobian diag(J(s_1), ..., J(s_H)); heads meet only in the loss,
through X V_h V_g^T X^T, and not at all where V_h V_g^T = 0. A matrix prompt is heads with equal keys, each with an
output of its own. Asked after the talk of [Tarmoun 2025]; the equations are ours.
Shapes: tokens X (N, n, d); keys (H, N, n, k); targets (N, m); prompts P (H, k); values V (H, d, m); rows (H, N, n).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.laboratory.prompt_attention import PromptAttention
from edgewise.softmax_jacobian import product


@dataclass(frozen=True, eq=False)
class PromptHeads:
    """Data and frozen keys of H heads; parameters are passed to its methods."""

    tokens: Tensor
    keys: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        X, K, Y = self.tokens, self.keys, self.targets
        if X.ndim != 3 or K.ndim != 4 or K.shape[1:3] != X.shape[:2] or Y.ndim != 2 or len(Y) != len(X):
            shapes = ", ".join(str(tuple(t.shape)) for t in (X, K, Y))
            raise BadInput(
                f"tokens, keys, targets have shapes {shapes}; expected (N, n, d), (H, N, n, k), (N, m)."
            )

    def rows(self, P: Tensor) -> Tensor:
        """s_hi = softmax(K_hi p_h)."""
        return torch.softmax(torch.einsum("hijk,hk->hij", self.keys, P), -1)

    def predictions(self, P: Tensor, V: Tensor) -> Tensor:
        """(N, m)."""
        return self.read(self.rows(P), V)

    def read(self, s: Tensor, V: Tensor) -> Tensor:
        """sum_h V_h^T X_i^T s_hi of given rows."""
        return torch.einsum("ijd,hij,hdo->io", self.tokens, s, V)

    def loss(self, P: Tensor, V: Tensor) -> float:
        return 0.5 * float((self.predictions(P, V) - self.targets).square().sum())

    def slope(self, s: Tensor, V: Tensor) -> Tensor:
        """X_i V_h r_i, the gradient of the loss in the rows; r_i is of all heads together."""
        return torch.einsum("ijd,hdo,io->hij", self.tokens, V, self.read(s, V) - self.targets)

    def prompt_gradient(self, P: Tensor, V: Tensor) -> Tensor:
        """sum_i K_hi^T J(s_hi) X_i V_h r_i, (H, k)."""
        s = self.rows(P)
        return torch.einsum("hijk,hij->hk", self.keys, product(s, self.slope(s, V)))

    def field(self, V: Tensor) -> Callable[[Tensor], Tensor]:
        """The flow of all rows: s_hj' = -J(s_hj) K_hj sum_i K_hi^T J(s_hi) X_i V_h r_i."""

        def moved(s: Tensor) -> Tensor:
            pull = torch.einsum("hijk,hij->hk", self.keys, product(s, self.slope(s, V)))
            return -product(s, torch.einsum("hijk,hk->hij", self.keys, pull))

        return moved

    def curvature(self, P: Tensor, V: Tensor) -> float:
        """Largest eigenvalue of G^T G, G the Jacobian of the outputs in all prompts: an upper step is 2 over it."""
        a = torch.einsum("ijd,hdo->hoij", self.tokens, V)
        s = self.rows(P)[:, None].expand_as(a)
        G = torch.einsum("hijk,hoij->iohk", self.keys, product(s, a)).flatten(2).flatten(0, 1)
        return float(torch.linalg.matrix_norm(G, 2)) ** 2

    def alone(self, head: int, targets: Tensor) -> PromptAttention:
        """One head by itself, with targets of its own."""
        return PromptAttention(self.tokens, self.keys[head], targets)


def block_jacobian(s: Tensor) -> Tensor:
    """diag(J(s_1), ..., J(s_H)) of the rows (H, n) of one sample, (H n, H n)."""
    return torch.block_diag(*(torch.diag(row) - torch.outer(row, row) for row in s))


def row_values(v: Tensor, rows: int) -> Tensor:
    """Values (H, d, H) that give row h of a matrix prompt the output v.X^T s_h of its own; v (d,)."""
    return torch.einsum("d,hg->hdg", v, torch.eye(rows, dtype=v.dtype))


def interaction(V: Tensor) -> float:
    """Largest |V_h V_g^T| / (|V_h| |V_g|) of two heads: zero where they cannot feel each other."""
    pairs = torch.einsum("hdo,geo->hgde", V, V).flatten(2).norm(dim=-1)
    sizes = V.flatten(1).norm(dim=1)
    ratio = pairs / torch.outer(sizes, sizes).clamp_min(1e-300)
    return float(ratio.fill_diagonal_(0.0).amax())
