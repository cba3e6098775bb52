"""What a config says by field: activations, gains of its initialization, positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.errors import BadInput
from edgewise.nouns.knobs import KNOBS, LARGEST_NUMBER, shown


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

    output: that of the two output matrices, if it differs (GPT-2: s/sqrt(2 depth));
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
    """Normalized queries and keys: the gains are those of the norms, 1 at first, whatever the matrices."""
    return gains | {"qk_norm": True, "score_gain": scaling, "key_gain": None}


def truncated(standard_deviation: float, cutoff: float) -> float:
    """Standard deviation of a normal cut at +-cutoff sigma: s sqrt(1 - 2 c phi(c)/(2 Phi(c) - 1)).

    A cut at 2 leaves 0.8796 s. `trunc_normal_(std=0.02)` of torch cuts at +-2, that is at 100 sigma: nothing.
    """
    density = math.exp(-(cutoff**2) / 2) / math.sqrt(2 * math.pi)
    return standard_deviation * math.sqrt(1 - 2 * cutoff * density / math.erf(cutoff / math.sqrt(2)))


FULL, SLIDING = "full_attention", "sliding_attention"
_UNCHANGED = (None, "default")


def layer_types(config: ConfigReader, depth: int, is_sliding: Callable[[int], bool]) -> tuple[str, ...]:
    """The type of every layer: as the config lists them, else the family's pattern."""
    types = config.get("layer_types")
    if types is None:
        return tuple(SLIDING if is_sliding(i) else FULL for i in range(depth))
    if not isinstance(types, (list, tuple)) or not all(isinstance(kind, str) for kind in types):
        raise BadInput(
            f"layer_types in a {config.family} config must be a list of names such as {FULL}, got {shown(types)}. "
            "Give one entry per layer, or leave layer_types out."
        )
    if len(types) != depth:
        raise BadInput(
            f"layer_types has {len(types)} entries and the {config.family} config has {depth} layers. "
            "Give one entry per layer, or leave layer_types out."
        )
    return tuple(types)


def windows(config: ConfigReader, types: Sequence[str], window: int | None) -> Any:
    """The window of every layer; one value where all agree."""
    unknown = sorted(set(types) - {SLIDING, FULL})
    if unknown:
        config.leave_out(f"layers of type {', '.join(unknown)} are taken as full attention")
    return one_or_all([window if kind == SLIDING else None for kind in types])


def one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else tuple(values)


ROPE_NUMBERS = {
    *("rope_theta", "partial_rotary_factor", "factor", "attention_factor", "mscale", "mscale_all_dim"),
    "original_max_position_embeddings",
}


def rope_parameters(config: ConfigReader, layer_type: str = FULL) -> dict[str, Any]:
    """All that a config says about rotation, old spelling or new, for one type of layer."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise BadInput(f"rope_scaling in a {config.family} config must be a dictionary, got {rope!r}.")
    rope = dict(rope)
    if any(isinstance(value, dict) for value in rope.values()):
        rope = dict(rope.get(layer_type) or {})
    for name in ROPE_NUMBERS & rope.keys():
        rope[name] = None if rope[name] is None else config.as_number((name,), rope[name])
    return rope


def rope_base(config: ConfigReader, *names: str, default: float, layer_type: str = FULL) -> float:
    """The base of the frequencies, under `rope_theta` or an older name of the family."""
    inside = rope_parameters(config, layer_type).get("rope_theta")
    return float(inside) if inside is not None else config.number(*names, default=default)


def rope_fraction(config: ConfigReader, *names: str, default: float = 1.0) -> float:
    """The rotated fraction of a head."""
    inside = rope_parameters(config).get("partial_rotary_factor", config.get("partial_rotary_factor", *names))
    return default if inside is None else config.as_number(("partial_rotary_factor", *names), inside)


def rope_scaling(config: ConfigReader) -> float:
    """Return the factor of long-context scaling on the logits (YaRN and LongRoPE multiply cos and sin).

    Its other effect, slower rotation of the slow frequencies, is left out, and noted.
    """
    rope = rope_parameters(config)
    kind = rope.get("rope_type", rope.get("type"))
    if kind in _UNCHANGED:
        return 1.0
    config.assume(f"rope scaling {kind!r}: rotation as without it; short inputs do not notice")
    return _attention_factor(config, kind, rope) ** 2 * _all_dimensions(config, rope)


def _attention_factor(config: ConfigReader, kind: str, rope: dict[str, Any]) -> float:
    if kind not in ("yarn", "longrope", "su") or rope.get("attention_factor") is not None:
        return float(rope.get("attention_factor") or 1.0)
    factor, original = _stretch(config, rope)
    if kind != "yarn":
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return _magnitude(factor, rope["mscale"]) / _magnitude(factor, rope["mscale_all_dim"])
    return _magnitude(factor)


def _stretch(config: ConfigReader, rope: dict[str, Any]) -> tuple[float, float]:
    """By how much the context was stretched, and from what length."""
    context = config.number("max_position_embeddings", default=4096)
    original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    original = config.as_number(("original_max_position_embeddings",), original or context)
    return float(rope.get("factor") or context / original), original


def _all_dimensions(config: ConfigReader, rope: dict[str, Any]) -> float:
    """DeepSeek multiplies the logits of all dimensions, rotated or not, by the square of its magnitude."""
    share = rope.get("mscale_all_dim")
    if not share or config.family != "deepseek_v3":
        return 1.0
    return _magnitude(_stretch(config, rope)[0], share) ** 2


def _magnitude(factor: float, weight: float = 1.0) -> float:
    """0.1 m log(s) + 1 [Peng 2023, YaRN, eq. 22]."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


