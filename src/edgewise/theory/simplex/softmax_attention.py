"""Softmax attention on the simplex state at finite length, forward and backward through the softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import roots_genlaguerre

from edgewise.arrays import Array
from edgewise.blocks import Attention
from edgewise.theory.simplex.state import Gradient, Simplex, Step, ratio
from edgewise.theory.softmax.moments import OverlapMoments, moment_table

HARDEST = 1e8  # logit variance: beyond it every row sits on one key to four digits

Moments = Callable[[Array, Array, int], OverlapMoments]


def exact(variance: Array, correlation: Array, tokens: int) -> OverlapMoments:
    """The moments at this very length; a closure may be given in its place, for comparison."""
    return moment_table(tokens).overlaps(variance, correlation)


def softmax_attention(
    layer: Attention, state: Simplex, tokens: int, width: int, moments: Moments = exact
) -> Step:
    """q_att = sV^2 (p + D S2), D_att = sV^2 D (S2 - S11), the latter by its chord.

    Logits of a row have variance v = sA^2 q D (QK-norm: sA^2 D/q), rows correlate by rho = p/q.
    """
    row = Row(layer, state, tokens, moments)
    spread = row.s2_minus_s11
    after = Simplex(state.cross + state.difference * row.s2, state.difference * spread)
    return Step(
        after.scaled(layer.value_gain**2),
        lambda g: _pull(row, g),
        statistics=lambda: {"logit_variance": row.variance, "attention_entropy": row.entropy},
        weights=lambda g: _weights(row, g, width),
    )


@dataclass(frozen=True)
class Row:
    """Softmax moments of this layer's rows, averaged over the length of a finite-width query.

    For head width d_k a query's squared length is chi^2_{d_k}/d_k times its mean, and given the query the logits
    are exactly Gaussian; two rows share the factor, which is exact at c = 1 and immaterial at c = 0.
    """

    layer: Attention
    state: Simplex
    tokens: int
    moments: Moments

    @cached_property
    def variance(self) -> Array:
        scale = 1 / self.state.norm if self.layer.qk_norm else self.state.norm
        variance = self.layer.score_gain**2 * self.state.difference * scale
        return np.minimum(variance, HARDEST)

    @cached_property
    def _nodes(self) -> list[tuple[float, float, OverlapMoments]]:
        rho = 1 - self.state.separation
        return [(w, x, self.moments(self.variance * x, rho, self.tokens)) for x, w in self._lengths]

    @cached_property
    def _lengths(self) -> list[tuple[float, float]]:
        return [(1.0, 1.0)] if self.layer.qk_norm else query_lengths(self.layer.head_width)

    def _mean(self, value: Callable[[float, OverlapMoments], Array]) -> Array:
        return np.asarray(sum(w * value(x, m) for w, x, m in self._nodes))

    @cached_property
    def s2(self) -> Array:
        return self._mean(lambda x, m: m.s2)

    @cached_property
    def s11(self) -> Array:
        return self._mean(lambda x, m: m.s11)

    @cached_property
    def s2_minus_s11(self) -> Array:
        return self.variance * self.state.separation * self._mean(lambda x, m: x * m.chord)

    @cached_property
    def entropy(self) -> Array:
        table = moment_table(self.tokens)
        return np.asarray(sum(w * table.entropy(self.variance * x) for x, w in self._lengths))

    @cached_property
    def query_side(self) -> tuple[Array, Array]:
        """R2 and T11."""
        return self._mean(lambda x, m: m.r2), self._mean(lambda x, m: m.t11)

    @cached_property
    def key_side(self) -> tuple[Array, Array]:
        """R2 and T11 weighted by the squared length of the query, which multiplies the key's gradient."""
        return self._mean(lambda x, m: x * m.r2), self._mean(lambda x, m: x * m.t11)

    @property
    def logit_scale(self) -> Array:
        """sA^2, divided by q^2 when queries and keys are normalised."""
        return self.layer.score_gain**2 / (self.state.norm**2 if self.layer.qk_norm else 1.0)


@lru_cache(maxsize=64)
def query_lengths(head_width: int) -> list[tuple[float, float]]:
    """Gauss nodes and weights (x, w) for the law of |query|^2 over its mean, chi^2_{d_k} / d_k.

    Wide heads need two nodes, which match three moments: variance 2/d_k and third central moment 8/d_k^2.
    """
    if head_width < 64:
        nodes, weights = roots_genlaguerre(4, head_width / 2 - 1)
        return [(float(2 * x / head_width), float(w)) for x, w in zip(nodes, weights / weights.sum(), strict=True)]
    skew = 4 / head_width
    root = np.sqrt(skew**2 + 8 / head_width)
    return [(1 + (skew + side * root) / 2, 0.5 - side * skew / (2 * root)) for side in (-1.0, 1.0)]


def _pull(row: Row, g: Gradient) -> Gradient:
    """Value, query and key paths; cross terms between them are O(1/d).

    Vq = sV^2 [gq S2 + (n-1) gp S11],  Qq = sA^2 sV^2 D^2 gq R2,  Kq = sA^2 sV^2 D [q gq R2 + (n-1) p gp T11],
    and the key gradients sum to zero over tokens, Kp = -Kq/(n-1).
    """
    n, q, p, D = row.tokens, row.state.norm, row.state.cross, row.state.difference
    value = Gradient(
        g.own * row.s2 + (n - 1) * g.cross * row.s11,
        g.own * (1 - row.s2) / (n - 1) + g.cross * (1 - row.s11),
    )
    (r2, t11), (key_r2, key_t11) = row.query_side, row.key_side
    query = Gradient(D**2 * g.own * r2, D**2 * g.cross * t11)
    key_own = D * (q * g.own * key_r2 + (n - 1) * p * g.cross * key_t11)
    logits = query.plus(Gradient(key_own, -key_own / (n - 1))).scaled(row.logit_scale)
    return value.plus(logits).scaled(row.layer.value_gain**2)


def _weights(row: Row, g: Gradient, width: int) -> Mapping[str, Array]:
    """|dL/dW|^2 of the four projections, g at the layer's output; the same for any number of heads.

    W_V: d gO^2 n [gq (p + D S2) + (n-1) gp (p + D S11)];  W_O: H d_k gV^2 and the same bracket;
    W_Q: d gK^2 sV^2 D^2 n [q gq R2 + (n-1) p gp T11];  W_K: gQ^2 instead, weighted by the query's length.
    """
    layer, n, q, p, D = row.layer, row.tokens, row.state.norm, row.state.cross, row.state.difference
    mixed = n * (g.own * (p + D * row.s2) + (n - 1) * g.cross * (p + D * row.s11))
    value_gain, query_gain = ratio(layer.value_gain, layer.output_gain), ratio(layer.score_gain, layer.key_gain)
    behind_query, behind_key = layer.key_gain**2, query_gain**2
    if layer.qk_norm:  # the norms divide by the projections' own gains, taken equal
        behind_query = behind_key = row.logit_scale * ratio(1.0, layer.key_gain) ** 2
    (r2, t11), (key_r2, key_t11) = row.query_side, row.key_side
    common = width * layer.value_gain**2 * D**2 * n
    return {
        "value": width * layer.output_gain**2 * mixed,
        "output": layer.heads * layer.head_width * value_gain**2 * mixed,
        "query": common * behind_query * (q * g.own * r2 + (n - 1) * p * g.cross * t11),
        "key": common * behind_key * (q * g.own * key_r2 + (n - 1) * p * g.cross * key_t11),
    }
