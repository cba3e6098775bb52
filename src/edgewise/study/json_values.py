"""Values that survive a file: what JSON can hold, and the three numbers it cannot (NaN and the infinities)."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from edgewise.errors import BadInput

_FLOAT = "__float__"  # {"__float__": "nan"}: strict JSON, readable by every other program


def plain(value: Any, where: str) -> Any:
    """`value` in dicts, lists, strings, numbers, booleans and None; anything else is refused by its place.

    Tuples become lists and numpy scalars become Python's, as after a round trip through the store.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {_key(key, where): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].generic):
        return plain(value.item(), where)
    raise BadInput(_refusal(value, where))


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str) or key == _FLOAT:
        raise BadInput(f"{where} has the key {key!r}. Keys must be strings (other than {_FLOAT!r}).")
    return key


def _refusal(value: Any, where: str) -> str:
    kind = f"{type(value).__module__}.{type(value).__name__}"
    advice = "Use float(...), .item() or .tolist()." if hasattr(value, "tolist") else "Turn it into one of these."
    return f"{where} is a {kind}, which JSON cannot hold. Expected numbers, strings, lists, dicts. {advice}"


def dumps(value: Any) -> str:
    """Canonical JSON of a plain value: sorted keys, no spaces, non-finite numbers by name."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:  # some number is not finite
        return json.dumps(_named(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """The value of `dumps`; the hook is called only where a non-finite number may be."""
    marked = _FLOAT in text if isinstance(text, str) else _FLOAT.encode() in text
    return json.loads(text, object_hook=_number if marked else None)


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item) for item in value]
    return {_FLOAT: repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _number(item: dict[str, Any]) -> Any:
    return float(item[_FLOAT]) if item.keys() == {_FLOAT} else item
