"""A block is a tuple of branches: pre-norm, post-norm, residual scaling, parallel blocks are values, not code paths.

Gains are floats in a description and may be arrays inside a phase diagram; nothing here inspects them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from edgewise.nouns.knobs import Knobs, Value

Gain = Any  # a float, or an array over a grid


@dataclass(frozen=True)
class Attention:
    """Multi-head attention with logit gain sA, value and output gain sV, and the multiplier of its branch."""

    heads: int
    head_width: int
    kv_heads: int
    score_gain: Gain
    value_gain: Gain
    key_gain: Gain
    output_gain: Gain
    branch: Gain
    causal: bool
    window: int | None
    rope: float
    rope_base: float
    alibi: bool
    position_bias: Gain
    qk_norm: bool
    kernel: str

    name = "attention"

    @property
    def symmetric(self) -> bool:
        """No position is special: the token-permutation (simplex) recursion is exact.

        A bias drawn for each distance makes the rows of two queries less alike, and no position special on average.
        """
        return not (self.causal or self.window is not None or self.rope or self.alibi)


@dataclass(frozen=True)
class MLP:
    """Two-matrix perceptron, plain or gated, and the multiplier of its branch."""

    width: int
    activation: str | Callable[..., Any]
    gated: bool
    in_gain: Gain
    linear_gain: Gain
    out_gain: Gain
    bias: Gain
    branch: Gain

    name = "mlp"


@dataclass(frozen=True)
class Norm:
    """Which norms a branch has: of its input, of its output, of the sum; and of what kind."""

    before: bool
    after: bool
    outside: bool
    kind: str
    slope: float


@dataclass(frozen=True)
class ResidualBranch:
    """x <- outside( skip x + sum over layers of layer.branch after(layer(before(x))) )."""

    layers: tuple[Attention | MLP, ...]
    skip: Gain
    norm: Norm

    @property
    def name(self) -> str:
        return "+".join(layer.name for layer in self.layers)


Block = tuple[ResidualBranch, ...]
L = TypeVar("L", Attention, MLP)


def attentions(*blocks: Block) -> Iterator[Attention]:
    """Yield the attention layers of some blocks, in order."""
    for block in blocks:
        for branch in block:
            yield from (layer for layer in branch.layers if isinstance(layer, Attention))


_POSITIONS = {
    "pre": (True, False, False),
    "sandwich": (True, True, False),
    "branch": (False, True, False),
    "post": (False, False, True),
    "none": (False, False, False),
}


def fold(knobs: Knobs) -> tuple[Block, ...]:
    """Return the blocks that flat knobs describe; a per-block knob is a tuple of length depth."""
    rows = (
        {name: value[index] if isinstance(value, tuple) else value for name, value in knobs.items()}
        for index in range(knobs["depth"])
    )
    return tuple(map(_block, rows))


def _block(knobs: dict[str, Value]) -> Block:
    norm = Norm(*_POSITIONS[knobs["norm"]], knobs["norm_kind"], knobs["norm_slope"])
    key, output = knobs["key_gain"], knobs["output_gain"]
    roots = {
        "key_gain": _root(knobs["score_gain"]) if key is None else key,
        "output_gain": _root(knobs["value_gain"]) if output is None else output,
    }
    attention = (_layer(Attention, knobs | roots, "attention"),) if knobs["heads"] else ()
    mlp = (_layer(MLP, knobs, "mlp"),) if knobs["mlp_width"] else ()
    if knobs["parallel"]:
        return (ResidualBranch((*attention, *mlp), knobs["attention_skip"], norm),)
    branches = ((attention, knobs["attention_skip"]), (mlp, knobs["mlp_skip"]))
    return tuple(ResidualBranch(layers, skip, norm) for layers, skip in branches if layers)


def _layer(kind: type[L], knobs: dict[str, Value], part: str) -> L:
    """Return the layer whose fields are the knobs of these names, behind the part's name if there is such a knob."""
    names = ((field.name, f"{part}_{field.name}") for field in fields(kind))
    return kind(**{name: knobs[long if long in knobs else name] for name, long in names})


def _root(gain: Gain) -> Gain:
    return math.sqrt(gain) if isinstance(gain, float) else gain**0.5
