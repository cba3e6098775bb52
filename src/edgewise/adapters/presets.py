"""Published models by name: their configs are data (presets.yaml) and go the way of any other config."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any


def names() -> tuple[str, ...]:
    """All preset names."""
    return tuple(_presets())


def config(name: str) -> dict[str, Any]:
    """The config of a preset, as Hugging Face would write it; KeyError if there is none of this name."""
    return dict(_presets()[name]["config"])


def notes(name: str) -> tuple[str, ...]:
    """What the preset's config leaves open and how it is read here."""
    entry = _presets()[name]
    return (entry["note"],) if "note" in entry else ()


@cache
def _presets() -> dict[str, dict[str, Any]]:
    import yaml  # here, because `edgewise --help` needs no presets

    text = resources.files("edgewise.adapters").joinpath("presets.yaml").read_text(encoding="utf-8")
    presets: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return presets
