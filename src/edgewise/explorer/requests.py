"""Requests of the page, with limits: a preset or a config, knobs, and the axes of the map.

Pydantic rejects them before anything is computed; a network is described once and kept for the next answer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgewise.critical.phase_diagram import AXES
from edgewise.errors import BadInput
from edgewise.files import read_json
from edgewise.models.config.translate import FAMILIES, has_family
from edgewise.models.describe import describe
from edgewise.models.source import preset_names
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.knobs import KNOBS

LARGEST_GRID = 64
LABELS = {
    "mlp_in_gain": "gain of the MLP input matrix",
    "attention_branch": "multiplier of the attention branch",
    "value_gain": "gain of values and output together",
    "score_gain": "gain of queries and keys together",
    "mlp_out_gain": "gain of the MLP output matrix",
    "mlp_bias": "spread of the hidden bias",
    "mlp_branch": "multiplier of the MLP branch",
    "attention_skip": "multiplier of the skip around attention",
    "mlp_skip": "multiplier of the skip around the MLP",
    "embedding_norm": "mean square at the input",
}
CHOICES = tuple(LABELS)
DEEPEST, LONGEST = 256, 4096  # blocks and tokens
LONGEST_WITH_POSITIONS = 256  # tokens: a mask or rotary positions are followed token by token
USUAL_WITH_POSITIONS, FEWEST_WITH_POSITIONS = 64, 16
ANSWERED_AT_ONCE = 24 * 64  # blocks times tokens with positions: under a second
LARGEST_CONFIG = 200_000  # letters of JSON
Value = Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]
Knob = Literal[CHOICES]  # type: ignore[valid-type]


def axes_of(architecture: Architecture) -> list[str]:
    """Return the knobs that can be an axis here: real-valued, of a layer that is there, one value for all blocks."""
    absent = {
        "attention": not architecture.heads,
        "mlp": not architecture.mlp_width,
        "score": not architecture.heads,
        "value": not architecture.heads,
    }
    names = [name for name in CHOICES if not absent.get(name.partition("_")[0], False)]
    return [
        name for name in names if name not in AXES or not isinstance(getattr(architecture, name, 0.0), tuple)
    ]


def span_of(name: str, value: float) -> tuple[float, float]:
    """Return the range of an axis: from nothing to well beyond the network's own value."""
    multipliers = ("attention_branch", "mlp_branch", "attention_skip", "mlp_skip")
    usual = {**dict.fromkeys(multipliers, 1.25), "mlp_bias": 1.0}
    high = max(usual.get(name, 3.0), _nice(1.5 * value))
    return (0.0 if name in usual else high / 60), high


def _nice(value: float) -> float:
    """Return the next number of one and a half digits above.

    >>> _nice(3.2), _nice(0.61), _nice(0.0)
    (3.5, 0.65, 0.0)
    """
    if value <= 0:
        return 0.0
    unit = 10.0 ** np.floor(np.log10(value)) / 2
    return float(f"{np.ceil(value / unit) * unit:.3g}")


@lru_cache(maxsize=256)
def network(
    preset: str | None, config: str | None, name: str, depth: int | None, tokens: int | None
) -> Architecture:
    """Return the description; the same question is answered from memory."""
    if (preset is None) == (config is None):
        raise BadInput("give a preset or a config, one of the two.")
    if preset is not None:
        if preset not in ("transformer", *preset_names()):
            raise BadInput(
                f"{preset[:60]!r} is not a preset. Presets: transformer, {', '.join(preset_names())}."
            )
        return limited(describe(preset, depth=depth, tokens=tokens), tokens)
    assert config is not None
    return limited(from_config(config, name, depth, tokens), tokens)


