"""Linear attention without a normaliser, on the simplex state: it leaves the angles between tokens alone.

    o_a = (1/n) sum_b (q_a . k_b) / sqrt(h) v_b
    E[(q_a.k_b)(q_a'.k_c)] / h = sA^2 C_aa' C_bc   so   O_aa' = (sV sA / n)^2 C_aa' F ,   F = sum_bc C_bc^2 .

The output's Gram matrix is the input's, times a number: cosines are kept in the mean, whatever the gains and length.
Softmax, and linear attention with positive features and a normaliser, average with positive weights: they merge tokens.
Derived here; heads enter by their mean only.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgewise.blocks import Attention
from edgewise.errors import BadInput
from edgewise.theory.state import Array, Gradient, Simplex, Step, ratio


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
