"""What a case costs beside its own work: serial, loky and Dask side by side; what it costs to read the store."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.one_engine import RECIPE
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.study import load_recipe
from edgewise.study.engine import Work
from edgewise.study.store import Record, Writer, stamp

ENGINES = {
    "serial": ("serial", 1),
    "serial again": ("serial", 1),
    "loky 1": ("loky", 1),
    "loky 2": ("loky", 2),
    "Dask 1": ("dask", 1),
    "Dask 2": ("dask", 2),
}
LIMIT = 20  # ms of CPU per case: small beside any case worth sending to a worker
READ = """
import sys, time
from pathlib import Path
from edgewise.study.store import read

def peak():  # of this process alone: ru_maxrss would be inherited
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

before = peak()
wall, cpu = time.perf_counter(), time.process_time()
contents = read([Path(sys.argv[1])])
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(len(contents.done), wall, cpu, peak() - before)
"""
NOTES = [
    "Whole runs of cases that do nothing: made, checked, sent, measured, stored with fsync, read back. Each "
    "run in a process of its own; pool or cluster started and warmed before the clock; engines in turn, medians.",
    "CPU is of all processes of a run. `serial again` beside `serial` is the noise of this machine.",
    "With one worker `edgewise run` works in its own process: the row `loky 1` is loky's executor itself, which "
    "sends one case at a time, while joblib sends short cases in batches.",
    "Waiting cases occupy a worker and no core, so more workers than cores can be compared.",
]


@dataclass(frozen=True)
class Cost:
    """Seconds of one whole run: on the clock, and of all processors in all its processes."""

    wall: float
    cpu: float


def run(quick: bool, tell: Tell) -> Findings:
    overhead, worst = _overhead(quick, tell)
    with tempfile.TemporaryDirectory() as folder:
        reading, power = _reading(Path(folder), quick, tell)
        tables = [overhead, _more_workers(quick, tell), _pieces(Path(folder), quick), reading]
    promise = f"under {LIMIT} ms of CPU per case beside its own work, on every engine"
    goals = [
        Goal(promise, f"at worst {worst:.2g} ms", None if quick else worst < LIMIT),
        Goal(
            "reading the store is near-linear",
            f"time grows as records^{power:.2f}",
            None if quick else power < 1.15,
        ),
    ]
    return tables, goals, NOTES


def _run(engine: tuple[str, int], count: int, seconds: float = 0.0) -> Cost:
    command = [
        sys.executable,
        "-m",
        "benchmarks.one_engine",
        engine[0],
        str(engine[1]),
        str(count),
        str(seconds),
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(*map(float, found.stdout.split()))


def _overhead(quick: bool, tell: Tell) -> tuple[Table, float]:
    turns = {20: 1, 100: 1} if quick else {100: 3, 1000: 3, 10_000: 1}
    costs: dict[tuple[str, int], list[Cost]] = {}
    for place, (count, repetitions) in enumerate(turns.items()):
        for turn in range(repetitions):
            for name in list(ENGINES)[:: 1 if turn % 2 else -1]:
                tell(0.6 * (place + turn / repetitions) / len(turns), f"{count} cases, {name}")
                costs.setdefault((name, count), []).append(_run(ENGINES[name], count))
    rows = [[name, count, *_per_case(costs[name, count], count)] for count in turns for name in ENGINES]
    columns = ("engine, workers", "cases", "wall ms per case", "CPU ms per case", "wall s in all", "turns")
    worst = max(float(row[3] or 0) for row in rows if row[1] == max(turns))
    return Table("Cost of a case that does nothing", columns, rows), worst


def _per_case(costs: list[Cost], count: int) -> list[float | int]:
    wall, cpu = median(cost.wall for cost in costs), median(cost.cpu for cost in costs)
    return [wall / count * 1e3, cpu / count * 1e3, wall, len(costs)]


def _more_workers(quick: bool, tell: Tell) -> Table:
    """Cases that wait 50 ms: how near n workers come to n times the speed."""
    rows: list[list[Any]] = []
    for workers in (2,) if quick else (1, 2, 4, 8):
        count = (20 if quick else 100) * workers
        for name in ("loky", "dask"):
            tell(0.6 + 0.02 * workers, f"{workers} workers, {name}")
            wall = _run((name, workers), count, 0.05).wall
            rows.append(
                [f"{name.replace('dask', 'Dask')} {workers}", count, wall, count * 0.05 / workers / wall]
            )
    columns = ("engine, workers", "cases of 50 ms", "wall s", "share of the workers' time used")
    return Table("More workers", columns, rows)


def _pieces(folder: Path, quick: bool) -> Table:
    """What the cost of a case is made of, in this process."""
    count = 100 if quick else 1000
    recipe = folder / "trivial.py"
    recipe.write_text(RECIPE)
    writer, records = Writer(folder), list(_records(count))
    with tempfile.TemporaryFile(dir=folder) as file:
        pieces = {
            "make, key and check a case": _clocked(
                lambda: Work.of(load_recipe(recipe), f"{count} 0.0", folder)
            ),
            "append a record with fsync": _clocked(lambda: [writer.append(record) for record in records]),
            "fsync of an unchanged file": _clocked(lambda: [os.fsync(file.fileno()) for _ in range(count)]),
        }
    rows = [[name, cost.wall / count * 1e6, cost.cpu / count * 1e6] for name, cost in pieces.items()]
    return Table(f"Pieces, mean of {count}", ("piece", "wall µs", "CPU µs"), rows)


def _clocked(function: Any) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _records(count: int) -> Iterator[Record]:
    for x in range(count):
        value = {"loss": x * 0.1, "curve": [0.5, 0.25, 0.125, x * 0.01]}
        yield Record({"seed": x, "x": 0.5}, 0.001, value, stamp=stamp())


def _reading(folder: Path, quick: bool, tell: Tell) -> tuple[Table, float]:
    counts = (1_000, 10_000) if quick else (10_000, 100_000, 1_000_000)
    rows: list[list[Any]] = []
    for place, count in enumerate(counts):
        tell(0.8 + 0.2 * place / len(counts), f"reading {count} records")
        path = folder / f"{count}.jsonl"
        with path.open("wb") as file:
            file.writelines(record.line() for record in _records(count))
        found = subprocess.run(
            [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
        )
        read, wall, cpu, memory = map(float, found.stdout.split())
        assert read == count
        rows.append([count, path.stat().st_size / 1e6, wall, cpu, cpu / count * 1e6, memory / 1e6])
        path.unlink()
    power = float(np.polyfit(np.log([row[0] for row in rows]), np.log([row[3] for row in rows]), 1)[0])
    columns = ("records", "MB", "wall s", "CPU s", "CPU µs per record", "MB of memory for the results")
    return Table("Reading the store, one process", columns, rows), power
