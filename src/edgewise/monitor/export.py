"""A run folder as one table for other programs: CSV, or Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import whole_file
from edgewise.monitor.reading import Run
from edgewise.monitor.run_folder import FAST, HEADS

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