DENSE = 128  # causal masks and rotation need the dense recursion, whose cost is cubic in the length
SYMMETRIC = 512  # the symmetric recursion costs the same at any length
DEPTH_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
# What transformers calls the functions we know; `gelu` there is the exact one.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "relu_squared": "relu2",
    "leaky_relu": "leaky_relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "linear",
}


class ConfigReader:
    """A config, read by key or alias (`integer("n_embd", "hidden_size")`), and the notes made on the way."""

    def __init__(self, values: Mapping[str, Any], tokens: int | None = None) -> None:
        self.values = values
        self.family = str(values.get("model_type"))
        self.tokens = tokens
        self.assumed: list[str] = []
        self.unmodelled: list[str] = []

    def assume(self, sentence: str) -> None:
        """Note a value that the config leaves open."""
        self.assumed.append(sentence)

    def leave_out(self, reason: str) -> None:
        """Note something the theory does not cover: numbers are then marked extrapolated."""
        self.unmodelled.append(reason)

    def get(self, *names: str) -> Any:
        """The first of these keys that is there and not null, else None."""
        present = (self.values[name] for name in names if self.values.get(name) is not None)
        return next(present, None)

    def integer(self, *names: str, default: int | None = None) -> int:
        value = self._value(names, default)
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if not whole or isinstance(value, bool) or not 1 <= value <= LARGEST_NUMBER:
            raise self._refuse(names, value, f"a whole number from 1 to {LARGEST_NUMBER:g}")
        return int(value)

    def number(self, *names: str, default: float | None = None) -> float:
        return self.as_number(names, self._value(names, default))

    def as_number(self, names: tuple[str, ...], value: Any) -> float:
        """Return a value that was found; raise by its name unless it is a number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST_NUMBER:
            raise self._refuse(names, value, f"a number from 0 to {LARGEST_NUMBER:g}")
        return float(value)

    def positive(self, *names: str, default: float | None = None) -> float:
        """A number that is divided by."""
        value = self.number(*names, default=default)
        if not value > 0:
            raise self._refuse(names, value, "a number above 0")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """A switch; switches that are left out are off (or the family's habit) and not worth a remark."""
        value = self.get(*names)
        if value is not None and not isinstance(value, bool):
            raise self._refuse(names, value, "true or false")
        return default if value is None else value

    def activation(self, *names: str, default: str) -> str:
        name = self._value(names, default)
        if isinstance(name, str) and name in ACTIVATIONS:
            return ACTIVATIONS[name]
        self.leave_out(f"activation {name!r} is unknown; gelu stands in for it")
        return "gelu"

    def depth(self) -> int:
        depth: int = KNOBS["depth"].check(self.integer(*DEPTH_KEYS), 1)
        return depth

    def head_width(self, width: int, heads: int) -> int:
        """width/heads, for families whose heads share the width out."""
        if width % heads:
            raise BadInput(
                f"a {self.family} width of {width} is not a multiple of {heads} heads. Change one."
            )
        return width // heads

    def _value(self, names: tuple[str, ...], default: Any) -> Any:
        value = self.get(*names)
        if value is not None:
            return value
        if default is None:
            raise BadInput(
                f"the {self.family} config has no {' or '.join(names)}. Add it; "
                "a config.json saved by transformers has it."
            )
        self.assume(f"{names[0]}: {default}, the config leaves it out (the default of {self.family})")
        return default

    def _refuse(self, names: tuple[str, ...], value: Any, expected: str) -> BadInput:
        name = next((name for name in names if self.values.get(name) is not None), names[0])
        return BadInput(f"{name} in a {self.family} config must be {expected}, got {shown(value)}.")


def assume_tokens(config: ConfigReader, *names: str, context: int, most: int = DENSE) -> int:
    """The requested length, else min(context, most): the context of a config is a limit, not a length."""
    context = int(config.number(*names, default=context)) if names else context
    if config.tokens is not None:
        if config.tokens > context:
            config.assume(f"tokens: {config.tokens} as requested, beyond the context of {context}")
        return config.tokens
    tokens = min(context, most)
    if tokens < context:
        config.assume(f"tokens: {tokens}, the context is {context}; set --tokens")
    return tokens
