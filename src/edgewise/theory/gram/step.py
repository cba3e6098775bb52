"""One branch of a block on the dense state, between its norms: forward, and how gradients come back.

x <- outside( skip x + sum of multiplier * after(layer(before(x))) ), cross terms being zero on average. The MLP, plain
and gated, by Gaussian averages over every pair of tokens; attention through the values and the softmax:

    C_att    = sV^2 mean S U S^T
    Gamma_in = sV^2 mean S^T Gamma S + sA^2 sV^2 mean (dq dq^T + dk dk^T)

with dq, dk the gradients to the query and key features of a head, means over the sampled heads.
Shapes: n tokens, h heads of a group, k head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import VanishedStream
from edgewise.nouns.blocks import MLP, Attention, Norm, ResidualBranch
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.gram.heads import (
    Heads,
    Mask,
    Sampling,
    banded_product,
    draw_heads,
    sandwich,
    sliding_window_mask,
)
from edgewise.theory.gram.pairs import PairAverages
from edgewise.theory.gram.state import (
    GramState,
    Normals,
    Precision,
    Real,
    Root,
    geometry_root,
    lower_product,
    mean_of_pair,
    scaled_rows,
    square_root,
    without_diagonal,
)
from edgewise.theory.softmax.moments import condensation_ratio

Pull = Callable[[Real], Real]
Weights = Mapping[str, float]
PullWeights = Callable[[Real], tuple[Real, Weights]]
RANK = 32  # of the random m in _logit_gradients: its second moments are exact at any rank


@dataclass(frozen=True)
class GramStep:
    """The state after a branch, how gradient overlaps come back (with |dL/dW|^2), and statistics of its layers."""

    state: GramState
    pull: PullWeights
    statistics: Mapping[str, float] = field(default_factory=dict)
    forgotten: float = 0.0  # log of the sum's square over what the skip carries of it


def step(state: GramState, branch: ResidualBranch, width: int, sampling: Sampling, seed: int) -> GramStep:
    """Apply a branch; cross terms vanish, because every layer ends in an independent zero-mean matrix."""
    inner, pull_before = normalize(branch.norm, state) if branch.norm.before else (state, _same)
    paths = [
        _path(branch, layer, inner, width, sampling, seed) for layer in branch.layers if layer.branch != 0
    ]
    total = state.scaled(branch.skip**2)
    for path in paths:
        total = total.plus(path.state)
    pulls = [path.pull for path in paths]  # not the paths: their states need not stay in memory
    out, pull_outside = normalize(branch.norm, total) if branch.norm.outside else (total, _same)

    def pull(gamma: Real) -> tuple[Real, Weights]:
        gamma = pull_outside(gamma)
        pulled = [pull_path(gamma) for pull_path in pulls]
        back = gamma * float(branch.skip**2) if branch.skip != 1 else gamma
        for inside, _ in pulled:
            back = back + pull_before(inside)
        return back, {name: value for _, weights in pulled for name, value in weights.items()}

    statistics = {name: value for path in paths for name, value in path.statistics.items()}
    return GramStep(out, pull, statistics, log(total.norm) - log(branch.skip**2 * state.norm))


def log(value: float) -> float:
    """Return the logarithm, minus infinity of 0."""
    return math.log(value) if value > 0 else -math.inf


def _same(gamma: Real) -> Real:
    return gamma


def _path(
    branch: ResidualBranch,
    layer: Attention | MLP,
    inner: GramState,
    width: int,
    sampling: Sampling,
    seed: int,
) -> GramStep:
    """One layer between the norms, with its multiplier."""
    output, statistics, pull_layer = _apply(layer, inner, width, sampling, seed)
    after, pull_after = normalize(branch.norm, output) if branch.norm.after else (output, _same)
    return GramStep(
        after.scaled(layer.branch**2),
        lambda gamma: pull_layer(pull_after(gamma * float(layer.branch**2) if layer.branch != 1 else gamma)),
        statistics,
    )


def _apply(
    layer: Attention | MLP, inner: GramState, width: int, sampling: Sampling, seed: int
) -> tuple[GramState, Weights, PullWeights]:
    if isinstance(layer, MLP):
        output, averages = perceive(layer, inner)
        return output, {}, lambda gamma: pull_mlp(layer, inner, averages, gamma, width)
    output, statistics, memory = attend(layer, inner, sampling, seed)
    return output, statistics, lambda gamma: pull_attention(layer, inner, gamma, width, sampling, memory)


def normalize(norm: Norm, state: GramState) -> tuple[GramState, Pull]:
    """Return the state after a norm, and how gradients come back: Gamma_ab / sqrt(q_a q_b).

    LayerNorm and RMSNorm are one map at this order; tanh and erf of slope x are Gaussian averages (DyT, Derf).
    """
    if norm.kind not in ("layer", "rms"):
        averages = PairAverages(activation(norm.kind), state.scaled(norm.slope**2))
        return averages.values, lambda gamma: gamma * averages.slopes() * norm.slope**2
    if not (state.squares > 0).all():
        raise VanishedStream(
            "a norm would divide by zero: what enters it is zero. Give the layer before it a gain above 0."
        )
    inverse = (1 / np.sqrt(state.squares)).astype(state.spreads.dtype)
    return (
        GramState(np.ones_like(state.squares), state.separations),
        lambda gamma: gamma * inverse[:, None] * inverse,
    )


@dataclass(frozen=True)
class AttentionMemory:
    """What the backward pass needs of the forward pass: the square root of U, and the heads or how to draw them."""

    root: Root
    seed: int
    # with the probabilities of their parts
    groups: list[tuple[Heads, list[Real]]] = field(default_factory=list)

    def recall(
        self, layer: Attention, mask: Mask, sampling: Sampling
    ) -> Iterator[tuple[Heads, Iterator[Real]]]:
        if self.groups:
            for heads, parts in self.groups:
                yield heads, iter(parts)
        else:
            for heads in draw_heads(layer, self.root, mask, sampling, Normals(self.seed)):
                yield heads, (heads.probabilities(part) for part in heads.parts())


def attend(
    layer: Attention, state: GramState, sampling: Sampling, seed: int
) -> tuple[GramState, Mapping[str, float], AttentionMemory]:
    """Return the state of the layer's output, statistics of its rows (entropy, logit variance, condensation), a memory.

    Rows of S sum to one, so distances map to distances: with P = S H S^T,
    H_att = P_ab - (P_aa + P_bb)/2 and q_att = S q - P_aa.
    """
    mask = sliding_window_mask(state.tokens, layer.causal, layer.window, sampling.dtype)
    mixing, statistics = _Mixing(state, mask, sampling.dtype), _RowStatistics(mask)
    memory = AttentionMemory(geometry_root(state, sampling.dtype), seed)
    for heads in draw_heads(layer, memory.root, mask, sampling, Normals(seed)):
        held = []
        for part in heads.parts():
            content = heads.content(part)
            biased = heads.biased(content, part)
            S, log_total = heads.softmax(biased)
            statistics.add(S, log_total, content, biased)
            mixing.add(S)
            held.append(S)
        if sampling.keep:
            memory.groups.append((heads, held))
    return mixing.mean(sampling.samples).scaled(layer.value_gain**2), statistics.means(), memory


class _Mixing:
    """Sums over heads of the forward pass: S q, S H S^T and its diagonal."""

    def __init__(self, state: GramState, mask: Mask, dtype: Precision) -> None:
        self.mask, self.dtype = mask, state.spreads.dtype
        self.unit = max(float(state.spreads.max()), 1e-300)
        self.spreads = (state.spreads * (1 / self.unit)).astype(dtype, copy=False)
        self.mean_square = state.squares.mean()
        self.excess = (state.squares - self.mean_square).astype(dtype)
        self.P: Real = np.zeros((), self.dtype)
        self.squares, self.diagonal = np.zeros_like(state.squares), np.zeros_like(state.squares)

    def add(self, S: Real) -> None:
        self.squares += (S @ self.excess).sum(0)
        # Without a mask rows of S become equal under collapse: their common part is taken out before the product.
        everything = self.mask.visible is None
        rest = S - S.mean(1, keepdims=True) if everything else S
        product = sandwich(rest, self.spreads, self.mask.rows)
        self.P = self.P + product
        self.diagonal += product.diagonal()
        if everything:
            common = S.mean(1, keepdims=True)
            shift = common @ self.spreads
            self.diagonal += (2 * rest @ shift.swapaxes(1, 2) + shift @ common.swapaxes(1, 2)).sum((0, 2))

    def mean(self, samples: int) -> GramState:
        P, diagonal = self.P * (self.unit / samples), self.diagonal * (self.unit / samples)
        P -= mean_of_pair(P.diagonal(), P.dtype)
        spreads = without_diagonal(np.maximum(P, 0.0, out=P))
        return GramState(np.maximum(self.mean_square + self.squares / samples - diagonal, 0.0), spreads)


class _RowStatistics:
    """Means over rows and heads; the position bias counts for the entropy, not for the variance of the logits."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.heads = mask, 0
        self.entropy, self.variance = np.zeros(mask.tokens), np.zeros(mask.tokens)

    def add(self, S: Real, log_total: Real, content: Real, biased: Real) -> None:
        self.entropy += (log_total - np.einsum("hab,hab->ha", S, biased)).sum(0)
        visible = content if self.mask.visible is None else content * self.mask.visible
        total, square = visible.sum(-1), np.einsum("hab,hab->ha", visible, visible)
        counts = self.mask.counts
        self.variance += ((square - total**2 / counts) / np.maximum(counts - 1, 1)).sum(0)
        self.heads += len(S)

    def means(self) -> dict[str, float]:
        """Rows with a single visible key have no logit variance and are left out of the last two."""
        several = self.mask.counts >= 2
        variance = np.maximum(self.variance[several], 0.0) / self.heads
        ratio = condensation_ratio(variance, self.mask.counts[several])
        return {
            "attention_entropy": float(np.maximum(self.entropy, 0.0).mean()) / self.heads,
            "logit_variance": float(variance.mean()) if several.any() else math.nan,
            "condensation": float(ratio.mean()) if several.any() else math.nan,
        }


