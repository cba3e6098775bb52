"""What a recipe's `claim` and `draw` receive: a case and what was measured in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """One measured case; `seconds` is the time its `measure` took."""

    case: dict[str, Any]
    value: dict[str, Any]
    seconds: float = 0.0
