"""The rows of the study's runs. A recipe trains every run that it measures, so its seconds are those of the training.

python -m experiments.alarms.rows FOLDER LIST...   train the runs of lists (population.json) into FOLDER, about 70 MB
                                                   each, to try detectors on them; goes on where it stopped
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from edgewise.monitor.read_run import Run
from edgewise.monitor.replay import alarms_again

from .training import trained


def runs_of(
    file: Path, half: str, seeds: Sequence[int], short: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The runs of one half of a list; with `short`, the first and the last one, changed to it, for a quick look."""
    runs = [
        run for run in json.loads(file.read_text())["runs"] if run["half"] == half and run["seed"] in seeds
    ]
    return runs if short is None else [{**run, **short} for run in (runs[0], runs[-1])]


def alarms_of(case: dict[str, Any]) -> dict[str, Any]:
    """Train a run; return its outcome and what the detectors say of its rows.

    Under the default budget: what was said while it trained, when the loss of every step was seen, and the usual steps
    between two rows.
    """
    with TemporaryDirectory(prefix="edgewise-alarms-") as name:
        folder = Path(name) / "run"
        outcome = trained(case, folder)
        if case.get("sampling") == "default":
            steps = Run(folder).rows().step
            return {**outcome, "gap": int(np.median(np.diff(steps))) if len(steps) > 1 else case["steps"]}
        alarms = [
            {"kind": a.kind.value, "step": a.step, "place": a.place, "since": a.since}
            for a in alarms_again(folder)
        ]
    return {**outcome, "alarms": alarms}


if __name__ == "__main__":
    home, *lists = map(Path, sys.argv[1:])
    for case in (run for file in lists for run in json.loads(file.read_text())["runs"]):
        folder = home / hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:16]
        if not (folder / "outcome.json").exists():  # a run that was cut short is made again
            shutil.rmtree(folder, ignore_errors=True)
            print(case["name"], case["task"], case["seed"], trained(case, folder), flush=True)
