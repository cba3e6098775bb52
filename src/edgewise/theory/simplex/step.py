"""One branch of a block on the simplex state, between its norms: forward, and how gradients come back.

x <- outside( skip x + sum of multiplier * after(layer(before(x))) ), cross terms being zero on average. The MLP, plain
and gated, by Gaussian averages; softmax attention by the moments of `theory/softmax`. One call serves one network or a
grid of them.

The Gaussian kernel is in closed form at every length and head width [Song 2024]:

    o_a = sum_b G_ab v_b ,   G_ab = exp(-|q_a - k_b|^2 / (2 sqrt(h))) ,   h the head width

Queries and keys are Gaussian vectors with independent coordinates, so the mean of two weights is a determinant:

    E[G_ab G_a'c] = M(C_aa', C_bc) ,   M(x, y) = [(1 + s alpha)^2 - s^2 beta^2]^(-h/2) ,
    s = 1/sqrt(h) ,   alpha = (gQ^2 + gK^2) q ,   beta = gQ^2 x + gK^2 y .

Differentiating an exponent brings down u.u' with u = q_a - k_b, whose tilted mean is h kappa M,
kappa = beta / [(1 + s alpha)^2 - s^2 beta^2].

The bilinear kernel (linear without a normalizer) leaves the angles between tokens alone in the mean, whatever the
gains and the length:

    o_a = (1/n) sum_b (q_a . k_b) / sqrt(h) v_b
    E[(q_a.k_b)(q_a'.k_c)] / h = sA^2 C_aa' C_bc   so   O_aa' = (sV sA / n)^2 C_aa' F ,   F = sum_bc C_bc^2 .

Softmax, and linear attention with positive features and a normalizer, average with positive weights: they merge tokens.
The derivations of both kernels are ours; heads enter by their mean only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import NotCovered
from edgewise.nouns.blocks import MLP, Attention, Norm, ResidualBranch
from edgewise.theory.averages.activation_averages import Activation, activation
from edgewise.theory.simplex.state import Gradient, Setting, SimplexState, SimplexStep, chain, ratio
from edgewise.theory.softmax.moments import OverlapMoments, moment_table


def step(state: SimplexState, branch: ResidualBranch, setting: Setting) -> SimplexStep:
    """Apply a branch; cross terms vanish at initialization, because every layer ends in an independent matrix."""
    before = normalize(branch.norm, state) if branch.norm.before else identity(state)
    paths = [_path(branch, layer, before, setting) for layer in branch.layers]
    total = state.scaled(branch.skip**2)
    for path in paths:
        total = total.plus(path.state)
    outside = normalize(branch.norm, total) if branch.norm.outside else identity(total)

    def pull(g: Gradient) -> Gradient:
        g = outside.pull(g)
        back = g.scaled(branch.skip**2)
        for path in paths:
            back = back.plus(path.pull(g))
        return back

    def weights(g: Gradient) -> Mapping[str, Array]:
        g = outside.pull(g)
        return {name: value for path in paths if path.weights for name, value in path.weights(g).items()}

    def statistics() -> Mapping[str, Array]:
        return {name: value for path in paths for name, value in path.statistics().items()}

    return SimplexStep(outside.state, pull, statistics, weights)


def _path(
    branch: ResidualBranch, layer: Attention | MLP, before: SimplexStep, setting: Setting
) -> SimplexStep:
    """One layer between the norms, with its multiplier."""
    if isinstance(layer, Attention):
        inner = attend(layer, before.state, setting)
    else:
        inner = perceive(layer, before.state, setting)
    after = normalize(branch.norm, inner.state) if branch.norm.after else identity(inner.state)
    multiplier = layer.branch**2

    def scale(g: Gradient) -> Gradient:
        return g.scaled(multiplier)

    def weights(g: Gradient) -> Mapping[str, Array]:
        assert inner.weights is not None
        return inner.weights(after.pull(scale(g)))

    pull = chain(before.pull, inner.pull, after.pull, scale)
    return SimplexStep(after.state.scaled(multiplier), pull, inner.statistics, weights)


def normalize(norm: Norm, state: SimplexState) -> SimplexStep:
    """Apply a norm: (q, D) -> (1, D/q), gradients divided by q; or Gaussian averages of tanh, erf in the norm's place.

    LayerNorm and RMSNorm differ only by the feature mean, O(1/sqrt d) at initialization; the projection of the
    gradient on the sphere is O(1/d). DyT and Derf are x -> phi(slope x) [Zhu 2025; Alekseev 2026].
    """
    if norm.kind in ("layer", "rms"):
        alive = np.asarray(state.norm) > 0  # a norm leaves a vanished signal at zero
        factor = np.where(alive, 1.0 / np.where(alive, state.norm, 1.0), 0.0)
        after = SimplexState(np.where(alive, 1.0, 0.0), np.asarray(state.difference * factor))
        return SimplexStep(after, lambda g: g.scaled(factor))
    phi, a2 = activation(norm.kind), norm.slope**2
    q, e = a2 * state.norm, state.separation
    after = SimplexState(phi.square(q), a2 * state.difference * phi.chord(q, e))
    return SimplexStep(after, lambda g: g.scaled(a2 * phi.slope_square(q), a2 * phi.slope_product(q, 1 - e)))


def identity(state: SimplexState) -> SimplexStep:
    """Return the step of no norm."""
    return SimplexStep(state, lambda g: g)


def perceive(layer: MLP, state: SimplexState, setting: Setting) -> SimplexStep:
    """Apply an MLP: q_m = s2^2 E phi^2, D_m = s2^2 (E phi^2 - E phi phi'), by the chord so that nothing cancels.

    The hidden variance is q_h = s1^2 q + sb^2; a gated MLP multiplies by the linear half su^2 (q, p).
    """
    phi = activation(layer.activation)
    hidden = SimplexState(layer.in_gain**2 * state.norm + layer.bias**2, layer.in_gain**2 * state.difference)
    square = phi.square(hidden.norm)
    lost = hidden.difference * phi.chord(hidden.norm, hidden.separation)
    if layer.gated:
        gain = (layer.out_gain * layer.linear_gain) ** 2
        after = SimplexState(state.norm * square, state.difference * square + state.cross * lost).scaled(gain)
    else:
        after = SimplexState(square, lost).scaled(layer.out_gain**2)
    return SimplexStep(
        after,
        lambda g: g.scaled(*_mlp_slopes(layer, phi, state, hidden)),
        weights=lambda g: _mlp_weights(layer, phi, state, hidden, g, setting),
    )


def _mlp_slopes(
    layer: MLP, phi: Activation, state: SimplexState, hidden: SimplexState
) -> tuple[Array, Array]:
    """B = s2^2 s1^2 E phi'^2 and B_c with the pair average; gated: s2^2 su^2 (s1^2 q E phi'^2 + E phi^2)."""
    q, c = hidden.norm, 1 - hidden.separation
    own, cross = layer.in_gain**2 * phi.slope_square(q), layer.in_gain**2 * phi.slope_product(q, c)
    if layer.gated:
        own = layer.linear_gain**2 * (state.norm * own + phi.square(q))
        cross = layer.linear_gain**2 * (state.cross * cross + phi.product(q, c))
    return layer.out_gain**2 * own, layer.out_gain**2 * cross


def _mlp_weights(
    layer: MLP, phi: Activation, state: SimplexState, hidden: SimplexState, g: Gradient, setting: Setting
) -> Mapping[str, Array]:
    """|dL/dW|^2 for W_1 (gate), W_2 and the linear half, from g at the layer's output; n (own + (n-1) cross)."""
    q, c = hidden.norm, 1 - hidden.separation
    tokens, width = setting.tokens, setting.width

    def total(own: Array, cross: Array) -> Array:
        return tokens * (g.own * own + (tokens - 1) * g.cross * cross)

    s1, s2 = (phi.slope_square(q), phi.slope_product(q, c)), (phi.square(q), phi.product(q, c))
    x = (state.norm, state.cross)
    if not layer.gated:
        return {
            "mlp_in": width * layer.out_gain**2 * total(x[0] * s1[0], x[1] * s1[1]),
            "mlp_out": layer.width * total(*s2),
        }
    u2, o2 = layer.linear_gain**2, layer.out_gain**2
    return {
        "mlp_in": width * o2 * u2 * total(x[0] ** 2 * s1[0], x[1] ** 2 * s1[1]),
        "mlp_linear": width * o2 * total(x[0] * s2[0], x[1] * s2[1]),
        "mlp_out": layer.width * u2 * total(x[0] * s2[0], x[1] * s2[1]),
    }


