"""Stored rows under the detectors of today: what they would have said, without training again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.bands import Bands
from edgewise.monitor.columns import Column, Statistic
from edgewise.monitor.order import Detection
from edgewise.monitor.reading import Run

NO_HEADS = np.zeros((0, 0, 0))  # numbers per head are not in these rows, so no head is named


def alarms_again(folder: str | Path, *, rank: int = 0) -> list[Alarm]:
    """The alarms that today's detectors raise on the stored rows of a run.

    folder  of a watched run
    rank    of which process
    """
    run = Run(folder)
    rows = run.rows(rank=rank)
    return list(_alarms(_columns(run.schema()), rows.step, rows.values))


def _alarms(columns: Sequence[Column], steps: Array, values: Array) -> Iterator[Alarm]:
    bands = Bands(columns)
    detection = Detection(bands)
    for step, row in zip(steps.tolist(), values, strict=True):
        if _seen(columns, row):
            bands.see(step, row)
            yield from detection.see(step, NO_HEADS)


def _seen(columns: Sequence[Column], row: Array) -> bool:
    """Whether hooks were reached: a loss without a stream is a pass that went past them."""
    norms = [i for i, column in enumerate(columns) if column.statistic.name == "norm"]
    loss = next(i for i, column in enumerate(columns) if column.name == "loss")
    return not norms or bool(np.isfinite(row[norms]).any()) or not np.isfinite(row[loss])


def _columns(schema: Sequence[dict[str, Any]]) -> tuple[Column, ...]:
    names = {field.name for field in fields(Statistic)}
    return tuple(Column(Statistic(**{n: line[n] for n in names}), line["place"]) for line in schema)