class _Back:
    """Sums over heads of the backward pass, each (n, n)."""

    def __init__(self, dtype: Precision) -> None:
        self.value: Real = np.zeros((), dtype)  # S^T Gamma S
        self.query: Real = np.zeros((), dtype)  # dq dq^T
        self.key: Real = np.zeros((), dtype)  # dk dk^T
        self.key_along = 0.0  # sum_ab q_a dk_a . dk_b


def pull_attention(
    layer: Attention, state: GramState, gamma: Array, width: int, sampling: Sampling, memory: AttentionMemory
) -> tuple[Array, Mapping[str, float]]:
    """Return Gamma at the layer's input from Gamma at its output, and |dL/dW|^2 of the four projections."""
    mask = sliding_window_mask(state.tokens, layer.causal, layer.window, sampling.dtype)
    scales, lower = square_root(gamma, sampling.dtype)
    gradient_root = scaled_rows(scales, lower, sampling.dtype)
    outer = gamma.astype(sampling.dtype, copy=False)
    back = _Back(gamma.dtype)
    normals = Normals(memory.seed + 1)
    scale = gradient_root.dtype.type((RANK * layer.head_width) ** -0.5)  # of m, and of the scores
    for heads, probabilities in memory.recall(layer, mask, sampling):
        A, V = (_low_rank(root, len(heads.centred), normals) for root in (gradient_root, memory.root.apart))
        for part, S in zip(heads.parts(), probabilities, strict=True):
            back.value = back.value + sandwich(S.swapaxes(1, 2), outer, mask.columns)
            _add_logit_path(back, state, heads, part, _logit_gradients(S, scale * A[part], V[part]))
    value_gain, score_gain = layer.value_gain**2, layer.score_gain**2
    mean = 1.0 / sampling.samples
    pulled = (back.query + back.key) * float(score_gain)
    pulled += back.value
    pulled *= float(value_gain * mean)
    return pulled, _weights(layer, state, back, width, mean)


