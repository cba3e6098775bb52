"""Small run folders, and the ways in which one from elsewhere can be wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from edgewise.monitor.alarm import Alarm, AlarmKind
from edgewise.monitor.columns import fast_columns
from edgewise.monitor.run_folder import RunFolder

COLUMNS = fast_columns(2)
NAMES = [column.name for column in COLUMNS]
ABOUT = {"model": "Tiny", "depth": 2, "width": 8, "parameters": 1234, "processes": 1, "blind": []}
MOVED = "largest logit of block.1 grew"
ALARM = Alarm(
    AlarmKind.LOGIT_GROWTH,
    7,
    "block.1",
    0,
    5,
    "The largest logit of block.1 doubled.",
    MOVED,
    (MOVED, "loss grew"),
    ("a bad batch",),
)


def value(step: int, name: str) -> float:
    known = {"loss": 3.0 - 0.01 * step, "block.0.largest_logit": 2.0, "block.1.largest_logit": 2.0**step}
    return known.get(name, np.nan)


def write(path: Path, steps: int, *, alarm: bool = False, end: bool = True, seen: bool = False) -> None:
    """A run with a loss and the largest logits; seen: with a number in every column."""
    folder = RunFolder(path, COLUMNS, about=ABOUT)
    folder.event("start", "watching Tiny.")
    for step in range(steps):
        row = np.array([value(step, name) for name in NAMES], np.float32)
        folder.append(step, np.nan_to_num(row, nan=1.0 if seen else np.nan))
    if alarm:
        details = {key: item for key, item in ALARM.json().items() if key not in ("kind", "step")}
        folder.event("alarm", str(ALARM), 7, alarm=ALARM.kind.value, **details)
    if end:
        folder.event("stop", "ended.")
    folder.close()


def spoil(path: Path, how: str) -> None:
    """One way in which a folder from elsewhere can be wrong."""
    rows, schema, events = (next(path.glob(f"{kind}*")) for kind in ("rank0-", "schema-", "events-"))
    about = json.loads((path / "run.json").read_text())
    schema = path / f"schema-{about['schema']}.jsonl"
    if how == "link":
        outside = path.parent.parent / "secret.json"
        outside.write_text("{}")
        (path / "run.json").unlink()
        (path / "run.json").symlink_to(outside)
    elif how == "pipe":
        rows.unlink()
        os.mkfifo(rows)
    elif how == "folder":
        rows.unlink()
        rows.mkdir()
    elif how == "list":
        (path / "run.json").write_text("[1]")
    elif how == "nested":
        (path / "run.json").write_text("[" * 100_000)
    elif how == "schema name":
        (path / "run.json").write_text(json.dumps(about | {"schema": "../../../etc/passwd"}))
    elif how == "depth":
        (path / "run.json").write_text(json.dumps(about | {"depth": 10**9}))
    elif how == "schema":
        schema.write_text('{"column": 3}\n' * len(NAMES))
    elif how == "fewer columns":
        schema.write_text('{"column": "loss"}\n')
    elif how == "rows":
        rows.write_bytes(b"x" * 1000)
    elif how == "events":
        events.write_text("[]\n")
    elif how == "alarm":
        events.write_text('{"kind": "alarm", "alarm": "<script>", "step": {}}\n')
    elif how == "size":
        with rows.open("r+b") as file:
            file.truncate(2**29)  # sparse


HOSTILE = [
    "link",
    "pipe",
    "folder",
    "list",
    "nested",
    "schema name",
    "depth",
    "schema",
    "fewer columns",
    "rows",
    "size",
]
DAMAGED = ["events", "alarm"]  # lines of events, which are skipped and counted
