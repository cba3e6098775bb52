"""What a benchmark found: tables, goals and notes, printed, and written as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as RichTable

from benchmarks.machine import Machine

Cell = str | float | int | None
Tell = Callable[[float, str], None]


@dataclass(frozen=True)
class Table:
    """A title, column names, and rows of raw numbers; they are rounded only when shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Goal:
    """What was promised, what was found; a benchmark tells, it never asserts."""

    promise: str
    found: str
    met: bool | None  # None: a quick run is too small to tell

    def sentence(self) -> str:
        outcome = "Not decided by a quick run" if self.met is None else "Met" if self.met else "NOT met"
        return f"Goal: {self.promise}. Found: {self.found}. {outcome}."


Findings = tuple[list[Table], list[Goal], list[str]]


@dataclass(frozen=True)
class Report:
    """One benchmark's findings and the machine they were made on."""

    name: str
    title: str
    tables: Sequence[Table]
    goals: Sequence[Goal]
    notes: Sequence[str]
    before: Machine
    after: Machine

    def rich(self) -> RenderableType:
        """For the terminal."""
        return Group(*(_rich(table) for table in self.tables), *self._sentences(), "")

    def write(self, folder: Path) -> None:
        """folder/name.md for people, folder/name.json for programs."""
        folder.mkdir(exist_ok=True)
        lines = [f"# {self.name}: {self.title}", ""]
        for table in self.tables:
            lines += [f"**{table.title}**", "", *_markdown(table), ""]
        lines += [f"- {sentence}" for sentence in self._sentences()]
        (folder / f"{self.name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        data = json.dumps(_plain(asdict(self)), indent=1, ensure_ascii=False)
        (folder / f"{self.name}.json").write_text(data + "\n", encoding="utf-8")

    def _sentences(self) -> list[str]:
        return [*(goal.sentence() for goal in self.goals), *self.notes, self.before.sentence(self.after)]


def shown(cell: Cell) -> str:
    """Three significant digits; what is not finite is said in words."""
    if cell is None:
        return ""
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else cell
    if not math.isfinite(cell):
        return "overflows"
    return f"{cell:,.0f}" if abs(cell) >= 1000 and abs(cell) < 1e6 else f"{cell:.3g}"


def seconds(value: float) -> str:
    """A duration in the unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def _rich(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left")
    for place, column in enumerate(table.columns):
        drawn.add_column(column, justify="left" if place == 0 else "right")
    for row in table.rows:
        drawn.add_row(*map(shown, row))
    return drawn


def _markdown(table: Table) -> list[str]:
    rule = ["---", *["---:"] * (len(table.columns) - 1)]
    rows = [table.columns, rule, *([shown(cell) for cell in row] for row in table.rows)]
    return ["| " + " | ".join(row) + " |" for row in rows]


def _plain(value: Any) -> Any:
    """JSON has no infinity: null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
