"""The knobs of a transformer: one row each, from which validation, JSON, the command line and the docs follow."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from edgewise.errors import BadInput

ACTIVATIONS = (
    "linear",
    "relu",
    "leaky_relu",
    "erf",
    "tanh",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "sigmoid",
    "relu2",
    "softplus",
    "sin",
)
NORMS = ("pre", "post", "sandwich", "branch", "none")
NORM_KINDS = ("layer", "rms", "tanh", "erf")
KERNELS = ("softmax", "gaussian", "bilinear")
Value = Any  # of a knob: a number, a word, a flag, a callable, or one of these for every block
Knobs = Mapping[str, Any]  # values by name
DEEPEST = 10_000  # blocks or layers: every one is followed
LARGEST_COUNT = 10**9  # of tokens, heads and widths, which stand in formulas
LARGEST_NUMBER = 1e100  # so that squares and products of them stay in the range of numbers


@dataclass(frozen=True)
class Knob:
    """One number or choice of a description: what it may be, its default, what it means."""

    name: str
    kind: str  # integer | number | flag | choice | activation | fraction
    default: Any
    meaning: str
    minimum: float = -math.inf
    maximum: float = math.inf  # of the size: beyond it no answer is waited for, or numbers cannot hold it
    exclusive: bool = False  # the minimum itself is not allowed
    choices: tuple[str, ...] = ()
    per_block: bool = False  # may be a list of length depth
    optional: bool = False  # None is a value ("not there", or "follows from the others")

    def check(self, value: Value, depth: int) -> Value:
        """Return the value in its canonical form; raise `BadInput` that names the knob."""
        if hasattr(value, "tolist"):  # numpy and torch numbers and arrays
            value = value.tolist()
        if isinstance(value, Sequence) and not isinstance(value, str):
            return self._check_list(value, depth)
        if value is None and self.optional:
            return None
        return _CHECKS[self.kind](self, value)

    def _check_list(self, values: Sequence[Value], depth: int) -> Value:
        if not self.per_block:
            raise BadInput(f"{self.name} must be one value for the whole network, got a list.")
        if len(values) != depth:
            raise BadInput(
                f"{self.name} has {len(values)} entries and depth is {depth}. Give one value or {depth} values."
            )
        nested = next(
            (v for v in values if isinstance(v, (Sequence, set, dict)) and not isinstance(v, str)), None
        )
        if nested is not None:
            raise BadInput(
                f"{self.name} must be a list of single values, got a {type(nested).__name__} inside it."
            )
        checked = tuple(self.check(value, depth) for value in values)
        return checked[0] if len(set(checked)) == 1 else checked

    def reject(self, value: Value, expected: str) -> BadInput:
        """Return the error of a value that is not what was expected."""
        return BadInput(f"{self.name} must be {expected}, got {shown(value)}. It is: {self.meaning}.")


def shown(value: Value, longest: int = 60) -> str:
    """Return a value for a message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write out integers of more than 4300 digits
        return f"a whole number of {value.bit_length():,} bits"
    return text if len(text) <= longest else f"{text[: longest - 3]}... ({len(text):,} characters)"


def _integer(knob: Knob, value: Value) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < knob.minimum:
        raise knob.reject(value, f"a whole number of at least {knob.minimum:g}")
    if value > knob.maximum:
        raise knob.reject(value, f"at most {knob.maximum:,.0f}")
    return value


def _number(knob: Knob, value: Value) -> float:
    bound = f"a finite number {'above' if knob.exclusive else 'of at least'} {knob.minimum:g}"
    expected = "a finite number" if knob.minimum == -math.inf else bound
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise knob.reject(value, expected)
    if value < knob.minimum or (knob.exclusive and value == knob.minimum):
        raise knob.reject(value, expected)
    if abs(value) > knob.maximum:
        raise knob.reject(value, f"{expected} and at most {knob.maximum:g} in size")
    return float(value)


def _flag(knob: Knob, value: Value) -> bool:
    if not isinstance(value, bool):
        raise knob.reject(value, "true or false")
    return value


def _fraction(knob: Knob, value: Value) -> float:
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise knob.reject(value, "true, false, or a fraction between 0 and 1")
    return float(value)


def _choice(knob: Knob, value: Value) -> str:
    if value not in knob.choices:
        raise knob.reject(value, "one of " + ", ".join(knob.choices))
    return str(value)


def _activation(knob: Knob, value: Value) -> Value:
    if callable(value):
        return value
    if not isinstance(value, str) or value.partition(":")[0] not in ACTIVATIONS:
        raise knob.reject(value, "a callable or one of " + ", ".join(ACTIVATIONS))
    return value


_CHECKS: dict[str, Callable[[Knob, Value], Value]] = {
    "integer": _integer,
    "number": _number,
    "flag": _flag,
    "choice": _choice,
    "activation": _activation,
    "fraction": _fraction,
}


