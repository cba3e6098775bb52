"""The stored rows of the study's runs: trained where they are missing.

python -m experiments.alarms.rows [PART PARTS]     those that thresholds were chosen on: trains what is missing
python -m experiments.alarms.rows edge             the same for the runs with a rehearsal
python -m experiments.alarms.rows every|default    the same for one part of the held-out runs
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.monitor.read_run import Run
from edgewise.monitor.replay import alarms_again

from .population import FILE
from .training import trained

HOME = os.environ.get(
    "EDGEWISE_ALARM_ROWS"
)  # where rows are kept, about 70 MB; without it every run is trained
_rows: list[tempfile.TemporaryDirectory[str]] = []  # of this process


def runs_of(
    file: Path, half: str, seeds: Sequence[int], short: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The runs of one half of a list; with `short`, the first and the last one, changed to it, for a quick look."""
    runs = [
        run for run in json.loads(file.read_text())["runs"] if run["half"] == half and run["seed"] in seeds
    ]
    return runs if short is None else [{**run, **short} for run in (runs[0], runs[-1])]


def folder_of(case: dict[str, Any]) -> Path:
    """Where the rows of a case are, by its content."""
    if HOME is None and not _rows:
        _rows.append(tempfile.TemporaryDirectory(prefix="edgewise-alarms-"))
    return (
        Path(HOME or _rows[0].name)
        / hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:16]
    )


def rows_of(
    case: dict[str, Any], rehearse: Callable[[dict[str, Any]], Any] | None = None
) -> tuple[Path, dict[str, Any]]:
    """The folder of a run and its outcome; a run that was cut short is made again.

    rehearse: makes the rehearsal that the run is held against; it also names the rate where the case has none.
    """
    folder = folder_of(case)
    if not _whole(folder, case):
        shutil.rmtree(folder, ignore_errors=True)
        rate = None if rehearse is None else rehearse(case)
        trained(case if rate is None else {"rate": rate.best, **case}, folder, rate)
    outcome: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    return folder, outcome


def _whole(folder: Path, case: dict[str, Any]) -> bool:
    """Whether a run came to its end; one of an older program under a budget did not keep its alarms."""
    file = folder / "outcome.json"
    return file.exists() and (case.get("sampling") != "default" or "alarms" in json.loads(file.read_text()))


def alarms_of(case: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a run and what today's detectors say of its rows.

    Under the default budget: what was said while it trained, when the loss of every step was seen, and the usual steps
    between two rows.
    """
    folder, outcome = rows_of(case)
    if case.get("sampling") == "default":
        steps = Run(folder).rows().step
        return {**outcome, "gap": int(np.median(np.diff(steps))) if len(steps) > 1 else case["steps"]}
    alarms = [
        {"kind": a.kind.value, "step": a.step, "place": a.place, "since": a.since}
        for a in alarms_again(folder)
    ]
    return {**outcome, "alarms": alarms}


if __name__ == "__main__":
    if sys.argv[1:] == ["edge"]:
        from .edge import cases, measure

        for each in cases("full"):
            print(each["kind"], each["task"], each["seed"], measure(each)["turn"], flush=True)
        sys.exit()
    if sys.argv[1:] in (["every"], ["default"]):
        from .default_population import FILE as DEFAULT
        from .held_out_population import FILE as EVERY

        for case in json.loads((EVERY if sys.argv[1] == "every" else DEFAULT).read_text())["runs"]:
            if case["half"].startswith(sys.argv[1]):
                print(case["name"], case["task"], case["seed"], rows_of(case)[1], flush=True)
        sys.exit()
    part, parts = (int(word) for word in sys.argv[1:3]) if len(sys.argv) > 2 else (0, 1)
    for number, case in enumerate(json.loads(FILE.read_text())["runs"]):
        if number % parts == part:
            print(number, case["name"], case["task"], case["seed"], rows_of(case)[1], flush=True)