Mean = Callable[[Array, Array], Array]
HARDEST = 1e8  # logit variance: beyond it every row sits on one key to four digits


def attend(layer: Attention, state: SimplexState, setting: Setting) -> SimplexStep:
    """Apply the layer's kernel."""
    kernels = {"gaussian": gaussian_attention, "bilinear": bilinear_attention}
    return kernels.get(layer.kernel, softmax_attention)(layer, state, setting)


def softmax_attention(layer: Attention, state: SimplexState, setting: Setting) -> SimplexStep:
    """q_att = sV^2 (p + D S2), D_att = sV^2 D (S2 - S11), the latter by its chord.

    Logits of a row have variance v = sA^2 q D (QK-norm: sA^2 D/q), rows correlate by rho = p/q. A bias drawn for each
    distance is another one for every row: v + b^2, and rows correlate by v rho / (v + b^2).
    """
    row = Row(layer, state, setting)
    spread = row.s2_minus_s11
    after = SimplexState(state.cross + state.difference * row.s2, state.difference * spread)
    return SimplexStep(
        after.scaled(layer.value_gain**2),
        lambda g: _pull_softmax(row, g),
        statistics=lambda: {"logit_variance": row.variance, "attention_entropy": row.entropy},
        weights=lambda g: _softmax_weights(row, g),
    )