def _low_rank(root: Real, heads: int, normals: Normals) -> Real:
    """M^{1/2} N for M^{1/2} = root (n, n), N of isotropic rows (h, n, rank)."""
    n = len(root)
    # Vectors of one length and random direction: second moments of Gaussians, without the noise of lengths.
    directions = normals.normal(n, heads, RANK, dtype=root.dtype)
    squares = np.einsum("ahr,ahr->ah", directions, directions)[..., None]
    return (
        lower_product(root, np.asarray((directions * np.sqrt(RANK / squares)).reshape(n, -1)))
        .reshape(n, heads, RANK)
        .transpose(1, 0, 2)
    )


def _logit_gradients(S: Real, A: Real, V: Real) -> Real:
    """e_ab = S_ab (m_ab - sum_c S_ac m_ac), Cov(m_ab, m_cd) = rank Gamma_ac U_bd (value gain left out) (h, n, n).

    m = A V^T, A = Gamma^{1/2} N and V = U^{1/2} N'; what all b share drops out of e.
    """
    m = A @ V.swapaxes(1, 2)
    np.subtract(m, np.einsum("hab,hab->ha", S, m)[..., None], out=m)
    return np.asarray(np.multiply(S, m, out=m))


def _add_logit_path(back: _Back, state: GramState, heads: Heads, part: slice, errors: Real) -> None:
    """dq_a = sum_b e_ab k_b, dk_b = sum_a e_ab q_a for e over sqrt(d_k), undone through RoPE and QK-norm."""
    layer, queries, keys = heads.layer, heads.queries.part(part), heads.keys.part(part)
    query = _flat(queries.pull(banded_product(errors, keys.values, heads.mask.rows), layer))
    transposed = errors.swapaxes(1, 2)
    key = _flat(keys.pull(banded_product(transposed, queries.values, heads.mask.columns), layer))
    back.query = back.query + query @ query.T
    back.key = back.key + key @ key.T
    if layer.rope or layer.qk_norm:  # otherwise the key gradients sum to zero over tokens
        back.key_along += float(state.squares @ (key @ key.sum(0)).astype(np.float64))


