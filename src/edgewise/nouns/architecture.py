"""What a transformer or a random perceptron is: frozen, hashable, without tensors, JSON both ways.

The flat knobs are the record; blocks, branches and sites are derived from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from edgewise.errors import BadInput
from edgewise.nouns.blocks import Block, attentions, fold
from edgewise.nouns.knobs import (
    DEEPEST,
    KNOBS,
    LARGEST_COUNT,
    LARGEST_NUMBER,
    Knob,
    Knobs,
    Value,
    refuse_unknown,
    shown,
)

PerBlock = float | tuple[float, ...]
NOTES = ("name", "assumed", "unmodelled")  # what a description says besides its knobs


class Shown:
    """A result that a notebook shows as its card."""

    def _repr_html_(self) -> str:
        from edgewise import present

        return present.as_html(present.card_of(self))


@dataclass(frozen=True)
class Architecture(Shown):
    """A transformer as its knobs (`edgewise.nouns.knobs.KNOBS` says what each means); built by `transformer`.

    >>> import edgewise
    >>> edgewise.describe("gpt2").replace(depth=48).depth
    48
    """

    depth: int
    tokens: int
    width: int
    heads: int
    head_width: int
    kv_heads: int
    mlp_width: int
    activation: str | Callable[..., Any]
    gated: bool
    norm: str
    norm_kind: str
    norm_slope: float
    embedding_norm: float
    score_gain: PerBlock
    value_gain: PerBlock
    key_gain: PerBlock | None
    output_gain: PerBlock | None
    mlp_in_gain: PerBlock
    mlp_linear_gain: PerBlock
    mlp_out_gain: PerBlock
    mlp_bias: PerBlock
    attention_skip: PerBlock
    attention_branch: PerBlock
    mlp_skip: PerBlock
    mlp_branch: PerBlock
    parallel: bool
    causal: bool
    window: int | tuple[int | None, ...] | None
    rope: PerBlock
    rope_base: PerBlock
    alibi: bool
    position_bias: PerBlock
    qk_norm: bool
    kernel: str
    name: str = field(default="", compare=False)
    assumed: tuple[str, ...] = field(default=(), compare=False)
    unmodelled: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every block as a tuple of branches: what the theory folds over."""
        return fold(self.knobs())

    @property
    def symmetric(self) -> bool:
        """True when no token position is special, so that the simplex recursion is exact."""
        return all(layer.symmetric for layer in attentions(*self.blocks))

    def sites(self) -> tuple[str, ...]:
        """Return the places at which geometry is read: `embed`, then each branch's output in order."""
        inside = (f"block.{i}.{b.name}" for i, block in enumerate(self.blocks) for b in block)
        return ("embed", *inside)

    def knobs(self) -> dict[str, Value]:
        """Return the knobs alone, without name and notes."""
        return {name: getattr(self, name) for name in KNOBS}

    def replace(self, **changes: Value) -> Architecture:
        """Return the same network with some knobs changed; what followed from a changed knob follows again."""
        notes: dict[str, Any] = {k: changes.pop(k) for k in NOTES if k in changes}
        knobs = self.knobs()
        for name, followed in _follow(knobs["width"], knobs["heads"]).items():
            if knobs[name] == followed:
                knobs[name] = None  # it merely followed from the others, and follows again
        knobs |= changes
        if knobs["parallel"] and "attention_skip" in changes and "mlp_skip" not in changes:
            del knobs["mlp_skip"]  # the one skip of a parallel block
        if "depth" in changes and changes["depth"] != self.depth:
            stuck = [k for k, v in knobs.items() if isinstance(v, tuple) and k not in changes]
            if stuck:
                raise BadInput(
                    f"depth cannot change while {', '.join(stuck)} are lists of length {self.depth}."
                )
        notes = {"name": self.name, "assumed": self.assumed, "unmodelled": self.unmodelled} | notes
        return replace(transformer(**knobs), **notes)

    def to_dict(self) -> dict[str, Value]:
        """Return the flat JSON form."""
        return _flat(self)

    @classmethod
    def from_dict(cls, values: Knobs) -> Architecture:
        """Read the flat JSON form; unknown keys and impossible values raise `BadInput`."""
        refuse_unknown(values, (*KNOBS, *NOTES))
        network = transformer(**{k: v for k, v in values.items() if k not in NOTES})
        assumed, unmodelled = (_sentences(k, values.get(k, ())) for k in NOTES[1:])
        return replace(network, name=str(values.get("name", "")), assumed=assumed, unmodelled=unmodelled)

    def __repr__(self) -> str:
        usual = transformer()
        sizes = ("depth", "tokens", "width", "heads")
        shown = [k for k in KNOBS if k in sizes or getattr(self, k) != getattr(usual, k)]
        text = ", ".join(f"{k}={getattr(self, k)!r}" for k in shown)
        name = f" {self.name if len(self.name) <= 80 else f'{self.name[:79]}…'}:" if self.name else ""
        return f"<Architecture{name} {text if len(text) <= 280 else f'{text[:279]}…'}>"