@dataclass(frozen=True)
class Row:
    """Softmax moments of this layer's rows, averaged over the length of a finite-width query.

    For head width d_k a query's squared length is chi^2_{d_k}/d_k times its mean, and given the query the logits
    are exactly Gaussian; two rows share the factor, which is exact at c = 1 and immaterial at c = 0.
    """

    layer: Attention
    state: SimplexState
    setting: Setting

    @cached_property
    def variance(self) -> Array:
        scale = 1 / self.state.norm if self.layer.qk_norm else self.state.norm
        variance = self.layer.score_gain**2 * self.state.difference * scale
        return np.asarray(np.minimum(variance, HARDEST))

    @cached_property
    def _nodes(self) -> list[tuple[float, float, OverlapMoments]]:
        unlike = self.state.separation + (1 - self.state.separation) * ratio(self.bias, self._biased)
        setting = self.setting
        every = setting.moments(self._biased, 1 - unlike, setting.tokens, setting.budget)
        return [(w, x, OverlapMoments(*(m[i] for m in every))) for i, (x, w) in enumerate(self._lengths)]

    @cached_property
    def bias(self) -> Array:
        """The variance that positions add to the logits."""
        return np.asarray(np.minimum(np.asarray(self.layer.position_bias) ** 2, HARDEST))

    @cached_property
    def _biased(self) -> Array:
        """The variance of a row's logits for each length of its query."""
        return np.multiply.outer([x for x, _ in self._lengths], self.variance) + self.bias

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
        content = self.variance * self.state.separation * self._mean(lambda x, m: x * m.chord)
        return np.asarray(content + self.bias * self._mean(lambda x, m: m.chord))

    @cached_property
    def entropy(self) -> Array:
        entropies = moment_table(self.setting.tokens).entropy(self._biased, self.setting.budget)
        return np.asarray(sum(w * entropy for entropy, (_, w) in zip(entropies, self._lengths, strict=True)))

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
        """sA^2, divided by q^2 when queries and keys are normalized."""
        return np.asarray(self.layer.score_gain**2 / (self.state.norm**2 if self.layer.qk_norm else 1.0))


