"""Softmax attention on the dense state, forward and backward, by sampled heads.

    C_att = sV^2 mean_heads S U S^T
    Gamma_in = sV^2 mean S^T Gamma S + sA^2 mean (dq dq^T + dk dk^T)

with dq, dk the gradients through the softmax to the query and key features. Shapes: n tokens, h heads, k width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.blocks import Attention
from edgewise.theory.gram_geometry import Geometry, mean_of_pair
from edgewise.theory.gram_heads import Heads, Sampling, draw_heads, rotate, unnormed
from edgewise.theory.gram_mask import Mask, attention_mask, sandwich
from edgewise.theory.gram_root import Root, geometry_root, square_root

RANK = 64  # of the random m below: its second moments are exact at any rank


def attend(
    layer: Attention, state: Geometry, sampling: Sampling, seed: int
) -> tuple[Geometry, Mapping[str, float]]:
    """The geometry of the layer's output, and what was seen: entropy, logit variance, condensation.

    Rows of S sum to one, so distances map to distances: with P = S H S^T,
    H_att = P_ab - (P_aa + P_bb)/2 and q_att = S q - P_aa.
    """
    mask = attention_mask(state.tokens, layer.causal, layer.window)
    unit = max(float(state.spreads.max()), 1e-300)
    spreads = (state.spreads / unit).to(sampling.dtype)
    mean_square = state.squares.mean()
    excess = (state.squares - mean_square).to(sampling.dtype)
    P = torch.zeros_like(state.spreads)
    squares, kept = torch.zeros_like(state.squares), torch.zeros_like(state.squares)
    seen = _Seen(mask)
    for heads in draw_heads(layer, geometry_root(state), mask, sampling, _generator(seed)):
        S = heads.probabilities
        squares += (S @ excess).sum(0)
        seen.add(heads)
        # Without a mask rows of S become equal under collapse: their common part is taken out before the product.
        common = S.mean(1, keepdim=True) if mask.visible is None else torch.zeros_like(S[:, :1])
        rest = S - common if mask.visible is None else S
        product = sandwich(rest, spreads, mask.rows)
        P += product
        shift = common @ spreads
        kept += product.diagonal() + (2 * rest @ shift.mT + shift @ common.mT).sum((0, 2))
    P, kept, squares = P * (unit / sampling.samples), kept * (unit / sampling.samples), squares / sampling.samples
    spreads_out = (P - mean_of_pair(P.diagonal())).clamp_min(0.0).fill_diagonal_(0.0)
    mixed = Geometry((mean_square + squares - kept).clamp_min(0.0), spreads_out)
    return mixed.scaled(layer.value_gain**2), seen.means()


class _Seen:
    """Means over rows and heads; the position bias counts for the entropy, not for the variance of the logits."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.heads = mask, 0
        self.entropy, self.variance = torch.zeros(mask.tokens), torch.zeros(mask.tokens)

    def add(self, heads: Heads) -> None:
        S, visible = heads.probabilities, self.mask.visible
        largest, where = S.max(-1)
        log_total = heads.logits.gather(-1, where[..., None])[..., 0] - largest.log()
        self.entropy = self.entropy + (log_total - torch.linalg.vecdot(S, heads.logits)).sum(0)
        content = heads.content if visible is None else heads.content * visible
        total, square = content.sum(-1), torch.linalg.vecdot(content, content)
        counts = self.mask.counts.to(S.dtype)
        self.variance = self.variance + ((square - total**2 / counts) / (counts - 1).clamp_min(1)).sum(0)
        self.heads += len(S)

    def means(self) -> dict[str, float]:
        """Rows with a single visible key have no logit variance and are left out of the last two."""
        several = self.mask.counts >= 2
        variance = self.variance.double()[several].clamp_min(0.0) / self.heads
        scale = 2 * self.mask.counts.double()[several].log()
        return {
            "attention_entropy": float(self.entropy.double().clamp_min(0.0).mean()) / self.heads,
            "logit_variance": float(variance.mean()),
            "condensation": float((variance / scale).mean()),
        }


@dataclass
class _Back:
    """Sums over heads of the backward pass, each (n, n)."""

    value: Tensor  # S^T Gamma S
    query: Tensor  # dq dq^T
    key: Tensor  # dk dk^T
    key_along: float = 0.0  # sum_ab q_a dk_a . dk_b: zero when keys share no position


