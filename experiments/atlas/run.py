"""Train the atlas, or ask the verbs about it; goes on where it stopped.

python -m experiments.atlas.run train | readings | described | checks [--blind] [--limit N] [--minutes M]
python -m experiments.atlas.run summary [--draw FILE.png]

Every finished shape is one line of `results/<what>.jsonl`, with the stamp of the process that measured it. Two
processes may run at once: each takes the cheapest shape that no line and no other process has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from edgewise.study.store import stamp

from . import report
from .readings import checks, described, readings
from .train import shapes, siblings

RESULTS = Path(__file__).parent / "results"
WORK: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "train": siblings,
    "readings": readings,
    "described": described,
    "checks": checks,
}


def name(shape: dict[str, Any]) -> str:
    """Return what a shape is called in the results."""
    return f"{shape['family']}-{shape['task']}-{shape['seed']}"


def read(what: str, blind: bool = False) -> list[dict[str, Any]]:
    """Return the finished shapes; a line that was cut off is left out and measured again."""
    path = _file(what, blind)
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path.name}: a damaged line is skipped", file=sys.stderr)
    return rows


def _file(what: str, blind: bool) -> Path:
    return RESULTS / f"{what}{'_blind' if blind else ''}.jsonl"


def run(what: str, blind: bool, limit: int | None, minutes: float) -> None:
    """Measure what is missing, cheapest first; ask only about shapes that are trained."""
    RESULTS.mkdir(exist_ok=True)
    own, began, count = asdict(stamp()), time.monotonic(), 0
    trained = {row["shape"] for row in read("train", blind)}
    for shape in shapes(blind):
        if what != "train" and name(shape) not in trained:
            continue
        if count == limit or time.monotonic() - began > 60 * minutes:
            return
        lock = FileLock(RESULTS / f".{name(shape)}.{what}.lock")
        try:
            with lock.acquire(timeout=0):
                if name(shape) in {row["shape"] for row in read(what, blind)}:
                    continue
                started = time.process_time()
                value = WORK[what](shape)
                seconds = round(time.process_time() - started, 1)
                row = {"shape": name(shape), "seconds": seconds, "stamp": own} | value
                _append(_file(what, blind), row)
        except Timeout:  # another process is at it
            continue
        Path(lock.lock_file).unlink(missing_ok=True)
        count += 1
        print(f"{name(shape)}: {seconds:.0f} s, {time.monotonic() - began:.0f} s in all", flush=True)


def _append(path: Path, row: dict[str, Any]) -> None:
    """Write one whole line, behind a line break if the last one was cut off."""
    torn = path.is_file() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "ab") as file:
        file.write(b"\n" * bool(torn) + json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*WORK, "summary"])
    parser.add_argument("--blind", action="store_true", help="the list that is kept apart")
    parser.add_argument("--limit", type=int, help="measure at most so many shapes")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no shape after so many minutes")
    parser.add_argument("--draw", type=Path, help="write the picture here")
    options = parser.parse_args()
    if options.what != "summary":
        return run(options.what, options.blind, options.limit, options.minutes)
    results = read("train", options.blind)
    print(report.summary(results))
    if options.draw:
        report.draw(results).savefig(options.draw, dpi=150)


if __name__ == "__main__":
    main()
