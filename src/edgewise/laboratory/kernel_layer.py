"""One layer of multi-head attention fitting a scalar per token, with softmax or Gaussian weights.

    F_ik = sum_h (S_ih X_i W^V_h W^O_h)_k ,     f = sum_ik (F_ik - y_ik)^2 / 2                          [Song 2024]

Shapes: inputs X (N, n, D), targets y (N, n); query, key, value (H, D, d), trained; output W^O (H, d), fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgewise.errors import BadInput

KERNELS = ("softmax", "gaussian")


@dataclass(frozen=True, eq=False)
class KernelLayer:
    """The model with its data; every tensor float64."""

    inputs: Tensor
    targets: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    kernel: str = "softmax"

    def __post_init__(self) -> None:
        _refuse(self)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """N samples, n tokens, D coordinates, H heads, d head width."""
        samples, tokens, width = self.inputs.shape
        heads, _, head_width = self.query.shape
        return samples, tokens, width, heads, head_width

    def logits(self) -> Tensor:
        """C (N, H, n, n): q.k/sqrt(d), or -|q - k|^2/(2 sqrt(d))."""
        q, k = (torch.einsum("ikD,hDd->ihkd", self.inputs, w) for w in (self.query, self.key))
        root = self.query.shape[-1] ** 0.5
        products = q @ k.mT / root
        if self.kernel == "softmax":
            return products
        return products - (q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :]) / (2 * root)

    def weights(self) -> Tensor:
        """S (N, H, n, n); the Gaussian's rows are not normalised."""
        logits = self.logits()
        return logits.softmax(-1) if self.kernel == "softmax" else logits.exp()

    def value_scalars(self) -> Tensor:
        """a_ihj = X_ij W^V_h W^O_h, (N, H, n): what a head adds to a token that attends to j alone."""
        return torch.einsum("ijD,hDd,hd->ihj", self.inputs, self.value, self.output)

    def outputs(self) -> Tensor:
        """F (N, n)."""
        return torch.einsum("ihkj,ihj->ik", self.weights(), self.value_scalars())

    def residual(self) -> Tensor:
        return self.outputs() - self.targets

    def loss(self) -> float:
        return 0.5 * float(self.residual().square().sum())

    def features(self) -> Tensor:
        """B (N n, H D): row (i, k) is [(S_i1 X_i)_k, ..., (S_iH X_i)_k], so that F = B stack_h(W^V_h W^O_h)."""
        mixed = torch.einsum("ihkj,ijD->ikhD", self.weights(), self.inputs)
        return mixed.flatten(2).flatten(0, 1)

    def query_slopes(self) -> Tensor:
        """u (N n, H d) with dF_ik/dW^Q_h = X_ik (outer) u_ikh.

        softmax:  u = (1/sqrt d) sum_j P_kj (a_j - mean_k) k_j ;   gaussian:  u = (1/sqrt d) sum_j G_kj a_j (k_j - q_k).
        """
        a, S = self.value_scalars(), self.weights()
        q, k = (torch.einsum("ikD,hDd->ihkd", self.inputs, w) for w in (self.query, self.key))
        weighted = S * a[:, :, None]
        if self.kernel == "softmax":
            slopes = (weighted - S * weighted.sum(-1, keepdim=True)) @ k
        else:
            slopes = weighted @ k - weighted.sum(-1)[..., None] * q
        slopes = slopes / self.query.shape[-1] ** 0.5
        return slopes.transpose(1, 2).flatten(2).flatten(0, 1)

    def with_weights(self, **changes: Tensor) -> KernelLayer:
        return replace(self, **changes)  # type: ignore[arg-type]


def random_layer(
    samples: int,
    tokens: int,
    width: int,
    heads: int,
    head_width: int,
    kernel: str = "softmax",
    *,
    query_key_scale: float = 1.0,
    value_scale: float = 1.0,
    output_scale: float = 1.0,
    target_scale: float = 1.0,
    seed: int = 0,
) -> KernelLayer:
    """Gaussian data, targets and weights; weights of variance scale^2 / fan-in.

    Theorem 1 is realised by value_scale = 0 and a large output_scale: queries and keys then hardly move.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs, targets = normal(samples, tokens, width), target_scale * normal(samples, tokens)
    query, key = (normal(heads, width, head_width) * query_key_scale / width**0.5 for _ in range(2))
    value = normal(heads, width, head_width) * value_scale / width**0.5
    output = normal(heads, head_width) * output_scale / head_width**0.5
    return KernelLayer(inputs, targets, query, key, value, output, kernel)


def _refuse(layer: KernelLayer) -> None:
    if layer.kernel not in KERNELS:
        raise BadInput(f"kernel = {layer.kernel!r} is not a kernel: expected {' or '.join(KERNELS)}.")
    tensors = {
        name: getattr(layer, name) for name in ("inputs", "targets", "query", "key", "value", "output")
    }
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float64:
            raise BadInput(f"{name} has dtype {tensor.dtype}; the certificates need torch.float64.")
        if not bool(tensor.isfinite().all()):
            raise BadInput(f"{name} has entries that are not finite.")
    N, n, D = layer.inputs.shape
    H, _, d = layer.query.shape
    expected = {"targets": (N, n), "query": (H, D, d), "key": (H, D, d), "value": (H, D, d), "output": (H, d)}
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise BadInput(
                f"{name} has shape {tuple(tensors[name].shape)}; expected {shape} beside these inputs."
            )
