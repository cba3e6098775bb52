"""What the page may ask for: a preset or a config, changed within limits; described once, kept for the next answer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from edgewise.errors import BadInput
from edgewise.files import read_json
from edgewise.models.config.translate import FAMILIES, has_family
from edgewise.models.describe import describe
from edgewise.models.source import preset_names
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.knobs import KNOBS

DEEPEST, LONGEST = 256, 4096  # blocks and tokens
LONGEST_WITH_POSITIONS = 256  # tokens: a mask or rotary positions are followed token by token
USUAL_WITH_POSITIONS, FEWEST_WITH_POSITIONS = 64, 16
ANSWERED_AT_ONCE = 24 * 64  # blocks times tokens with positions: under a second
LARGEST_CONFIG = 200_000  # letters of JSON


@lru_cache(maxsize=256)
def network(
    preset: str | None, config: str | None, name: str, depth: int | None, tokens: int | None
) -> Architecture:
    """The description; the same question is answered from memory."""
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
    """A config of Hugging Face of a hand-written family, or a file of knobs: nothing is built, nothing is run."""
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
    """What is answered at once: refused beyond the limits, shorter than the source where nobody asked for a length."""
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
    """Tokens over which a network with positions is followed unless asked: fewer where it is deep.

    >>> usual_length(12), usual_length(32), usual_length(80)
    (64, 32, 16)
    """
    tokens = USUAL_WITH_POSITIONS
    while tokens > FEWEST_WITH_POSITIONS and tokens * depth > ANSWERED_AT_ONCE:
        tokens //= 2
    return tokens


def changed(base: Architecture, values: dict[str, float]) -> Architecture:
    """The network with the knobs of the dot."""
    for name in values:
        if KNOBS[name].kind != "number":
            raise BadInput(f"{name} is not a number to turn. Choose a gain, a branch, a skip or a bias.")
    moved = {name: value for name, value in values.items() if value != getattr(base, name)}
    return base.replace(**moved) if moved else base