@lru_cache(maxsize=64)
def query_lengths(head_width: int) -> list[tuple[float, float]]:
    """Gauss nodes and weights (x, w) for the law of |query|^2 over its mean, chi^2_{d_k} / d_k.

    Wide heads need two nodes, which match three moments: variance 2/d_k and third central moment 8/d_k^2.
    """
    if head_width < 64:
        nodes, weights = _laguerre(4, head_width / 2 - 1)
        return [(float(2 * x / head_width), float(w)) for x, w in zip(nodes, weights, strict=True)]
    skew = 4 / head_width
    root = np.sqrt(skew**2 + 8 / head_width)
    return [(1 + (skew + side * root) / 2, 0.5 - side * skew / (2 * root)) for side in (-1.0, 1.0)]


def _laguerre(count: int, power: float) -> tuple[Array, Array]:
    """Gauss nodes and weights of the density x^power e^-x, weights of sum 1 [Golub and Welsch 1969]."""
    k = np.arange(count)
    off = np.diag(np.sqrt(k[1:] * (k[1:] + power)), 1)
    nodes, vectors = np.linalg.eigh(np.diag(2 * k + 1 + power) + off + off.T)
    return nodes, vectors[0] ** 2


def _pull_softmax(row: Row, g: Gradient) -> Gradient:
    """Value, query and key paths; cross terms between them are O(1/d).

    Vq = sV^2 [gq S2 + (n-1) gp S11],  Qq = sA^2 sV^2 D^2 gq R2,  Kq = sA^2 sV^2 D [q gq R2 + (n-1) p gp T11],
    and the key gradients sum to zero over tokens, Kp = -Kq/(n-1).
    """
    n, q, p, D = row.setting.tokens, row.state.norm, row.state.cross, row.state.difference
    value = Gradient(
        g.own * row.s2 + (n - 1) * g.cross * row.s11, g.own * (1 - row.s2) / (n - 1) + g.cross * (1 - row.s11)
    )
    (r2, t11), (key_r2, key_t11) = row.query_side, row.key_side
    query = Gradient(D**2 * g.own * r2, D**2 * g.cross * t11)
    key_own = D * (q * g.own * key_r2 + (n - 1) * p * g.cross * key_t11)
    logits = query.plus(Gradient(key_own, -key_own / (n - 1))).scaled(row.logit_scale)
    return value.plus(logits).scaled(row.layer.value_gain**2)


def _softmax_weights(row: Row, g: Gradient) -> Mapping[str, Array]:
    """|dL/dW|^2 of the four projections, g at the layer's output; the same for any number of heads.

    W_V: d gO^2 n [gq (p + D S2) + (n-1) gp (p + D S11)];  W_O: H d_k gV^2 and the same bracket;
    W_Q: d gK^2 sV^2 D^2 n [q gq R2 + (n-1) p gp T11];  W_K: gQ^2 instead, weighted by the query's length.
    """
    layer, n, q, p, D = row.layer, row.setting.tokens, row.state.norm, row.state.cross, row.state.difference
    mixed = n * (g.own * (p + D * row.s2) + (n - 1) * g.cross * (p + D * row.s11))
    value_gain, query_gain = (
        ratio(layer.value_gain, layer.output_gain),
        ratio(layer.score_gain, layer.key_gain),
    )
    behind_query, behind_key = layer.key_gain**2, query_gain**2
    if layer.qk_norm:  # the norms divide by the projections' own gains, taken equal
        behind_query = behind_key = row.logit_scale * ratio(1.0, layer.key_gain) ** 2
    (r2, t11), (key_r2, key_t11) = row.query_side, row.key_side
    width = row.setting.width
    common = width * layer.value_gain**2 * D**2 * n
    return {
        "value": width * layer.output_gain**2 * mixed,
        "output": layer.heads * layer.head_width * value_gain**2 * mixed,
        "query": common * behind_query * (q * g.own * r2 + (n - 1) * p * g.cross * t11),
        "key": common * behind_key * (q * g.own * key_r2 + (n - 1) * p * g.cross * key_t11),
    }


def gaussian_attention(layer: Attention, state: SimplexState, setting: Setting) -> SimplexStep:
    """q_att = sV^2 [n q M(q,q) + n(n-1) p M(q,p)]; the difference sums M(q,.) - M(p,.), by the log of their ratio."""
    _check_supported("Gaussian", layer)
    kernel = Kernel(layer, state, setting.tokens)
    n, q, p = setting.tokens, state.norm, state.cross
    after = SimplexState(kernel.mixed(q), n * q * kernel.drop(q) + n * (n - 1) * p * kernel.drop(p))
    return SimplexStep(
        after.scaled(layer.value_gain**2),
        lambda g: _pull_gaussian(kernel, g),
        weights=lambda g: _gaussian_weights(kernel, g, setting.width),
    )


