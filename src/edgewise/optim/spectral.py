"""spectral_initialize_: start a softmax layer from the singular vectors of its data [Goel 2026].

For Gaussian tokens attention is V Σ Aᵀ x, so one singular value decomposition E[y xᵀ] Σ^{-1/2} = U S Wᵀ gives V and A
with V Σ Aᵀ = the best linear map [Goel 2026]: Ṽ = U S^{1/2} Wᵀ, Ã = W S^{1/2} Wᵀ in whitened variables.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput


@torch.no_grad()
def spectral_initialize_(layer: Any, inputs: Tensor, targets: Tensor, *, radius: float = 1.0) -> Any:
    """Set a softmax layer from tokens (n, d) and targets (n, m), in place; returns the layer.

    layer: an nn.MultiheadAttention whose output is to be y (d = m), or anything with tensors `value` (m, d) and `score`
    (d, d) for y = value Σ_j softmax_j(xᵀ score x_j) x_j. radius bounds the size of the logits' matrix Ã: beyond 1 a
    softmax average of n tokens is far from its limit. Heads take singular directions in turn, d_h each.
    """
    if not radius > 0:
        raise BadInput(
            f"radius is {radius}; expected a positive number (1 keeps the softmax near its limit)."
        )
    inverse, u, s, w = _decomposed(inputs, targets)
    if isinstance(layer, nn.MultiheadAttention):
        _heads(layer, inverse, u, s, w, radius)
        return layer
    value, score = getattr(layer, "value", None), getattr(layer, "score", None)
    if not isinstance(value, Tensor) or not isinstance(score, Tensor):
        raise BadInput(
            f"{type(layer).__name__} has no tensors `value` and `score`; expected them, or an nn.MultiheadAttention."
        )
    d, m = inputs.shape[1], targets.shape[1]
    if value.shape != (m, d) or score.shape != (d, d):
        raise BadInput(
            f"value {tuple(value.shape)}, score {tuple(score.shape)}; expected {(m, d)} and {(d, d)}."
        )
    factor = _factor(s, radius)
    value.copy_((u * s.sqrt()) @ w @ inverse / factor)
    score.copy_(inverse @ (w.T * s.sqrt()) @ w @ inverse * factor)
    return layer


def _decomposed(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(Σ^{-1/2}, U, S, Wᵀ) in double precision."""
    if inputs.ndim != 2 or targets.ndim != 2 or len(inputs) != len(targets):
        raise BadInput(
            f"inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)}; expected tokens (n, d) and (n, m)."
        )
    x, y = in_double(inputs), in_double(targets)
    if not bool(torch.isfinite(x).all() & torch.isfinite(y).all()):
        raise BadInput("inputs or targets are not finite.")
    sizes, basis = torch.linalg.eigh(x.T @ x / len(x))
    if float(sizes[0]) <= 1e-12 * float(sizes[-1]):
        raise BadInput(
            f"{len(x)} tokens do not span their {x.shape[1]} dimensions: give more, or fewer dimensions."
        )
    inverse = (basis / sizes.sqrt()) @ basis.T
    u, s, w = torch.linalg.svd(y.T @ x / len(x) @ inverse, full_matrices=False)
    return inverse, u, s, w


def _factor(s: Tensor, radius: float) -> float:
    """Return the factor that brings ‖Ã‖ = √s_1 to at most the radius."""
    return min(1.0, radius / max(math.sqrt(float(s[0])), 1e-30))


def _heads(
    layer: nn.MultiheadAttention, inverse: Tensor, u: Tensor, s: Tensor, w: Tensor, radius: float
) -> None:
    """W_Q = W_K = d_h^{1/4} S^{1/4} Wᵀ Σ^{-1/2}, W_V = S^{1/4} Wᵀ Σ^{-1/2}, W_O = U S^{1/4}; d_h rows per head."""
    d = layer.embed_dim
    if layer.in_proj_weight is None or u.shape[0] != d or inverse.shape[0] != d:
        raise BadInput(
            f"an attention of width {d} cannot map {inverse.shape[0]} inputs to {u.shape[0]} outputs; expected the "
            "same width everywhere (no kdim, no vdim)."
        )
    factor = math.sqrt(_factor(s, radius))
    inward = s[:, None] ** 0.25 * w @ inverse
    both = layer.head_dim**0.25 * factor * inward
    layer.in_proj_weight.copy_(torch.cat([both, both, inward / factor]))
    layer.out_proj.weight.copy_(u * s**0.25 / factor)
    for bias in (layer.in_proj_bias, layer.out_proj.bias):
        if bias is not None:
            bias.zero_()
