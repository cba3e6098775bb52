"""Kill runs at random moments and see, by the clock, how long anything of them goes on; needs a quiet machine.

    python -m tests.study.kills_by_clock [KILLS [--record]]

Whatever still works in the folder of a killed run counts, also a worker that was only starting. `--record` writes the
numbers beside this file. The exit code is 0 when all was gone within two seconds and nothing was lost.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.study.test_kill import RUN, check_records, check_resumed, slow_recipe

RECORD = Path(__file__).with_suffix(".json")
LONGEST, CASES = {1: 0.4, 4: 3.0}, {1: 100, 4: 600}  # seconds until a kill, cases for each kill, by workers
GONE = 2.0  # seconds
PATIENCE = 20.0


def alive_in(folder: Path) -> list[int]:
    """Processes that work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def kill_one(path: Path, workers: int, after: float) -> tuple[bool, float]:
    """Whether the run was struck before its end, and the seconds until nothing of it was left."""
    folder = path.parents[1]
    command = [sys.executable, "-c", RUN, str(path), str(folder / "runs"), str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    time.sleep(after)
    struck = process.poll() is None
    process.send_signal(signal.SIGKILL)
    began = time.monotonic()
    process.wait()
    process.stdout.close()
    while alive_in(folder) and time.monotonic() - began < PATIENCE:
        time.sleep(0.02)
    return struck, time.monotonic() - began


def kills(workers: int, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, moments = Path(name).resolve(), random.Random(workers)
        path = slow_recipe(folder, CASES[workers] * count, 0.002)
        ends = [kill_one(path, workers, moments.uniform(0, LONGEST[workers])) for _ in range(count)]
        check_records(folder / "runs" / "paper2020idea" / "figure1" / "records")
        check_resumed(path, CASES[workers] * count, count, workers)
    seconds = sorted(second for _, second in ends)
    return {
        "workers": workers,
        "kills": count,
        "before the end": sum(struck for struck, _ in ends),
        "longest": round(seconds[-1], 2),
        "median": round(seconds[len(seconds) // 2], 2),
        "after two seconds": sum(second > GONE for second in seconds),
        "lost": 0,
    }


def main() -> int:
    count = next((int(word) for word in sys.argv[1:] if word.isdigit()), 40)
    rows = []
    for workers in CASES:
        rows.append(kills(workers, count))
        print(rows[-1], flush=True)
    if "--record" in sys.argv:
        RECORD.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["after two seconds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
