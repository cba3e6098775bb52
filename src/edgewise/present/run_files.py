"""Run folders read with care, for the report and for the explorer, and runs as pictures.

Before anything is read, every file of a run must be a regular one of a bounded size that lies below the folder that
was given. In the explorer a run is named by its path from that folder, and must be among those that were found there.

A picture is one statistic over blocks and steps, its extreme over the blocks, and the curves of the run. Long runs are
drawn with fewer columns; each then shows the worst of its rows, so that no spike is lost.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import Document
from edgewise.monitor.columns import Statistic, statistics
from edgewise.monitor.read_run import Run
from edgewise.monitor.run_folder import RunRows

MOST_RUNS, DEEPEST_FOLDER, MOST_FOLDERS = 200, 4, 2000
MOST_BLOCKS = 1000
# bytes, by how the name begins
LARGEST = {"run.json": 2**20, "schema-": 2**24, "events-": 2**24, "rank": 2**28}
ENDS = (".json", ".jsonl", ".rows")
# of an event whose values are of another kind
WRONG = (ValueError, TypeError, KeyError, OSError, OverflowError)
Fingerprint = tuple[tuple[str, int, int], ...]


def names(folder: Path | None) -> list[str]:
    """Return the runs below a folder, as paths from it; a folder that is a run itself is called by its own name."""
    if folder is None:
        return []
    root, found = folder.resolve(), []
    for seen, (place, folders, files) in enumerate(os.walk(root, followlinks=False)):
        below = Path(place).relative_to(root)
        if "run.json" in files:
            found.append(below.as_posix())
        if "run.json" in files or len(below.parts) >= DEEPEST_FOLDER or seen > MOST_FOLDERS:
            folders.clear()  # what lies below a run belongs to it
    return sorted(found)[:MOST_RUNS]


def run_of(folder: Path | None, name: str) -> Run:
    """Return a run of the list, once its files are known to be harmless."""
    if folder is None or name not in names(folder):
        raise BadInput(f"{name[:80]!r} is not among the runs of this page. Choose one of the list.")
    return listed(folder, name)


def listed(folder: Path, name: str) -> Run:
    """Return a run by a name that `names` has given."""
    root = folder.resolve()
    return _harmless(root / name, root, name)


def given(folder: Path) -> Run:
    """Return the run that a folder itself is, in messages by the name it was given."""
    return _harmless(folder.resolve(), folder.resolve(), str(folder))


def _harmless(place: Path, root: Path, name: str) -> Run:
    for path in _files(place):
        shown = f"{name}/{path.name}"
        if not path.resolve().is_relative_to(root):
            raise BadInput(f"{shown} leads out of the folder that was given, and is not followed.")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{shown} is not a regular file. A run folder holds only such files.")
        most = next((size for begin, size in LARGEST.items() if path.name.startswith(begin)), LARGEST["rank"])
        if status.st_size > most:
            raise BadInput(
                f"{shown} has {status.st_size:,} bytes; this page reads at most {most:,}. `edgewise export` reads all."
            )
    run = Run(place)
    with told(run, name):
        if run.about["depth"] > MOST_BLOCKS:
            raise BadInput(
                f"{name} has {run.about['depth']:,} blocks; this page draws at most {MOST_BLOCKS:,}."
            )
    return run


def _files(folder: Path) -> list[Path]:
    """Return what a reader of the run opens."""
    beginnings = (*LARGEST, "heads-rank")
    return sorted(p for p in folder.iterdir() if p.name.startswith(beginnings) and p.name.endswith(ENDS))


@contextmanager
def told(run: Run, name: str) -> Iterator[None]:
    """Whatever is wrong with a run is said in a sentence, by its name and without the path of the folder."""
    try:
        yield
    except BadInput as error:
        raise BadInput(str(error).replace(str(run.path), name)) from error
    except WRONG as error:
        reason = str(error)[:300].replace(str(run.path), name)
        raise BadInput(
            f"{name} cannot be read as a run: {reason}. Was it written by edgewise.watch?"
        ) from error


def fingerprint(run: Run) -> Fingerprint:
    """Return a value that changes whenever the run has grown."""
    files = [path for path in _files(run.path) if not path.name.startswith("heads-")]
    return tuple(
        (path.name, status.st_size, status.st_mtime_ns) for path in files for status in [path.stat()]
    )


def rows(run: Run, rank: int) -> RunRows:
    """Return all rows of a rank, kept until the files change."""
    return _rows(str(run.path), rank, fingerprint(run))


@lru_cache(maxsize=4)
def _rows(path: str, rank: int, _: Fingerprint) -> RunRows:
    return Run(path).rows(rank=rank)


MOST_COLUMNS, MOST_CELLS = 400, 40_000
LOW_IS_WORSE = {
    "separation",
    "headroom",
    "entropy",
    "entropy_min",
    "support",
    "softmax_gain",
    "head_share_min",
    "starvation",
    "separation_of_edge",
    "loss_scale",
}
LABELS = {
    "largest_logit": "Largest logit",
    "separation": "Token separation",
    "gradient": "Gradient",
    "entropy": "Attention entropy",
    "norm": "Mean square of the stream",
    "largest": "Largest activation",
    "headroom": "Headroom before overflow",
    "gradient_growth": "Gradient growth",
    "entropy_min": "Entropy of the sharpest head",
    "support": "Effective keys",
    "saturated": "Saturated rows",
    "logit_growth": "Growth rate of the logits",
    "softmax_gain": "Softmax gain",
    "head_share_min": "Weakest head",
    "softmax_condition": "Softmax condition",
    "starvation": "Query and key starvation",
    "stream_change_of_edge": "Step against the rehearsed edge",
    "separation_of_edge": "Separation against the rehearsed edge",
    "update_ratio.attention": "Update ratio, attention",
    "update_ratio.mlp": "Update ratio, MLP",
}
# what is shown at once; others by name
FIRST = ("largest_logit", "separation", "gradient", "entropy", "norm")
COLUMN = re.compile(r"(?P<place>embed|block\.\d{1,4})\.(?P<name>[a-z_.]+)")
Groups = Sequence[tuple[int, int]]
DECADES = 1.3  # from this span on a scale is logarithmic


def picture(columns: Sequence[str], rows: RunRows, statistic: str | None) -> Document:
    """Return the heat map of one statistic with its extreme line, and the loss; not finite is null."""
    by_step = np.argsort(rows.step, kind="stable")
    rows = RunRows(rows.step[by_step], rows.time[by_step], rows.values[by_step], rows.damaged)
    places = _places(columns, rows)
    known = {
        name: row for row in statistics() if (name := row.name) in places and row.scope in ("site", "block")
    }
    order = [*(name for name in FIRST if name in known), *(name for name in known if name not in FIRST)]
    if statistic is not None and statistic not in known:
        observed = ", ".join(order) or "nothing yet"
        raise BadInput(f"{statistic[:60]!r} was not observed in this run. Observed: {observed}.")
    chosen = statistic or (order[0] if order else None)
    groups = _groups(len(rows), len(places[chosen]) if chosen else 1)
    steps = [[int(rows.step[a]), int(rows.step[b - 1])] for a, b in groups]
    curves = [
        _curve(row, columns, rows, groups)
        for row in statistics()
        if row.scope == "run" and row.name in columns
    ]
    return {
        "statistics": [{"name": name, "label": _label(known[name])} for name in order],
        "steps": steps,
        "rows_in_column": max((b - a for a, b in groups), default=1),
        "heat": _heat(known[chosen], places[chosen], rows, groups) if chosen else None,
        "curves": {
            curve["name"]: curve for curve in curves if any(value is not None for value in curve["values"])
        },
    }


def _places(columns: Sequence[str], rows: RunRows) -> dict[str, dict[str, int]]:
    """By statistic: the column of each place, embedding first, blocks in order; only what was ever observed."""
    found: dict[str, dict[str, int]] = {}
    seen: list[bool] = np.isfinite(rows.values).sum(0).astype(bool).tolist()
    for index, column in enumerate(columns):
        match = COLUMN.fullmatch(column)
        if match and seen[index]:
            found.setdefault(match["name"], {})[match["place"]] = index
    return found


def _groups(count: int, places: int) -> list[tuple[int, int]]:
    """Ranges of rows that become one column of the picture."""
    most = max(20, min(MOST_COLUMNS, MOST_CELLS // max(1, places)))
    edges = np.unique(np.linspace(0, count, min(count, most) + 1).astype(int))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _heat(statistic: Statistic, places: dict[str, int], rows: RunRows, groups: Groups) -> Document:
    values = _worst(statistic, rows.values[:, list(places.values())], groups)
    finite_values = values[np.isfinite(values)]
    low, high = float(finite_values.min()), float(finite_values.max())
    return _about(statistic) | {
        "places": ["embedding" if place == "embed" else place.partition(".")[2] for place in places],
        "rows": [_five_digits(line) for line in values.T],
        "worst": _five_digits(_worse_of(statistic).reduce(values, axis=1)),
        "which": "smallest" if statistic.name in LOW_IS_WORSE else "largest",
        "low": low,
        "high": high,
        "log": bool(low > 0 and np.log10(high / low) > DECADES),
    }


def _worst(statistic: Statistic, values: Array, groups: Groups) -> Array:
    """Return the worst of each group (groups, places); NaN if nothing in it was observed."""
    data = np.where(np.isfinite(values), values.astype(float), np.nan)
    return np.asarray(_worse_of(statistic).reduceat(data, [a for a, _ in groups], axis=0))


def _worse_of(statistic: Statistic) -> np.ufunc:
    return np.fmin if statistic.name in LOW_IS_WORSE else np.fmax


def _curve(statistic: Statistic, columns: Sequence[str], rows: RunRows, groups: Groups) -> Document:
    values = rows.values[:, [list(columns).index(statistic.name)]]
    worst = _worst(statistic, values, groups)[:, 0] if groups else np.zeros(0)
    return _about(statistic) | {"values": _five_digits(worst)}


def _about(statistic: Statistic) -> Document:
    return {
        "name": statistic.name,
        "label": _label(statistic),
        "unit": "" if statistic.unit == "1" else statistic.unit,
        "meaning": statistic.meaning,
        "healthy": [statistic.low, statistic.high],
    }


def _five_digits(values: Array) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist()]


def _label(statistic: Statistic) -> str:
    plain = statistic.name.replace("_", " ").replace(".", ", ").capitalize().replace("mlp", "MLP")
    return LABELS.get(statistic.name, plain)
