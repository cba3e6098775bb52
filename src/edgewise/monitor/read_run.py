"""A run folder read back, also while it grows: rows, numbers per head, events, and the Trace of a stored step."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from time import time as now
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import open_regular, whole_file
from edgewise.monitor.alarm import NO_LOSS
from edgewise.monitor.columns import blocks, sites
from edgewise.monitor.run_folder import (
    FAST,
    HEADS,
    RunRows,
    about_run,
    events_of,
    owner_lives,
    read_rows,
    schema_columns,
)
from edgewise.monitor.series import FEWEST
from edgewise.nouns.architecture import Shown
from edgewise.nouns.trace import Provenance, Trace

SILENT = 300.0  # seconds without a row or an event, after which a run that has not ended is called silent
OBSERVED = {
    "gradient_norm": "the gradient",
    "update_ratio": "the updates",
    "norm": "the stream",
    "largest_logit": "attention",
}  # what alarms rest on, by a statistic that shows whether it was observed; the loss apart
NO_EVENTS = "The run has no file of events of this process, so the alarms that it raised are not known."
CUT = (
    "The last event of the run is incomplete: it is still being written, or the process was stopped while it wrote. It "
    "may have been an alarm."
)
LOSS_NEVER = f"The loss was never reported.{NO_LOSS.removeprefix('the loss.')}."


def read(
    folder: str | Path,
    *,
    heads: bool = False,
    rank: int = 0,
    columns: Sequence[str] | None = None,
    frame: bool | None = None,
) -> Any:
    """Read the stored rows of a watched run, one per sampled step.

    Damaged rows and events are skipped, with a warning that says how many.

    folder   what `watch` was given; it may still be growing
    heads    the numbers per head, which are stored on a slower clock
    rank     of which process
    columns  only these, by name, as in "block.3.entropy"
    frame    True for a pandas DataFrame with the step as index, False for a dict of arrays; by default a frame where
             pandas is installed

    >>> import tempfile, torch
    >>> import edgewise
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> with edgewise.watch(model, folder, everything=True, quiet=True) as handle:
    ...     loss = model(torch.randn(2, 8, 16)).square().mean()
    ...     handle.log(loss=loss)
    ...     loss.backward()
    ...     optimizer.step()
    >>> read(folder, frame=False)["step"].tolist()
    [0]
    """
    run = Run(folder)
    rows, names = run.rows(HEADS if heads else FAST, rank), run.columns(HEADS if heads else FAST)
    wanted = list(names) if columns is None else _known(columns, names, run.path)
    run.warn_of_damage(rows, rank)
    places = {name: place for place, name in enumerate(names)}
    values = {name: rows.values[:, places[name]] for name in wanted}
    if frame is None:
        frame = find_spec("pandas") is not None
    if not frame:
        return {"step": rows.step, "time": rows.time, **values}
    if find_spec("pandas") is None:
        raise BadInput(
            "pandas is not installed, so there is no DataFrame. Install it, or say frame=False for arrays."
        )
    import pandas

    index = pandas.Index(rows.step, name="step")
    return pandas.DataFrame({"time": pandas.to_datetime(rows.time, unit="s"), **values}, index=index)


def trace_at(folder: str | Path, step: int | None = None, *, rank: int = 0) -> Trace:
    """The geometry of a stored step as a Trace, for `judge`.

    folder  of a watched run
    step    a stored one; the last unless given
    rank    of which process
    """
    return Run(folder).trace(step, rank)


def _known(columns: Sequence[str], names: Sequence[str], path: Path) -> list[str]:
    missing = [name for name in columns if name not in names]
    if missing:
        raise BadInput(f"{path} has no column {missing[0]!r}. Its columns are {', '.join(names[:12])}, ...")
    return list(columns)


def _last_byte(path: Path) -> bytes:
    with open_regular(path) as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
        return file.read(1)


@dataclass(frozen=True)
class Run(Shown):
    """A folder that `watch` wrote into."""

    folder: str | Path

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @cached_property
    def about(self) -> dict[str, Any]:
        """Return the contents of run.json."""
        return about_run(self.path)

    def schema(self, kind: str = FAST) -> list[dict[str, Any]]:
        """One dict per column: its name, place, unit, range, formula."""
        name = f"schema-{self.about['schema' if kind == FAST else 'heads_schema']}.jsonl"
        return schema_columns(self.path / name)

    def columns(self, kind: str = FAST) -> tuple[str, ...]:
        return tuple(row["column"] for row in self.schema(kind))

    def ranks(self) -> list[int]:
        """The processes that wrote rows."""
        names = [path.name[len(FAST) :].partition("-")[0] for path in self.path.glob(f"{FAST}*-*.rows")]
        return sorted({int(name) for name in names if name.isdecimal()})

    def rows(self, kind: str = FAST, rank: int = 0) -> RunRows:
        """All rows of a rank; after a restart the new rows replace the old ones from their first step on."""
        schema = self.about["schema" if kind == FAST else "heads_schema"]
        count = len(self.columns(kind))
        paths = sorted(self.path.glob(f"{kind}{rank}-*.rows"))
        if not paths and rank not in self.ranks():
            known = ", ".join(map(str, self.ranks()))
            others = f"those of {known}" if known else "none at all"
            raise BadInput(f"{self.path} has no rows of rank {rank}; it has {others}.")
        return _joined([read_rows(path, schema, count) for path in paths], count)

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return the recorded events, in order; damaged lines, and one that is still being written, are left out."""
        return [event for path in self._event_files(rank) for event in events_of(path)[0]]

    def damaged_events(self, rank: int = 0) -> int:
        """Lines of the files of events that are damaged."""
        return sum(events_of(path)[1] for path in self._event_files(rank))

    def _event_files(self, rank: int) -> list[Path]:
        return sorted(self.path.glob(f"events-rank{rank}-*.jsonl"))

    def cut_off(self, rank: int = 0) -> bool:
        """Return whether the last event has no end: it is being written, or the process was stopped in its midst."""
        return any(_last_byte(path) not in (b"", b"\n") for path in self._event_files(rank))

    def warn_of_damage(self, rows: RunRows, rank: int = 0) -> None:
        """Warn where rows or events of the run are damaged, with their number."""
        for sentence in _damage(rows.damaged, self.damaged_events(rank)):
            warnings.warn(f"{self.path}: {sentence}", stacklevel=3)

    def unseen(self, rank: int = 0, *, rows: RunRows | None = None, again: bool = False) -> list[str]:
        """List what the monitor could not see or survive, a sentence each; without any, "no alarm" means something.

        rows   of this rank, if they were read already
        again  leave out what is about stored alarms: the detectors are run on the rows instead
        """
        rows, events = self.rows(rank=rank) if rows is None else rows, self.events(rank)
        found = unseen_of_events(events, self.path, rank, last=float(rows.time[-1]) if len(rows) else None)
        found += [] if again or self._event_files(rank) else [NO_EVENTS]
        found += [CUT] if not again and self.cut_off(rank) else []
        found += _damage(rows.damaged, 0 if again else self.damaged_events(rank))
        names, losses = (
            self.columns(),
            sum(int(event.get("losses") or 0) for event in events if _counted(event)),
        )
        losses += any(event["kind"] == "alarm" and event.get("alarm") == "not_a_number" for event in events)
        observed = [not np.isnan(column).all() for column in rows.values.T]
        return found + unseen_of_rows(names, observed, len(rows), losses)

    def trace(self, step: int | None = None, rank: int = 0) -> Trace:
        """The Trace of a stored step: stream, gradient and attention as they were on the training batch."""
        rows = self.rows(rank=rank)
        if not len(rows):
            raise BadInput(f"{self.path} holds no row yet.")
        wanted = int(rows.step[-1]) if step is None else step
        if wanted not in rows.step:
            near = rows.step[np.abs(rows.step - wanted).argmin()]
            raise BadInput(f"step {wanted} was not stored; the nearest one is {near} (steps are sampled).")
        row = rows.values[int(np.flatnonzero(rows.step == wanted)[-1])].astype(float)
        return trace_of(dict(zip(self.columns(), row, strict=True)), self.about, wanted)


