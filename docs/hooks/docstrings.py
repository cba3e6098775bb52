"""Docstrings as Markdown for the API pages: columns of arguments become tables, doctests become code.

source   a preset, a config          | `source` | a preset, a config |
start    where the data starts       | `start`  | where the data starts |
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROW = re.compile(r"^(?P<name>[A-Za-z_*][\w*, .\[\]=]*?)(?P<gap> {2,})(?P<meaning>\S.*)$")

BAR = r"\|"  # one that is no end of a cell


class Columns(griffe.Extension):
    """griffe calls this for every object whose docstring it has read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", text))


def _block(block: str) -> str:
    if block.lstrip().startswith(">>>"):
        return f"```pycon\n{block}\n```"
    rows = _rows(block)
    if rows is None:
        return block
    lines = [f"| {_code(name)} | {meaning.replace('|', BAR)} |" for name, meaning in rows]
    return "\n".join(["| argument | meaning |", "|---|---|", *lines])


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _rows(block: str) -> list[tuple[str, str]] | None:
    """Name and meaning of every line, continued lines joined; None where the block is not in two columns."""
    rows: list[tuple[str, str]] = []
    for line in block.splitlines():
        row = _ROW.match(line)
        if row:
            rows.append((row["name"].strip(), row["meaning"].strip()))
        elif rows and line.startswith("  "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return None
    return rows or None