def _check_supported(kernel: str, layer: Attention) -> None:
    if layer.qk_norm:
        raise NotCovered(f"qk_norm with the {kernel} kernel is not modeled. Set qk_norm = false.")
    if np.any(layer.position_bias):
        raise NotCovered(f"position_bias with the {kernel} kernel is not modeled. Set position_bias = 0.")


@dataclass(frozen=True)
class Kernel:
    """The means M and kappa M of this layer, over the overlaps x of two queries' tokens and y of two keys' tokens."""

    layer: Attention
    state: SimplexState
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
        return np.asarray(self.query_square * x + self.layer.key_gain**2 * y)

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


def _pull_gaussian(kernel: Kernel, g: Gradient) -> Gradient:
    """Value, query and key paths; cross terms between them are O(1/d).

    V_bb' = sum_aa' Gamma_aa' M(C_aa', C_bb'),  Q_aa' = gQ^2 Gamma_aa' sum_bc C_bc (kappa M)(C_aa', C_bc),
    K_bb' = gK^2 C_bb' sum_aa' Gamma_aa' (kappa M)(C_aa', C_bb'), all times sV^2.
    """
    q, p = kernel.state.norm, kernel.state.cross
    value = Gradient(_over_queries(kernel, g, kernel.mean, q), _over_queries(kernel, g, kernel.mean, p))
    query = Gradient(g.own * kernel.tilted_mixed(q), g.cross * kernel.tilted_mixed(p)).scaled(
        kernel.query_square
    )
    key = Gradient(
        q * _over_queries(kernel, g, kernel.tilted, q), p * _over_queries(kernel, g, kernel.tilted, p)
    ).scaled(kernel.layer.key_gain**2)
    return value.plus(query).plus(key).scaled(kernel.layer.value_gain**2)


def _over_queries(kernel: Kernel, g: Gradient, mean: Mean, y: Array) -> Array:
    """sum over queries a, a' of Gamma_aa' mean(C_aa', y)."""
    n, q, p = kernel.tokens, kernel.state.norm, kernel.state.cross
    return n * g.own * mean(q, y) + n * (n - 1) * g.cross * mean(p, y)


def _gaussian_weights(kernel: Kernel, g: Gradient, width: int) -> Mapping[str, Array]:
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


def bilinear_attention(layer: Attention, state: SimplexState, setting: Setting) -> SimplexStep:
    """O = (sV sA / n)^2 F C, with F = n q^2 + n (n-1) p^2."""
    _check_supported("bilinear", layer)
    n, width, q, p = setting.tokens, setting.width, state.norm, state.cross
    keys = n * q**2 + n * (n - 1) * p**2
    share = (layer.score_gain * layer.value_gain / n) ** 2

    def queries(g: Gradient) -> Array:
        return n * q * g.own + n * (n - 1) * p * g.cross

    def pull(g: Gradient) -> Gradient:
        """Return the paths: of value and key C T, of the query Gamma F; T = sum_aa' C_aa' Gamma_aa'."""
        return Gradient(2 * q * queries(g) + g.own * keys, 2 * p * queries(g) + g.cross * keys).scaled(share)

    def weights(g: Gradient) -> Mapping[str, Array]:
        mixed = ratio(share, layer.value_gain**2) * keys * queries(g)
        logits = width * (layer.value_gain / n) ** 2 * keys * queries(g)
        return {
            "value": width * layer.output_gain**2 * mixed,
            "output": layer.heads
            * layer.head_width
            * ratio(layer.value_gain, layer.output_gain) ** 2
            * mixed,
            "query": logits * layer.key_gain**2,
            "key": logits * ratio(layer.score_gain, layer.key_gain) ** 2,
        }

    return SimplexStep(state.scaled(share * keys), pull, weights=weights)
