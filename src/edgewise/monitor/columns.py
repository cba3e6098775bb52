"""The columns of a row: which statistics a model of this shape has, in which order, with unit, range and formula."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from edgewise.arrays import Array

HEAD_STATISTICS = (
    "entropy",
    "support",
    "largest_logit",
    "softmax_gain",
    "softmax_condition",
    "saturated",
    "output",
)
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
    table = json.loads(resources.files("edgewise").joinpath(TABLE).read_bytes())
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


KINDS, PARTS = ("weight_norm", "gradient_norm", "update_norm", "update_ratio"), ("attention", "mlp")
MEANS = [i for i, name in enumerate(HEAD_STATISTICS) if name != "output"]  # over heads, under the same name
LOGIT, ENTROPY, OUTPUT = (HEAD_STATISTICS.index(name) for name in ("largest_logit", "entropy", "output"))


@dataclass(frozen=True, eq=False)
class StepSample:
    """Numbers of one step: of the run by name, (statistics, sites), (statistics, blocks), (blocks, statistics, H)."""

    run: dict[str, float]
    site: Array
    block: Array
    heads: Array
    spectrum: Array  # (blocks,), nan but for the block whose turn it was

    def row(self, extra: dict[str, float]) -> Array:
        """The values of a stored row, in the order of the schema; nan for what was not observed."""
        run = self.run | extra
        values = [run.get(name, math.nan) for name in names("run")]
        return np.concatenate([values, self.site.ravel(), self.block.ravel()]).astype(np.float32)

    def slow_row(self, heads: list[int]) -> Array:
        """The values of a row on the slow clock, in the order of the schema."""
        order = [HEAD_STATISTICS.index(name) for name in names("head")]
        each = [self.heads[block, i, :n] for i in order for block, n in enumerate(heads)]
        return np.concatenate([self.spectrum, *each]).astype(np.float32)

    @property
    def separation(self) -> float:
        """Of the tokens behind the last block; nan if none is watched."""
        return float(self.site[names("site").index("separation"), -1]) if self.site.size else math.nan


class StatisticLayout:
    """Where the numbers of a model of this depth stand among the statistics of sites and blocks."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        site, block = names("site"), names("block")
        self.statistics = (len(site), len(block)) if depth else (0, 0)
        self.norm, self.apart, self.largest, self.headroom, self.gradient, self.growth = map(
            site.index, ("norm", "separation", "largest", "headroom", "gradient", "gradient_growth")
        )
        self.norms = [block.index(f"{kind}.{part}") for part in PARTS for kind in KINDS]
        self.means = [block.index(HEAD_STATISTICS[i]) for i in MEANS]
        self.extremes = [block.index(name) for name in ("largest_logit", "entropy_min", "head_share_min")]
        self.starvation = block.index("starvation")

    def sites(self, norm: Array, separation: Array, largest: Array, gradient: Array, limit: float) -> Array:
        """(statistics, sites); limit: the largest finite number of what activations are, 0 if that is not known."""
        site = np.empty((self.statistics[0], self.depth + 1))
        if not self.depth:
            return site
        site[self.norm], site[self.apart], site[self.largest], site[self.gradient] = (
            norm,
            separation,
            largest,
            gradient,
        )
        logs = np.log(gradient)
        site[self.growth] = 2 * (logs - logs[-1])
        site[self.headroom] = np.log2(limit) - np.log2(largest) if limit else math.nan
        return site

    def blocks(
        self, squares: Array, total: Array, heads: Array, mixed: set[int]
    ) -> tuple[dict[str, float], Array]:
        """Norms of the run, and (statistics, blocks).

        squares: (3, groups) of weights, gradients and updates; total: (3,) of the run; mixed: blocks whose query and
        key are not told apart.
        """
        block = np.full((self.statistics[1], self.depth), math.nan)
        if not self.depth:
            return _of_run(total), block
        self._over_heads(heads, block)
        each = squares[:, :-1].reshape(3, self.depth, 3)
        norms = np.empty((2, 4, self.depth))
        np.add(each[..., 0], each[..., 1], out=norms[0, :3])
        norms[1, :3] = each[..., 2]
        np.sqrt(norms[:, :3], out=norms[:, :3])
        np.divide(norms[:, 2], norms[:, 0], out=norms[:, 3])
        block[self.norms] = norms.reshape(8, -1)
        logs = np.log(each[1, :, :2])
        block[self.starvation] = logs[:, 0] - logs[:, 1]  # not a number where neither has a gradient
        if mixed:
            block[self.starvation, sorted(mixed)] = math.nan
        table = float(np.sqrt(squares[2, -1] / squares[0, -1]))
        return _of_run(total) | {"embedding_update": table}, block

    def _over_heads(self, heads: Array, block: Array) -> None:
        """Return what stands for a block: means over heads, the largest logit, the sharpest and the weakest head."""
        means, count = np.add.reduce(heads, -1), heads.shape[-1]  # a method of an array is another cold call
        three = heads[:, LOGIT], heads[:, ENTROPY], heads[:, OUTPUT]
        if count and not math.isnan(np.add.reduce(means, None)):
            means /= count
            most = [np.maximum.reduce(three[0], -1), *(np.minimum.reduce(each, -1) for each in three[1:])]
        else:
            alive = ~np.isnan(heads)
            means = np.where(alive, heads, 0.0).sum(-1) / alive.sum(-1)
            most = [_over(np.fmax, three[0]), _over(np.fmin, three[1]), _over(np.fmin, three[2])]
        block[self.means] = means.T[MEANS]
        for place, values in zip(self.extremes, most, strict=True):
            block[place] = values


def _of_run(total: Array) -> dict[str, float]:
    """Norms of all matrices together; nothing if there are none."""
    weight, gradient, update = np.sqrt(total).tolist()
    if not weight:
        return {}
    ratio = update / weight
    return {"weight_norm": weight, "gradient_norm": gradient, "update_norm": update, "update_ratio": ratio}


def _over(function: np.ufunc, values: Array) -> Array:
    """Over the heads that have a number; nan if none has."""
    start = -math.inf if function is np.fmax else math.inf
    return np.where(np.isnan(values).all(-1), math.nan, function.reduce(values, -1, initial=start))
