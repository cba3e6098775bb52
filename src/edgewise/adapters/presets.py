"""Published models by name: their configs are data (presets.yaml) and go the way of any other config."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from edgewise.adapters.config.translate import translate
from edgewise.architecture import Architecture


def names() -> tuple[str, ...]:
    """All preset names."""
    return tuple(_presets())


def config(name: str) -> dict[str, Any]:
    """The config of a preset, as Hugging Face would write it."""
    return dict(_presets()[name]["config"])


def preset(name: str, *, depth: int | None = None, tokens: int | None = None) -> Architecture:
    """The Architecture of a preset; KeyError if there is none of this name."""
    entry = _presets()[name]
    found = translate(entry["config"], depth=depth, tokens=tokens, name=name)
    return replace(found, assumed=(*found.assumed, entry["note"])) if "note" in entry else found


@cache
def _presets() -> dict[str, dict[str, Any]]:
    import yaml  # here, because `edgewise --help` needs no presets

    text = resources.files("edgewise.adapters").joinpath("presets.yaml").read_text(encoding="utf-8")
    presets: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return presets
