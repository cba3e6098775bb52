"""From the words of the command line to a description."""

from __future__ import annotations

from typing import Any

import edgewise
from edgewise.cli.settings import as_text
from edgewise.errors import BadInput
from edgewise.knobs import KNOBS, refuse_unknown
from edgewise.perceptron import PERCEPTRON_KNOBS

DEFAULT_KNOBS = "transformer"  # the source that is nothing but the default knobs


def described(source: str, depth: int | None, tokens: int | None, settings: dict[str, Any]) -> Any:
    """An Architecture or Perceptron: depth and tokens first (recipes scale with them), then the settings."""
    settings = dict(settings)
    depth = _once("depth", depth, settings)
    tokens = _once("tokens", tokens, settings)
    if source == DEFAULT_KNOBS:
        known = edgewise.describe(edgewise.transformer().replace(name=source), depth=depth, tokens=tokens)
    else:
        known = edgewise.describe(source, depth=depth, tokens=tokens)
    if settings:
        return changed(known, settings)
    return known if known.name else known.replace(name=source)


def _once(name: str, option: int | None, settings: dict[str, Any]) -> int | None:
    """`--depth 8` and `--set depth=8` mean the same; both together could mean two things."""
    if name not in settings:
        return option
    if option is not None:
        raise BadInput(f"--{name} and --set {name} were both given. Give one of them.")
    if settings[name] is None:
        raise BadInput(f"--set {name}=null says nothing. Give a whole number, or leave it out.")
    value: int | None = settings.pop(name)
    return value


def changed(known: Any, settings: dict[str, Any]) -> Any:
    """The description with knobs changed, and a name that says so: a verdict must not blame the original."""
    transformer = isinstance(known, edgewise.Architecture)
    knobs, what = (KNOBS, "knob") if transformer else (PERCEPTRON_KNOBS, "knob of a perceptron")
    refuse_unknown(settings, knobs, what)
    return known.replace(**settings, name=f"{_name(known)} with {as_text(settings)}")


def _name(known: Any) -> str:
    if isinstance(known, edgewise.Perceptron):
        return known.name or f"mlp:{known.to_dict()['activation']}"
    return known.name or "this network"
