"""What is said about one result."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """One line; the first `length` characters (all, if None) have the style: an outcome, `dim`, `bold` or none."""

    text: str
    style: str = ""
    length: int | None = None
