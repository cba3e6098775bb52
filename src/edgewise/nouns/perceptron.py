"""What a random perceptron is: frozen, hashable, without tensors, JSON both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from edgewise.nouns.knobs import DEEPEST, KNOBS, LARGEST_COUNT, LARGEST_NUMBER, Knob, refuse_unknown

PERCEPTRON_KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("activation", "activation", "tanh", KNOBS["activation"].meaning),
        Knob(
            "weight_variance",
            "number",
            1.0,
            "weight variance times fan-in, sigma_w^2",
            minimum=0.0,
            maximum=LARGEST_NUMBER,
        ),
        Knob("bias_variance", "number", 0.0, "bias variance sigma_b^2", minimum=0.0, maximum=LARGEST_NUMBER),
        Knob("depth", "integer", 50, "number of layers", minimum=1, maximum=DEEPEST),
        Knob("width", "integer", 1000, "units per layer", minimum=1, maximum=LARGEST_COUNT),
    )
}


@dataclass(frozen=True)
class Perceptron:
    """h^l = W^l phi(h^(l-1)) + b^l with iid Gaussian weights and biases [Poole 2016].

    >>> import edgewise
    >>> edgewise.judge(edgewise.predict(Perceptron("tanh", weight_variance=3.0, depth=30))).phase.value
    'chaotic'
    """

    activation: str | Callable[..., Any] = "tanh"
    weight_variance: float = 1.0
    bias_variance: float = 0.0
    depth: int = 50
    width: int = 1000
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name, knob in PERCEPTRON_KNOBS.items():
            object.__setattr__(self, name, knob.check(getattr(self, name), 1))

    def sites(self) -> tuple[str, ...]:
        """The input, then every layer."""
        return ("input", *(f"layer.{index}" for index in range(1, self.depth + 1)))

    def replace(self, **changes: Any) -> Perceptron:
        """The same perceptron with some knobs changed."""
        refuse_unknown(changes, (*PERCEPTRON_KNOBS, "name"))
        return Perceptron(**{f.name: changes.get(f.name, getattr(self, f.name)) for f in fields(self)})

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if callable(self.activation):
            values["activation"] = f"callable:{getattr(self.activation, '__qualname__', 'function')}"
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Perceptron:
        """Read the JSON form; unknown keys and impossible values are refused by name."""
        refuse_unknown(values, (*PERCEPTRON_KNOBS, "name"))
        return cls(**values)
