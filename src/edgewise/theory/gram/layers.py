"""Softmax attention and MLP on the dense state, forward and backward.

The MLP, plain and gated, by Gaussian averages over every pair of tokens; attention through the values and the softmax:

    C_att    = sV^2 mean S U S^T
    Gamma_in = sV^2 mean S^T Gamma S + sA^2 sV^2 mean (dq dq^T + dk dk^T)

with dq, dk the gradients to the query and key features of a head, means over the sampled heads.
Shapes: n tokens, h heads of a group, k head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.blocks import MLP, Attention
from edgewise.theory.activation.activations import activation
from edgewise.theory.gram.geometry import Geometry, Root, geometry_root, mean_of_pair, square_root
from edgewise.theory.gram.heads import Heads, Logits, Sampling, draw_heads
from edgewise.theory.gram.pairs import pair_averages, value_and_slope_averages
from edgewise.theory.gram.positions import Mask, sandwich, sliding_window_mask
from edgewise.theory.softmax.condensation import condensation_ratio

RANK = 32  # of the random m in _logit_gradients: its second moments are exact at any rank


@dataclass(frozen=True)
class Memory:
    """What the backward pass needs of the forward pass: the square root of U, and the heads or how to draw them."""

    root: Root
    seed: int
    heads: list[Heads]

    def recall(self, layer: Attention, mask: Mask, sampling: Sampling) -> Iterator[Heads]:
        if self.heads:
            yield from self.heads
        else:
            for heads, _ in draw_heads(layer, self.root, mask, sampling, generator_of(self.seed)):
                yield heads


def attend(
    layer: Attention, state: Geometry, sampling: Sampling, seed: int
) -> tuple[Geometry, Mapping[str, float], Memory]:
    """The geometry of the layer's output, statistics of its rows (entropy, logit variance, condensation), a memory.

    Rows of S sum to one, so distances map to distances: with P = S H S^T,
    H_att = P_ab - (P_aa + P_bb)/2 and q_att = S q - P_aa.
    """
    mask = sliding_window_mask(state.tokens, layer.causal, layer.window, sampling.dtype)
    unit = max(float(state.spreads.max()), 1e-300)
    spreads = (state.spreads / unit).to(sampling.dtype)
    mean_square = state.squares.mean()
    excess = (state.squares - mean_square).to(sampling.dtype)
    P = torch.zeros_like(state.spreads)
    squares, diagonal = torch.zeros_like(state.squares), torch.zeros_like(state.squares)  # of S q and of S H S^T
    statistics, memory = _RowStatistics(mask), Memory(geometry_root(state, sampling.dtype), seed, [])
    for heads, logits in draw_heads(layer, memory.root, mask, sampling, generator_of(seed)):
        S = heads.probabilities
        memory.heads.extend([heads] if sampling.keep else [])
        squares += (S @ excess).sum(0)
        statistics.add(S, logits)
        # Without a mask rows of S become equal under collapse: their common part is taken out before the product.
        common = S.mean(1, keepdim=True) if mask.visible is None else torch.zeros_like(S[:, :1])
        rest = S - common if mask.visible is None else S
        product = sandwich(rest, spreads, mask.rows)
        P += product
        shift = common @ spreads
        diagonal += product.diagonal() + (2 * rest @ shift.mT + shift @ common.mT).sum((0, 2))
    P, diagonal = P * (unit / sampling.samples), diagonal * (unit / sampling.samples)
    squares = squares / sampling.samples
    spreads_out = (P - mean_of_pair(P.diagonal())).clamp_min(0.0).fill_diagonal_(0.0)
    mixed = Geometry((mean_square + squares - diagonal).clamp_min(0.0), spreads_out)
    return mixed.scaled(layer.value_gain**2), statistics.means(), memory


class _RowStatistics:
    """Means over rows and heads; the position bias counts for the entropy, not for the variance of the logits."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.heads = mask, 0
        self.entropy, self.variance = torch.zeros(mask.tokens), torch.zeros(mask.tokens)

    def add(self, S: Tensor, logits: Logits) -> None:
        largest, where = S.max(-1, keepdim=True)
        log_total = logits.biased.gather(-1, where) - largest.log()
        self.entropy = self.entropy + (log_total[..., 0] - (S * logits.biased).sum(-1)).sum(0)
        content = logits.content if self.mask.visible is None else logits.content * self.mask.visible
        total, square = content.sum(-1), content.square().sum(-1)
        counts = self.mask.counts
        self.variance = self.variance + ((square - total**2 / counts) / (counts - 1).clamp_min(1)).sum(0)
        self.heads += len(S)

    def means(self) -> dict[str, float]:
        """Rows with a single visible key have no logit variance and are left out of the last two."""
        several = self.mask.counts >= 2
        variance = self.variance.double()[several].clamp_min(0.0) / self.heads
        ratio = condensation_ratio(variance.numpy(), self.mask.counts.double()[several].numpy())
        return {
            "attention_entropy": float(self.entropy.double().clamp_min(0.0).mean()) / self.heads,
            "logit_variance": float(variance.mean()),
            "condensation": float(torch.from_numpy(ratio).mean()),
        }


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class _Back:
    """Sums over heads of the backward pass, each (n, n)."""

    def __init__(self, like: Tensor) -> None:
        self.value = torch.zeros_like(like)  # S^T Gamma S
        self.query = torch.zeros_like(like)  # dq dq^T
        self.key = torch.zeros_like(like)  # dk dk^T
        self.key_along = 0.0  # sum_ab q_a dk_a . dk_b