def from_config(text: str, name: str, depth: int | None, tokens: int | None) -> Architecture:
    """Return a Hugging Face config of a hand-written family, or a file of knobs; nothing is built or run."""
    if len(text) > LARGEST_CONFIG:
        raise BadInput(f"{name} has {len(text):,} letters; a config has at most {LARGEST_CONFIG:,}.")
    values = read_json(text, name)
    if not isinstance(values, dict) or not values:
        raise BadInput(f"{name} holds no config: expected a JSON object with model_type, or knobs by name.")
    if "model_type" in values and not has_family(values):
        kind = str(values["model_type"])[:60]
        raise BadInput(
            f"{name} says model_type = {kind!r}, which this page does not read. It reads "
            f"{', '.join(sorted(FAMILIES))}. "
            "`edgewise predict` reads every class of transformers, by building a small one."
        )
    description = describe(values, depth=depth, tokens=tokens)
    if not isinstance(description, Architecture):
        raise BadInput(
            f"{name} describes a perceptron; this page shows transformers. `edgewise predict` reads it."
        )
    return description if description.name else description.replace(name=name)


def limited(description: Any, tokens: int | None) -> Architecture:
    """Return what is answered at once: raise beyond the limits, shorten a source without a length."""
    assert isinstance(description, Architecture)
    longest = LONGEST if description.symmetric else LONGEST_WITH_POSITIONS
    usual = LONGEST if description.symmetric else usual_length(description.depth)
    if tokens is None and description.tokens > usual:
        description = description.replace(tokens=usual)
    for knob, most in (("depth", DEEPEST), ("tokens", longest)):
        if getattr(description, knob) > most:
            kind = (
                "" if description.symmetric or knob == "depth" else " of a network with a mask or positions"
            )
            raise BadInput(
                f"{knob} = {getattr(description, knob):,} is more than this page follows{kind}, {most}. Give at most "
                f"{most}, or use `edgewise predict`."
            )
    return description


def usual_length(depth: int) -> int:
    """Return tokens over which a network with positions is followed unless asked: fewer if it is deep.

    >>> usual_length(12), usual_length(32), usual_length(80)
    (64, 32, 16)
    """
    tokens = USUAL_WITH_POSITIONS
    while tokens > FEWEST_WITH_POSITIONS and tokens * depth > ANSWERED_AT_ONCE:
        tokens //= 2
    return tokens


def changed(base: Architecture, values: dict[str, float]) -> Architecture:
    """Return the network with the knobs of the dot."""
    for name in values:
        if KNOBS[name].kind != "number":
            raise BadInput(f"{name} is not a number to turn. Choose a gain, a branch, a skip or a bias.")
    moved = {name: value for name, value in values.items() if value != getattr(base, name)}
    return base.replace(**moved) if moved else base


class PageRequest(BaseModel):
    """Unknown fields are rejected, so that a misspelled one is noticed."""

    model_config = ConfigDict(extra="forbid")


class NetworkSource(PageRequest):
    """A preset by name, or a config as the text of its file."""

    preset: Annotated[str, Field(max_length=100)] | None = None
    config: Annotated[str, Field(max_length=LARGEST_CONFIG)] | None = None
    name: Annotated[str, Field(max_length=200)] = "config.json"
    depth: Annotated[int, Field(ge=1, le=DEEPEST)] | None = None
    tokens: Annotated[int, Field(ge=2, le=LONGEST)] | None = None


class KnobAxis(PageRequest):
    """A knob from low to high."""

    knob: Knob
    low: Value
    high: Value


class AxesRequest(PageRequest):
    """A network and two of its knobs."""

    source: NetworkSource
    x: KnobAxis
    y: KnobAxis
    readout: Literal["token", "pooled"] = "token"

    @property
    def axes(self) -> dict[str, tuple[float, float]]:
        return {axis.knob: (axis.low, axis.high) for axis in (self.x, self.y)}


class MapRequest(AxesRequest):
    """How many points each axis has."""

    points: Annotated[int, Field(ge=2, le=LARGEST_GRID)] = LARGEST_GRID


class PointRequest(PageRequest):
    """Where the dot is."""

    source: NetworkSource
    knobs: Annotated[dict[Knob, Value], Field(max_length=len(CHOICES))] = {}
    readout: Literal["token", "pooled"] = "token"
    fixes: bool = False


def read(source: NetworkSource) -> Architecture:
    return network(source.preset, source.config, source.name, source.depth, source.tokens)


def moved(wanted: PointRequest) -> Architecture:
    return changed(read(wanted.source), dict(wanted.knobs))