def pull_attention(
    layer: Attention, state: Geometry, gamma: Tensor, width: int, sampling: Sampling, seed: int
) -> tuple[Tensor, Mapping[str, float]]:
    """Gamma at the layer's input from Gamma at its output, and |dL/dW|^2 of the four projections.

    The heads are drawn again from the seed of the forward pass: storing S would cost h n^2 per layer.
    """
    mask = attention_mask(state.tokens, layer.causal, layer.window)
    root = geometry_root(state)
    scales, lower = square_root(gamma)
    gradient_root = (scales[:, None] * lower).to(sampling.dtype)
    outer = gamma.to(sampling.dtype)
    back = _Back(*(torch.zeros_like(gamma) for _ in range(3)))
    draws = _generator(seed + 1)
    for heads in draw_heads(layer, root, mask, sampling, _generator(seed)):
        back.value += sandwich(heads.probabilities.mT, outer, mask.columns)
        errors = _logit_gradients(heads, gradient_root, root, draws)
        _add_logit_path(back, layer, state, heads, errors)
    value_gain, score_gain = layer.value_gain**2, layer.score_gain**2
    mean = 1.0 / sampling.samples
    logit_path = (back.query + back.key) * (score_gain * value_gain * mean)
    return back.value * (value_gain * mean) + logit_path, _weights(layer, state, back, width, mean)


def _logit_gradients(heads: Heads, gradient_root: Tensor, root: Root, generator: torch.Generator) -> Tensor:
    """e_ab = S_ab (m_ab - sum_c S_ac m_ac), Cov(m_ab, m_cd) = Gamma_ac U_bd (value gain left out) (h, n, n).

    m = A V^T / sqrt(rank), A and V Gaussian with covariance Gamma and U; what all b share drops out of e.
    """
    S = heads.probabilities
    count, n = S.shape[:2]
    A = gradient_root @ torch.randn(n, count * RANK, generator=generator, dtype=S.dtype)
    _, V = root.draw(count, RANK, generator, S.dtype)
    m = A.reshape(n, count, RANK).transpose(0, 1) @ V.mT / math.sqrt(RANK)
    return S * (m - torch.linalg.vecdot(S, m)[..., None])


def _add_logit_path(back: _Back, layer: Attention, state: Geometry, heads: Heads, errors: Tensor) -> None:
    """dq_a = sum_b e_ab k_b / sqrt(d_k), dk_b = sum_a e_ab q_a / sqrt(d_k), undone through RoPE and QK-norm."""
    scale = 1 / math.sqrt(layer.head_width)
    sides = (errors @ heads.keys * scale, heads.queries, heads.query_lengths), (
        errors.mT @ heads.queries * scale, heads.keys, heads.key_lengths)  # fmt: skip
    for name, (gradient, features, lengths) in zip(("query", "key"), sides, strict=True):
        plain = unnormed(rotate(gradient, layer, back=True), rotate(features, layer, back=True), lengths)
        flat = plain.transpose(0, 1).flatten(1)  # (n, h k)
        getattr(back, name).add_(flat @ flat.T)
        if name == "key":
            back.key_along += float(state.squares @ (flat.double() @ flat.double().sum(0)))


def _weights(layer: Attention, state: Geometry, back: _Back, width: int, mean: float) -> Mapping[str, float]:
    """|dL/dW|^2 = sum_ab (gradient overlap)_ab (input overlap)_ab, over all heads:

    W_V: d gO^2 sum U.(S^T Gamma S);  W_O: H d_k gV^2 and the same sum;  W_Q: d gK^2 sV^2 sum U.dq dq^T;
    W_K: d gQ^2 sV^2 sum U.dk dk^T, with U = (q_a + q_b)/2 - H so that small distances keep their digits.
    """
    overlaps = state.overlaps
    mixed = float((back.value * overlaps).sum()) * mean
    behind_query, behind_key = _projection_gains(layer)
    common = width * layer.value_gain**2 * mean
    return {
        "value": width * layer.output_gain**2 * mixed,
        "output": layer.heads * layer.head_width * _ratio(layer.value_gain, layer.output_gain) ** 2 * mixed,
        "query": common * behind_query**2 * float((back.query * overlaps).sum()),
        "key": common * behind_key**2 * (back.key_along - float((back.key * state.spreads).sum())),
    }


def _projection_gains(layer: Attention) -> tuple[float, float]:
    """What multiplies dq and dk beside the features: the other side's gain, or with QK-norm the norms' gains.

    QK-norm divides by the projection's own gain, taken equal on both sides.
    """
    if layer.qk_norm:
        gain = _ratio(layer.score_gain, layer.key_gain)
        return gain, gain
    return layer.key_gain, _ratio(layer.score_gain, layer.key_gain)


def _ratio(product: float, factor: float) -> float:
    """product / factor, 0 where the factor is 0 (and so the product)."""
    return product / factor if factor > 0 else 0.0


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
