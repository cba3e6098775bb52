"""Attention kernels other than softmax, on the simplex state: Gaussian and bilinear (linear without a normaliser).

Gaussian, in closed form at every length and head width [Song 2024]:

    o_a = sum_b G_ab v_b ,   G_ab = exp(-|q_a - k_b|^2 / (2 sqrt(h))) ,   h the head width

Queries and keys are Gaussian vectors with independent coordinates, so the mean of two weights is a determinant:

    E[G_ab G_a'c] = M(C_aa', C_bc) ,   M(x, y) = [(1 + s alpha)^2 - s^2 beta^2]^(-h/2) ,
    s = 1/sqrt(h) ,   alpha = (gQ^2 + gK^2) q ,   beta = gQ^2 x + gK^2 y .

Differentiating an exponent brings down u.u' with u = q_a - k_b, whose tilted mean is h kappa M,
kappa = beta / [(1 + s alpha)^2 - s^2 beta^2].

Bilinear, which leaves the angles between tokens alone in the mean, whatever the gains and the length:

    o_a = (1/n) sum_b (q_a . k_b) / sqrt(h) v_b
    E[(q_a.k_b)(q_a'.k_c)] / h = sA^2 C_aa' C_bc   so   O_aa' = (sV sA / n)^2 C_aa' F ,   F = sum_bc C_bc^2 .

Softmax, and linear attention with positive features and a normaliser, average with positive weights: they merge tokens.
Both derivations are ours; heads enter by their mean only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgewise.arrays import Array
from edgewise.blocks import Attention
from edgewise.errors import BadInput
from edgewise.theory.simplex.state import Gradient, Simplex, Step, ratio


def gaussian_attention(layer: Attention, state: Simplex, tokens: int, width: int) -> Step:
    """q_att = sV^2 [n q M(q,q) + n(n-1) p M(q,p)]; the difference sums M(q,.) - M(p,.), by the log of their ratio."""
    if layer.qk_norm:
        raise BadInput("qk_norm with the Gaussian kernel is not modelled. Set qk_norm = false.")
    kernel = Kernel(layer, state, tokens)
    n, q, p = tokens, state.norm, state.cross
    after = Simplex(kernel.mixed(q), n * q * kernel.drop(q) + n * (n - 1) * p * kernel.drop(p))
    return Step(
        after.scaled(layer.value_gain**2), lambda g: _pull(kernel, g), weights=lambda g: _weights(kernel, g, width)
    )


@dataclass(frozen=True)
class Kernel:
    """The means M and kappa M of this layer, over the overlaps x of two queries' tokens and y of two keys' tokens."""

    layer: Attention
    state: Simplex
    tokens: int

    @cached_property
    def query_square(self) -> Array:
        return ratio(self.layer.score_gain, self.layer.key_gain) ** 2

    @cached_property
    def _wide(self) -> Array:
        """(1 + s alpha)^2."""
        total = self.query_square + self.layer.key_gain**2
        return np.asarray((1 + self._s * total * self.state.norm) ** 2)

    @property
    def _s(self) -> float:
        return float(self.layer.head_width**-0.5)

    def _beta(self, x: Array, y: Array) -> Array:
        return self.query_square * x + self.layer.key_gain**2 * y

    def _inner(self, x: Array, y: Array) -> Array:
        return self._wide - (self._s * self._beta(x, y)) ** 2

    def mean(self, x: Array, y: Array) -> Array:
        """M(x, y)."""
        return np.exp(-self.layer.head_width / 2 * np.log(self._inner(x, y)))

    def drop(self, y: Array) -> Array:
        """M(q, y) - M(p, y), without cancellation when q and p are close."""
        q, p = self.state.norm, self.state.cross
        gap = self.query_square * self.state.difference * (self._beta(q, y) + self._beta(p, y))
        logs = np.log1p(self._s**2 * gap / self._inner(q, y))
        return -self.mean(q, y) * np.expm1(-self.layer.head_width / 2 * logs)

    def tilted(self, x: Array, y: Array) -> Array:
        """kappa M: the mean of G G' u.u'/h."""
        return self._beta(x, y) / self._inner(x, y) * self.mean(x, y)

    def mixed(self, x: Array) -> Array:
        """sum over keys b, c of C_bc M(x, C_bc)."""
        return self._over_keys(self.mean(x, self.state.norm), self.mean(x, self.state.cross))

    def tilted_mixed(self, x: Array) -> Array:
        """sum over keys b, c of C_bc (kappa M)(x, C_bc)."""
        return self._over_keys(self.tilted(x, self.state.norm), self.tilted(x, self.state.cross))

    def _over_keys(self, own: Array, cross: Array) -> Array:
        n = self.tokens
        return n * self.state.norm * own + n * (n - 1) * self.state.cross * cross


def _pull(kernel: Kernel, g: Gradient) -> Gradient:
    """Value, query and key paths; cross terms between them are O(1/d).

    V_bb' = sum_aa' Gamma_aa' M(C_aa', C_bb'),  Q_aa' = gQ^2 Gamma_aa' sum_bc C_bc (kappa M)(C_aa', C_bc),
    K_bb' = gK^2 C_bb' sum_aa' Gamma_aa' (kappa M)(C_aa', C_bb'), all times sV^2.
    """
    q, p = kernel.state.norm, kernel.state.cross
    value = Gradient(_over_queries(kernel, g, kernel.mean, q), _over_queries(kernel, g, kernel.mean, p))
    query = Gradient(g.own * kernel.tilted_mixed(q), g.cross * kernel.tilted_mixed(p)).scaled(kernel.query_square)
    key = Gradient(
        q * _over_queries(kernel, g, kernel.tilted, q), p * _over_queries(kernel, g, kernel.tilted, p)
    ).scaled(kernel.layer.key_gain**2)
    return value.plus(query).plus(key).scaled(kernel.layer.value_gain**2)


def _over_queries(kernel: Kernel, g: Gradient, mean: object, y: Array) -> Array:
    """sum over queries a, a' of Gamma_aa' mean(C_aa', y)."""
    n, q, p = kernel.tokens, kernel.state.norm, kernel.state.cross
    return n * g.own * mean(q, y) + n * (n - 1) * g.cross * mean(p, y)  # type: ignore[operator]


def _weights(kernel: Kernel, g: Gradient, width: int) -> Mapping[str, Array]:
    """|dL/dW|^2 of the four projections, g at the layer's output."""
    layer, n, q, p = kernel.layer, kernel.tokens, kernel.state.norm, kernel.state.cross
    mixed = n * (g.own * kernel.mixed(q) + (n - 1) * g.cross * kernel.mixed(p))
    query = n * (q * g.own * kernel.tilted_mixed(q) + (n - 1) * p * g.cross * kernel.tilted_mixed(p))
    own, cross = (_over_queries(kernel, g, kernel.tilted, y) for y in (q, p))
    common = width * layer.value_gain**2
    return {
        "value": width * layer.output_gain**2 * mixed,
        "output": layer.heads * layer.head_width * ratio(layer.value_gain, layer.output_gain) ** 2 * mixed,
        "query": common * query,
        "key": common * (n * q**2 * own + n * (n - 1) * p**2 * cross),
    }


def bilinear_attention(layer: Attention, state: Simplex, tokens: int, width: int) -> Step:
    """O = (sV sA / n)^2 F C, with F = n q^2 + n (n-1) p^2."""
    if layer.qk_norm:
        raise BadInput("qk_norm with the bilinear kernel is not modelled. Set qk_norm = false.")
    n, q, p = tokens, state.norm, state.cross
    keys = n * q**2 + n * (n - 1) * p**2
    share = (layer.score_gain * layer.value_gain / n) ** 2

    def queries(g: Gradient) -> Array:
        return n * q * g.own + n * (n - 1) * p * g.cross

    def pull(g: Gradient) -> Gradient:
        """The value and the key path are C T, the query path Gamma F; T = sum_aa' C_aa' Gamma_aa'."""
        return Gradient(2 * q * queries(g) + g.own * keys, 2 * p * queries(g) + g.cross * keys).scaled(share)

    def weights(g: Gradient) -> Mapping[str, Array]:
        mixed = ratio(share, layer.value_gain**2) * keys * queries(g)
        logits = width * (layer.value_gain / n) ** 2 * keys * queries(g)
        return {
            "value": width * layer.output_gain**2 * mixed,
            "output": layer.heads * layer.head_width * ratio(layer.value_gain, layer.output_gain) ** 2 * mixed,
            "query": logits * layer.key_gain**2,
            "key": logits * ratio(layer.score_gain, layer.key_gain) ** 2,
        }

    return Step(state.scaled(share * keys), pull, weights=weights)