def _flat(network: Architecture | Perceptron) -> dict[str, Value]:
    values = {f.name: getattr(network, f.name) for f in fields(network)}
    if callable(network.activation):
        values["activation"] = f"callable:{getattr(network.activation, '__qualname__', 'function')}"
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _sentences(name: str, values: object) -> tuple[str, ...]:
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
        raise BadInput(f"{name} must be a list of sentences, got {shown(values)}.")
    return tuple(values)


def transformer(**knobs: Value) -> Architecture:
    """Describe a transformer by its knobs; the others take their defaults from `edgewise.nouns.knobs.KNOBS`.

    >>> transformer(depth=48, width=768, tokens=256, heads=12).head_width
    64
    """
    refuse_unknown(knobs, KNOBS)
    depth = KNOBS["depth"].check(knobs.get("depth", KNOBS["depth"].default), 1)
    values = {name: knob.check(knobs.get(name, knob.default), depth) for name, knob in KNOBS.items()}
    for name, followed in _follow(values["width"], values["heads"]).items():
        values[name] = followed if values[name] is None else values[name]
    heads, width = values["heads"], values["width"]
    if heads and knobs.get("head_width") is None and width % heads:
        raise BadInput(
            f"width {width} does not divide into {heads} heads. Give head_width, or another heads."
        )
    if heads and heads % values["kv_heads"]:
        raise BadInput(
            f"heads {heads} is not a multiple of kv_heads {values['kv_heads']}. Every key head serves as many query "
            "heads: give kv_heads that divide heads."
        )
    for rope in values["rope"] if isinstance(values["rope"], tuple) else (values["rope"],):
        rotated = 2 * round(rope * values["head_width"] / 2)
        if heads and rope and not 0 < rotated <= values["head_width"]:
            raise BadInput(
                f"rope = {rope:g} cannot rotate pairs in head_width {values['head_width']}; give an even head_width, "
                "or a fraction that leaves whole pairs."
            )
    if not heads and not values["mlp_width"]:
        raise BadInput("heads = 0 and mlp_width = 0 leave no layer. Give at least one of them.")
    if values["parallel"] and knobs.get("mlp_skip", 1.0) not in (1.0, values["attention_skip"]):
        raise BadInput("a parallel block has one skip: give attention_skip, and leave mlp_skip out.")
    return Architecture(**values)


def _follow(width: int, heads: int) -> dict[str, int]:
    return {"head_width": max(width // max(heads, 1), 1), "kv_heads": max(heads, 1), "mlp_width": 4 * width}


PERCEPTRON_KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("activation", "activation", "tanh", KNOBS["activation"].meaning),
        Knob(
            "weight_variance", "number", 1.0, "weight variance times fan-in, sigma_w^2", 0.0, LARGEST_NUMBER
        ),
        Knob("bias_variance", "number", 0.0, "bias variance sigma_b^2", 0.0, LARGEST_NUMBER),
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
        """Return the input, then every layer."""
        return ("input", *(f"layer.{index}" for index in range(1, self.depth + 1)))

    def replace(self, **changes: Value) -> Perceptron:
        """Return the same perceptron with some knobs changed."""
        refuse_unknown(changes, (*PERCEPTRON_KNOBS, "name"))
        return Perceptron(**{f.name: changes.get(f.name, getattr(self, f.name)) for f in fields(self)})

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON form."""
        return _flat(self)

    @classmethod
    def from_dict(cls, values: Knobs) -> Perceptron:
        """Read the JSON form; unknown keys and impossible values raise `BadInput`."""
        refuse_unknown(values, (*PERCEPTRON_KNOBS, "name"))
        return cls(**values)
