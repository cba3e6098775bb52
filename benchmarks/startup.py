"""Wall time of `edgewise --help` beside an empty Python and beside `import torch`."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Findings, Goal, Table, Tell

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "edgewise --help": [str(Path(sys.executable).with_name("edgewise")), "--help"],
    'python -c "import numpy"': [sys.executable, "-c", "import numpy"],
    'python -c "import torch"': [sys.executable, "-c", "import torch"],
}
LIMIT = 0.3  # seconds


def _run(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(quick: bool, tell: Tell) -> Findings:
    turns = 2 if quick else 5
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for turn in range(turns + 1):  # the first fills the disk cache
        for name, command in COMMANDS.items():
            tell(turn / (turns + 1), name)
            samples[name].append(_run(command))
    best = {name: [min(kind) for kind in zip(*values[1:], strict=True)] for name, values in samples.items()}
    wall, cpu = best["edgewise --help"]
    rows = [[name, *times, wall / times[0]] for name, times in best.items()]
    goal = Goal(
        f"edgewise --help in under {LIMIT} s",
        f"{wall:.2f} s wall, {cpu:.2f} s CPU, best of {turns}",
        wall < LIMIT,
    )
    title = f"Best of {turns}, in turn"
    return [Table(title, ("command", "wall s", "CPU s", "edgewise --help / this"), rows)], [goal], []