def _flat(features: Real) -> Real:
    """(h, n, k) to (n, h k)."""
    if len(features) == 1:
        return np.ascontiguousarray(features[0])
    return np.ascontiguousarray(features.transpose(1, 0, 2)).reshape(features.shape[1], -1)


def _weights(layer: Attention, state: GramState, back: _Back, width: int, mean: float) -> Mapping[str, float]:
    """|dL/dW|^2 = sum_ab (gradient overlap)_ab (input overlap)_ab, over all heads:

    W_V: d gO^2 sum U.(S^T Gamma S);  W_O: H d_k gV^2 and the same sum;  W_Q: d gK^2 sV^2 sum U.dq dq^T;
    W_K: d gQ^2 sV^2 sum U.dk dk^T, with U = (q_a + q_b)/2 - H so that small distances keep their digits.
    """
    overlaps = state.overlaps
    mixed = _sum(back.value, overlaps) * mean
    behind_query, behind_key = _projection_gains(layer)
    common = width * layer.value_gain**2 * mean
    return {
        "value": width * layer.output_gain**2 * mixed,
        "output": layer.heads * layer.head_width * _ratio(layer.value_gain, layer.output_gain) ** 2 * mixed,
        "query": common * behind_query**2 * _sum(back.query, overlaps),
        "key": common * behind_key**2 * (back.key_along - _sum(back.key, state.spreads)),
    }


def _projection_gains(layer: Attention) -> tuple[float, float]:
    """Return what multiplies dq and dk beside the features: the other side's gain, or with QK-norm the norms' gains.

    QK-norm divides by the projection's own gain, taken equal on both sides.
    """
    if layer.qk_norm:
        gain = _ratio(layer.score_gain, layer.key_gain)
        return gain, gain
    return layer.key_gain, _ratio(layer.score_gain, layer.key_gain)


def _ratio(product: float, factor: float) -> float:
    """product / factor, 0 if the factor is 0 (and so the product)."""
    return product / factor if factor > 0 else 0.0


def _hidden(layer: MLP, state: GramState) -> GramState:
    """Preactivations: s1^2 C + sb^2. A bias that all tokens share leaves distances alone."""
    gain = float(layer.in_gain**2)
    return GramState(gain * state.squares + layer.bias**2, gain * state.spreads)


def perceive(layer: MLP, state: GramState) -> tuple[GramState, PairAverages]:
    """Apply an MLP: C_out = s2^2 E phi phi', times su^2 C when gated; the averages serve the way back."""
    averages = PairAverages(activation(layer.activation), _hidden(layer, state))
    if not layer.gated:
        return averages.values.scaled(layer.out_gain**2), averages
    return product(averages.values, state).scaled(layer.linear_gain**2 * layer.out_gain**2), averages


def product(first: GramState, second: GramState) -> GramState:
    """Return the state of x * y elementwise, independent: its overlaps are the products of overlaps."""
    f, q, dtype = first.squares, second.squares, first.spreads.dtype
    spreads = first.overlaps
    spreads *= second.spreads
    spreads += mean_of_pair(q, dtype) * first.spreads
    if np.ptp(f) and np.ptp(q):
        a, b = f.astype(dtype), q.astype(dtype)
        spreads += (a[:, None] - a) * (b[:, None] - b) * 0.25
    return GramState(f * q, np.maximum(spreads, 0.0, out=spreads))


def pull_mlp(
    layer: MLP, state: GramState, averages: PairAverages, gamma: Real, width: int
) -> tuple[Real, Mapping[str, float]]:
    """Return Gamma at the layer's input, and |dL/dW|^2 of its matrices.

    Gamma_in = Gamma s2^2 s1^2 E phi' phi'; gated: Gamma s2^2 su^2 (s1^2 C E phi' phi' + E phi phi').
    """
    overlaps = state.overlaps
    out, into, linear = (float(gain**2) for gain in (layer.out_gain, layer.in_gain, layer.linear_gain))
    gate, value = averages.slopes(), averages.values.overlaps
    gate *= gamma
    value *= gamma
    weights = {"mlp_out": layer.width * float(value.sum(dtype=np.float64))}
    if layer.gated:
        weights["mlp_out"] = layer.width * linear * _sum(value, overlaps)
        weights["mlp_linear"] = width * out * _sum(value, overlaps)
        gate *= overlaps
        gate *= linear
    weights["mlp_in"] = width * out * _sum(gate, overlaps)
    gate *= into * out
    if layer.gated:
        value *= linear * out
        gate += value
    return gate, weights


def _sum(first: Real, second: Real) -> float:
    """Return the sum of the products of entries."""
    return float(np.vdot(first, second))