def ended(events: Sequence[dict[str, Any]]) -> bool:
    """Return whether the last start was followed by an end: a run that was resumed continues."""
    return any(event["kind"] in ("stop", "off") for event in _last_part(events))


def _last_part(events: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    starts = [i for i, event in enumerate(events) if event["kind"] == "start"]
    return events[starts[-1] if starts else 0 :]


def _counted(event: dict[str, Any]) -> bool:
    return event["kind"] == "stop" and type(event.get("losses")) is int


def unseen_of_events(
    events: Sequence[dict[str, Any]], path: Path, rank: int = 0, last: float | None = None
) -> list[str]:
    """List what was not watched by the events: after an error, after a kill, and what the disk did not take.

    last: when the last row was written
    """
    part = _last_part(events)
    found = [
        f"The monitor switched itself off at step {event.get('step')}, and nothing after that was watched: "
        f"{event.get('sentence', '')}"
        for event in part
        if event["kind"] == "off"
    ]
    if events and not ended(events):
        times = [moment for event in part if isinstance(moment := event.get("time"), int | float)]
        lives, silent = owner_lives(path, rank), now() - max([*times, last or 0.0])
        if lives is False or (lives is None and silent > SILENT):
            found.append(
                "The run stopped without an end: its process was killed, or it crashed, or is very slow."
            )
    return found + [event.get("sentence", "") for event in part if event["kind"] == "lost"]


def unseen_of_rows(names: Sequence[str], observed: Sequence[bool], rows: int, losses: int) -> list[str]:
    """List what the rows cannot show: there are too few of them, or columns without any number.

    observed: per column, whether any row has a number; losses: how often one was reported, also between rows
    """
    if not rows:
        return ["No row was stored, so nothing is known about the run."]
    found = []
    if rows < FEWEST:
        few = "Only 1 row was" if rows == 1 else f"Only {rows} rows were"
        found.append(
            f"{few} stored, and most alarms need {FEWEST}. Train longer, or sample more steps with a larger budget= or "
            "everything=True."
        )
    seen = dict(zip(names, observed, strict=True))
    if not (losses or seen.get("loss", True)):
        found.append(LOSS_NEVER)
    for statistic, what in OBSERVED.items():
        blank = [
            name.removesuffix(f".{statistic}")
            for name, any_number in seen.items()
            if not any_number and (name == statistic or name.endswith(f".{statistic}"))
        ]
        if blank:
            places = (
                ""
                if blank == [statistic]
                else f" of {', '.join(blank[:8])}{', ...' if len(blank) > 8 else ''}"
            )
            found.append(f"{what[0].upper()}{what[1:]}{places} was not observed: no row has a number of it.")
    return found


def _damage(rows: int, events: int) -> list[str]:
    found = []
    if rows:
        found.append(f"{rows} damaged row{' was' if rows == 1 else 's were'} skipped.")
    if events:
        which = "which may have been an alarm" if events == 1 else "which may have been alarms"
        found.append(
            f"{events} damaged line{'' if events == 1 else 's'} of events, {which}, "
            f"{'was' if events == 1 else 'were'} skipped."
        )
    return found


def _joined(parts: Sequence[RunRows], count: int) -> RunRows:
    kept: list[RunRows] = []
    for part in parts:
        if len(part):
            kept = [_before(rows, int(part.step[0])) for rows in kept]
        kept.append(part)
    if not kept:
        return RunRows(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, count), np.float32))
    step, time, values = (
        np.concatenate([getattr(rows, name) for rows in kept]) for name in ("step", "time", "values")
    )
    return RunRows(step, time, values, sum(rows.damaged for rows in kept))


