"""From the standard deviations a library draws its weights with to the gains of the theory.

gain = standard deviation * sqrt(fan_in): what a matrix multiplies the root mean square of its input by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The sizes that set every fan-in of a block."""

    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int

    def knobs(self) -> dict[str, Any]:
        return dict(vars(self))


def gain(standard_deviation: float, fan_in: float) -> float:
    """gain = s sqrt(fan_in)."""
    return standard_deviation * math.sqrt(fan_in)


def normal_gains(
    shape: Shape,
    standard_deviation: float,
    *,
    output: float | None = None,
    gated: bool = False,
    scaling: float = 1.0,
) -> dict[str, Any]:
    """Gains of a block whose matrices are all drawn with one standard deviation s.

    output: that of the two output matrices, where it differs (GPT-2: s/sqrt(2 depth));
    scaling: what multiplies the logits beyond 1/sqrt(head width).
    """
    s, out = standard_deviation, standard_deviation if output is None else output
    inward, outward = gain(s, shape.width), gain(out, shape.heads * shape.head_width)
    gains = {
        "score_gain": inward * inward * scaling,
        "key_gain": inward,
        "value_gain": inward * outward,
        "output_gain": outward,
        "mlp_in_gain": inward,
        "mlp_out_gain": gain(out, shape.mlp_width),
    }
    return gains | ({"mlp_linear_gain": inward} if gated else {})


def with_query_key_norm(gains: dict[str, Any], scaling: float = 1.0) -> dict[str, Any]:
    """Normalised queries and keys: the gains are those of the norms, 1 at first, whatever the matrices."""
    return gains | {"qk_norm": True, "score_gain": scaling, "key_gain": None}


def truncated(standard_deviation: float, cutoff: float) -> float:
    """Standard deviation of a normal cut at +-cutoff sigma: s sqrt(1 - 2 c phi(c)/(2 Phi(c) - 1)).

    A cut at 2 leaves 0.8796 s. `trunc_normal_(std=0.02)` of torch cuts at +-2, that is at 100 sigma: nothing.
    """
    density = math.exp(-(cutoff**2) / 2) / math.sqrt(2 * math.pi)
    return standard_deviation * math.sqrt(1 - 2 * cutoff * density / math.erf(cutoff / math.sqrt(2)))
