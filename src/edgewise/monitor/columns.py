"""The columns of a row: which statistics a model of this shape has, in which order, with unit, range and formula."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

TABLE = "schema/statistics-1.json"
FAST, SLOW = ("run", "site", "block"), ("slow block", "head")  # scopes of the two kinds of rows


@dataclass(frozen=True)
class Statistic:
    """One row of the published table `schema/statistics-1.json`."""

    name: str
    scope: str  # run, site, block, slow block or head
    unit: str
    low: float | None  # of healthy runs, for orientation
    high: float | None
    formula: str
    meaning: str


@dataclass(frozen=True)
class Column:
    """One number of a row: a statistic at its place."""

    statistic: Statistic
    place: str = ""  # embed, block.3, block.3.head.5; empty for the whole run

    @property
    def name(self) -> str:
        return f"{self.place}.{self.statistic.name}" if self.place else self.statistic.name

    def json(self) -> dict[str, Any]:
        return {"column": self.name, "place": self.place, **asdict(self.statistic)}


@cache
def statistics() -> tuple[Statistic, ...]:
    """The published table, in its order."""
    table = json.loads(resources.files("edgewise").joinpath(TABLE).read_text())
    return tuple(Statistic(**row) for row in table["statistics"])


@cache
def names(*scopes: str) -> tuple[str, ...]:
    """The statistics of these scopes, in order."""
    return tuple(row.name for row in statistics() if row.scope in scopes)


def fast_columns(depth: int) -> tuple[Column, ...]:
    """Columns of a stored row: those of the run, then of every site and every block, where blocks are watched."""
    places = {"run": [""], "site": sites(depth), "block": blocks(depth)}
    return tuple(column for scope in (FAST if depth else FAST[:1]) for column in _at(scope, places[scope]))


def slow_columns(heads: Sequence[int]) -> tuple[Column, ...]:
    """Columns of a row on the slow clock: of every block, then of every head; heads: how many each block has."""
    each = [f"{block}.head.{h}" for block, n in zip(blocks(len(heads)), heads, strict=True) for h in range(n)]
    return (*_at("slow block", blocks(len(heads))), *_at("head", each))


def _at(scope: str, places: Sequence[str]) -> Iterator[Column]:
    rows = [row for row in statistics() if row.scope == scope]
    return (Column(row, place) for row in rows for place in places)


def sites(depth: int) -> list[str]:
    """The places of the stream, named like those of a Trace."""
    return ["embed", *blocks(depth)]


def blocks(depth: int) -> list[str]:
    return [f"block.{i}" for i in range(depth)]


def schema_text(columns: Sequence[Column]) -> str:
    """One line of JSON per column."""
    return "".join(json.dumps(column.json()) + "\n" for column in columns)


def schema_id(columns: Sequence[Column]) -> str:
    """Sixteen digits that name this list of columns."""
    return hashlib.sha256(schema_text(columns).encode()).hexdigest()[:16]