def _before(rows: RunRows, step: int) -> RunRows:
    old = rows.step < step
    return RunRows(rows.step[old], rows.time[old], rows.values[old], rows.damaged)


def trace_of(row: dict[str, float], about: dict[str, Any], step: int) -> Trace:
    """The Trace of one row, by column."""
    depth = int(about["depth"])
    if f"block.{depth}.norm" in row:
        raise BadInput(
            f"run.json says {depth} blocks, and the rows have numbers of block.{depth} too. Was it changed?"
        )
    norm, separation, growth = (
        _at(row, sites(depth), name) for name in ("norm", "separation", "gradient_growth")
    )
    if not np.isfinite(norm).any():
        raise BadInput(
            f"the stream was not observed at step {step}: {about.get('blind') or 'no site was read'}."
        )
    inside = {name: _at(row, blocks(depth), name) for name in ATTENTION}
    statistics = {name: np.concatenate([[np.nan], values])[None, :, None] for name, values in inside.items()}
    gradient = None if np.isnan(growth).all() else growth[None, None]
    return Trace(
        sites=("embed", *(f"{block}.output" for block in blocks(depth))),
        norm=norm[None],
        separation=separation[None],
        readouts=() if gradient is None else ("own",),
        log_gradient=gradient,
        attention_entropy=None if np.isnan(inside["entropy"]).all() else statistics.pop("entropy"),
        softmax_condition=statistics.pop("softmax_condition"),
        statistics=statistics,
        provenance=Provenance(f"step {step} of {about.get('model', 'a model')}, as watched", step=step),
    )


