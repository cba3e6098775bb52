"""The flat knobs of a simulated network, resolved to one value per layer."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import sqrt
from typing import Any

NORMS = ("pre", "post", "sandwich", "branch", "none")
NORM_KINDS = ("layer", "rms", "tanh", "erf")


@dataclass(frozen=True)
class Knobs:
    """One random network: weights iid N(0, gain^2 / fan_in), logits divided by sqrt(head_width).

    A number may be given as a list of length `depth`; `at(layer)` picks the layer's value.
    """

    depth: int
    tokens: int
    width: int
    heads: int = 8  # 0: no attention
    head_width: int | None = None  # width / heads
    kv_heads: int | None = None  # heads
    mlp_width: int | None = None  # 4 width; 0: no MLP
    activation: str = "gelu"
    gated: bool = False
    norm: str = "pre"
    norm_kind: str = "layer"
    norm_slope: float | list[float] = 1.0  # of the elementwise tanh or erf in the norm's place
    embedding_norm: float = 1.0
    score_gain: float | list[float] = 1.0  # gain_Q gain_K; with qk_norm the product of those norms' gains
    key_gain: float | list[float] | None = None  # gain_K alone; sqrt(score_gain)
    value_gain: float | list[float] = 1.0  # gain_V gain_O
    output_gain: float | list[float] | None = None  # gain_O alone; sqrt(value_gain)
    mlp_in_gain: float | list[float] = 1.0
    mlp_linear_gain: float | list[float] = 1.0
    mlp_out_gain: float | list[float] = 1.0
    mlp_bias: float | list[float] = 0.0
    attention_skip: float | list[float] = 1.0
    attention_branch: float | list[float] = 1.0
    mlp_skip: float | list[float] = 1.0
    mlp_branch: float | list[float] = 1.0
    parallel: bool = False  # x <- attention_skip x + both branches of the same normed input
    causal: bool = False
    window: int | None = None  # keys a - window < b <= a (causal), |a - b| < window (not causal)
    rope: bool | float = False  # True, or the rotated fraction of each head
    rope_base: float = 10000.0
    alibi: bool = False
    position_bias: float | list[float] = (
        0.0  # standard deviation of a table of one number per head and distance
    )
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if self.norm not in NORMS or self.norm_kind not in NORM_KINDS:
            seen = f"norm {self.norm!r} of kind {self.norm_kind!r}"
            raise ValueError(f"{seen}: expected one of {NORMS} and one of {NORM_KINDS}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (list, tuple)) and len(value) != self.depth:
                raise ValueError(f"{field.name} has {len(value)} values for {self.depth} layers")
        if self.heads and self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key heads")

    def at(self, layer: int) -> Knobs:
        """The knobs of one layer: depth 1, lists indexed, optional values filled in."""
        chosen: dict[str, Any] = {
            field.name: value[layer]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), (list, tuple))
        }
        own = replace(self, depth=1, **chosen)
        return replace(
            own,
            head_width=self.head_width or self.width // max(self.heads, 1),
            kv_heads=self.kv_heads or self.heads,
            mlp_width=4 * self.width if self.mlp_width is None else self.mlp_width,
            attention_branch=own.attention_branch if self.heads else 0.0,
            mlp_branch=0.0 if self.mlp_width == 0 else own.mlp_branch,
            key_gain=sqrt(own.score_gain) if own.key_gain is None else own.key_gain,
            output_gain=sqrt(own.value_gain) if own.output_gain is None else own.output_gain,
        )