def _multiplier(name: str, meaning: str) -> Knob:
    return Knob(name, "number", 1.0, meaning, maximum=LARGEST_NUMBER, per_block=True)


def _positive(name: str, default: float, meaning: str, minimum: float = 0.0, per_block: bool = False) -> Knob:
    return Knob(name, "number", default, meaning, minimum, LARGEST_NUMBER, not minimum, per_block=per_block)


def _gain(name: str, meaning: str, default: float | None = 1.0) -> Knob:
    optional = default is None
    return Knob(name, "number", default, meaning, 0.0, LARGEST_NUMBER, per_block=True, optional=optional)


def _count(
    name: str, default: int | None, meaning: str, minimum: int = 1, maximum: int = LARGEST_COUNT
) -> Knob:
    return Knob(name, "integer", default, meaning, minimum, maximum, optional=default is None)


_LOGIT_BIAS = "standard deviation of a bias of the logits by distance, drawn for every head"
_NORMED = "queries and keys normalized; score_gain is then the product of their gains"
_KERNEL = (
    "weights of the keys, with s = 1/sqrt(head_width): softmax of s q.k; gaussian, exp(-s (q-k)^2/2), rows not "
    "normalized; bilinear, s q.k over the number of tokens"
)
_ROPE = "rotary positions: true, or the rotated fraction of a head"
_NORM_KIND = "LayerNorm, RMSNorm, or elementwise tanh (DyT), erf (Derf)"
_WINDOW = "keys seen to one side, the token itself included"
KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        _count("depth", 12, "number of blocks", maximum=DEEPEST),
        _count("tokens", 256, "sequence length n; an overlap needs two", 2),
        _count("width", 512, "width of the residual stream d"),
        _count("heads", 8, "attention heads; 0 leaves attention out", 0),
        _count("head_width", None, "width of one head; width/heads unless given"),
        _count("kv_heads", None, "key and value heads; heads unless given"),
        _count(
            "mlp_width",
            None,
            "hidden width; 4 width unless given, 0 leaves the MLP out",
            0,
            4 * LARGEST_COUNT,
        ),
        Knob("activation", "activation", "gelu", "activation of the MLP"),
        Knob("gated", "flag", False, "gated MLP (SwiGLU, GEGLU)"),
        Knob("norm", "choice", "pre", "position of the norms", choices=NORMS),
        Knob("norm_kind", "choice", "layer", _NORM_KIND, choices=NORM_KINDS),
        _positive("norm_slope", 1.0, "slope inside an elementwise norm, tanh(slope x)"),
        _positive("embedding_norm", 1.0, "mean square per coordinate q at the input"),
        _gain("score_gain", "gain_Q gain_K: the standard deviation of a logit at q = 1"),
        _gain("value_gain", "gain_V gain_O: value and output projections together"),
        _gain("key_gain", "gain_K alone (weight gradients only); sqrt(score_gain) unless given", None),
        _gain("output_gain", "gain_O alone (weight gradients only); sqrt(value_gain) unless given", None),
        _gain("mlp_in_gain", "gain of the MLP input matrix (the gate, if gated)"),
        _gain("mlp_linear_gain", "gain of the linear half of a gated MLP"),
        _gain("mlp_out_gain", "gain of the MLP output matrix"),
        _gain("mlp_bias", "standard deviation of the hidden bias", 0.0),
        _multiplier("attention_skip", "multiplier of the stream around attention"),
        _multiplier("attention_branch", "multiplier of the attention branch"),
        _multiplier("mlp_skip", "multiplier of the stream around the MLP"),
        _multiplier("mlp_branch", "multiplier of the MLP branch"),
        Knob("parallel", "flag", False, "attention and MLP read the same input and are added together"),
        Knob("causal", "flag", False, "a token sees itself and earlier tokens only"),
        Knob("window", "integer", None, _WINDOW, minimum=1, per_block=True, optional=True),
        Knob("rope", "fraction", 0.0, _ROPE, per_block=True),
        _positive("rope_base", 10000.0, "base of the rotary frequencies", 1.0, per_block=True),
        Knob("alibi", "flag", False, "linear position bias on the logits"),
        _gain("position_bias", _LOGIT_BIAS, 0.0),
        Knob("qk_norm", "flag", False, _NORMED),
        Knob("kernel", "choice", "softmax", _KERNEL, choices=KERNELS),
    )
}


def refuse_unknown(names: Iterable[str], choices: Iterable[str], what: str = "knob") -> None:
    """Raise `BadInput` for a name that is not a knob, with the nearest ones that are."""
    choices = tuple(choices)
    for name in names:
        if name not in choices:
            near = get_close_matches(str(name), choices, n=3)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else "expected one of " + ", ".join(choices) + "."
            )
            raise BadInput(f"{name!r} is not a {what}; {hint}")