ATTENTION = ("entropy", "softmax_condition", "support", "largest_logit", "saturated", "softmax_gain")


def _at(row: dict[str, float], places: Sequence[str], name: str) -> Array:
    missing = next((place for place in places if f"{place}.{name}" not in row), None)
    if missing is not None:
        raise BadInput(
            f"the run has no column {missing}.{name}, which its {len(places)} places need. Was it changed?"
        )
    return np.array([row[f"{place}.{name}"] for place in places])


SUFFIXES = (".csv", ".parquet")


def export(folder: str | Path, path: str | Path, *, heads: bool = False, rank: int | None = None) -> int:
    """Write the rows of a run to one file and return how many.

    folder  of a watched run
    path    ends in .csv or .parquet; an existing file is replaced
    heads   the numbers per head instead
    rank    of this process only; all of them unless given
    """
    goal, kind = Path(path), HEADS if heads else FAST
    suffix = goal.suffix.lower()
    if suffix not in SUFFIXES:
        raise BadInput(
            f"{goal.name!r} does not say which format: expected a name that ends in .csv or .parquet."
        )
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise BadInput("a Parquet file needs pyarrow, which is not installed. Install it, or export to .csv.")
    run = Run(folder)
    ranks = (run.ranks() or [0]) if rank is None else [rank]  # rank 0 says that there are none
    names = ["rank", "step", "time", *run.columns(kind)]
    tables = [_table(run, kind, each) for each in ranks]
    columns = [np.concatenate([table[i] for table in tables]) for i in range(len(names))]
    try:
        with whole_file(goal) as file:
            file.write(_csv(names, columns) if suffix == ".csv" else _parquet(names, columns))
    except OSError as error:
        raise BadInput(
            f"{goal} cannot be written ({error.strerror or error}). Name another place."
        ) from error
    return len(columns[0])


def _table(run: Run, kind: str, rank: int) -> list[Array]:
    rows = run.rows(kind, rank)
    return [np.full(len(rows), rank), rows.step, rows.time, *rows.values.T]


def _csv(names: list[str], columns: list[Array]) -> bytes:
    """Numbers as Python writes them, so that they are read back exactly; an empty cell is not a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    cells = [["" if value != value else repr(value) for value in column.tolist()] for column in columns]
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue().encode()


def _parquet(names: list[str], columns: list[Array]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, columns, strict=True))), sink)
    return sink.getvalue()
