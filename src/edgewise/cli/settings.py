"""`--set knob=value`: text from the shell to values of knobs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from edgewise.errors import BadInput


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """All settings as one dict; a knob set twice is refused rather than decided by order."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals and value.strip()):
            raise BadInput(f"--set {text!r} is not a setting. Write knob=value, as in --set score_gain=2.")
        if name in settings:
            raise BadInput(f"--set {name} was given twice. Give it once.")
        settings[name] = parse_value(value.strip())
    return settings


def parse_value(text: str) -> Any:
    """A number, true, false, null, a list of these, or a word: JSON first, then YAML.

    YAML alone reads 1e-3 as a word, JSON alone refuses words, .5 and yes.
    """
    for read in (json.loads, float):
        try:
            return read(text)
        except ValueError:
            continue
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"the value {text!r} cannot be read ({' '.join(str(error).split())}).") from error


def as_text(settings: dict[str, Any], longest: int = 3) -> str:
    """The settings as they are shown beside a name, long lists of them cut."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    shown = [f"{name}={text}" for name, text in texts.items()]
    more = len(shown) - longest
    return ", ".join(shown[:longest]) + (f" and {more} more" if more > 0 else "")
