"""Reads one Hugging Face config: names what is missing, remembers what was assumed or left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.errors import BadInput
from edgewise.nouns.knobs import KNOBS, LARGEST_NUMBER, shown

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
        value = self._value(names, default)
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
    config.assume(f"tokens: {tokens}, the context is {context}; set --tokens")
    return tokens