def pull_attention(
    layer: Attention, state: Geometry, gamma: Tensor, width: int, sampling: Sampling, memory: Memory
) -> tuple[Tensor, Mapping[str, float]]:
    """Gamma at the layer's input from Gamma at its output, and |dL/dW|^2 of the four projections."""
    mask = sliding_window_mask(state.tokens, layer.causal, layer.window, sampling.dtype)
    scales, lower = square_root(gamma, sampling.dtype)
    gradient_root = (scales[:, None] * lower).to(sampling.dtype)
    outer = gamma.to(sampling.dtype)
    back = _Back(gamma)
    draws = generator_of(memory.seed + 1)
    for heads in memory.recall(layer, mask, sampling):
        back.value += sandwich(heads.probabilities.mT, outer, mask.columns)
        errors = _logit_gradients(heads, gradient_root, memory.root.apart, draws)
        _add_logit_path(back, layer, state, heads, errors)
    value_gain, score_gain = layer.value_gain**2, layer.score_gain**2
    mean = 1.0 / sampling.samples
    logit_path = (back.query + back.key) * (score_gain * value_gain * mean)
    return back.value * (value_gain * mean) + logit_path, _weights(layer, state, back, width, mean)


def _logit_gradients(heads: Heads, gradient_root: Tensor, root: Tensor, generator: torch.Generator) -> Tensor:
    """e_ab = S_ab (m_ab - sum_c S_ac m_ac), Cov(m_ab, m_cd) = Gamma_ac U_bd (value gain left out) (h, n, n).

    m = A V^T / sqrt(rank), A = Gamma^{1/2} N and V = U^{1/2} N'; what all b share drops out of e.
    """
    S = heads.probabilities
    count, n = S.shape[:2]
    A = gradient_root @ _isotropic(n, count, generator, S.dtype)
    V = root @ _isotropic(n, count, generator, S.dtype)
    m = A.unflatten(1, (count, RANK)).transpose(0, 1) @ V.unflatten(1, (count, RANK)).permute(1, 2, 0)
    m = m / math.sqrt(RANK)
    return S * (m - (S * m).sum(-1, keepdim=True))


def _isotropic(tokens: int, heads: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Vectors of one length and random direction: second moments of Gaussians without the noise of their lengths."""
    directions = torch.randn(tokens, heads, RANK, generator=generator, dtype=dtype)
    lengths = torch.linalg.vector_norm(directions, dim=-1, keepdim=True)
    return (directions * (math.sqrt(RANK) / lengths)).flatten(1)


def _add_logit_path(back: _Back, layer: Attention, state: Geometry, heads: Heads, errors: Tensor) -> None:
    """dq_a = sum_b e_ab k_b / sqrt(d_k), dk_b = sum_a e_ab q_a / sqrt(d_k), undone through RoPE and QK-norm."""
    scale = 1 / math.sqrt(layer.head_width)
    query = _flat(heads.queries.pull(errors @ heads.keys.values * scale, layer))
    key = _flat(heads.keys.pull(errors.mT @ heads.queries.values * scale, layer))
    back.query += query @ query.T
    back.key += key @ key.T
    if layer.rope or layer.qk_norm:  # otherwise the key gradients sum to zero over tokens
        back.key_along += float(state.squares @ (key @ key.sum(0)).double())


def _flat(features: Tensor) -> Tensor:
    """(h, n, k) to (n, h k)."""
    return features.transpose(0, 1).flatten(1)


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


def _hidden(layer: MLP, state: Geometry) -> Geometry:
    """Preactivations: s1^2 C + sb^2. A bias that all tokens share leaves distances alone."""
    return Geometry(layer.in_gain**2 * state.squares + layer.bias**2, layer.in_gain**2 * state.spreads)


def perceive(layer: MLP, state: Geometry) -> Geometry:
    """C_out = s2^2 E phi phi', times su^2 C when gated; as squares and spreads."""
    active = pair_averages(activation(layer.activation), _hidden(layer, state))
    if layer.gated:
        active = product(active, state).scaled(layer.linear_gain**2)
    return active.scaled(layer.out_gain**2)


def product(first: Geometry, second: Geometry) -> Geometry:
    """The geometry of x * y elementwise, independent: its overlaps are the products of overlaps."""
    f, q = first.squares, second.squares
    unlike = (f[:, None] - f) * (q[:, None] - q) / 4
    spreads = unlike + mean_of_pair(q) * first.spreads + second.spreads * (mean_of_pair(f) - first.spreads)
    return Geometry(f * q, spreads.clamp_min(0.0))


def pull_mlp(layer: MLP, state: Geometry, gamma: Tensor, width: int) -> tuple[Tensor, Mapping[str, float]]:
    """Gamma at the layer's input, and |dL/dW|^2 of its matrices.

    Gamma_in = Gamma s2^2 s1^2 E phi' phi'; gated: Gamma s2^2 su^2 (s1^2 C E phi' phi' + E phi phi').
    """
    phi, hidden = activation(layer.activation), _hidden(layer, state)
    active, slopes = value_and_slope_averages(phi, hidden)
    values = active.overlaps
    out, linear, overlaps = layer.out_gain**2, layer.linear_gain**2, state.overlaps
    into_gate = slopes * (linear * overlaps) if layer.gated else slopes
    factor = layer.in_gain**2 * into_gate
    weights = {"mlp_in": width * out * _sum(gamma, into_gate, overlaps)}
    if layer.gated:
        factor = factor + linear * values
        weights["mlp_linear"] = width * out * _sum(gamma, values, overlaps)
        values = values * (linear * overlaps)
    weights["mlp_out"] = layer.width * _sum(gamma, values)
    return gamma * factor * out, weights


def _sum(*factors: Tensor) -> float:
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return float(product.sum())
