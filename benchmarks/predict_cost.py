"""What an answer costs, for every preset, beside the code before the Gram recursion became faster.

Cold processes, judge, a second call. The old code is that of commit 61ad0f0, taken from the repository; both run in
turn in fresh processes on one core, with their modules compiled, as those of an installed package are.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.models.source import preset_names

ROOT = Path(__file__).parents[1]
OLD = "61ad0f0"
COLD, JUDGE, SIMPLEX, GRAM = 1.2, 0.05, 0.1, 1.0  # seconds of CPU, the project's goals
PROBE = """
import json, sys, time
import edgewise
def cpu(f):
    start = time.process_time(); value = f(); return value, time.process_time() - start
network = edgewise.describe(sys.argv[1])
if getattr(network, "causal", False):
    network = network.replace(tokens=256)
edgewise.judge(edgewise.predict(network))
trace, again = cpu(lambda: edgewise.predict(network))
dead = edgewise.predict(edgewise.describe("torch-encoder", depth=48))
edgewise.judge(dead)
_, judged = cpu(lambda: edgewise.judge(trace))
_, failing = cpu(lambda: edgewise.judge(dead))
print(json.dumps([again, judged, failing, "gram" in trace.source]))
"""


def run(quick: bool, tell: Tell) -> Findings:
    presets, turns = (["bert-base"], 1) if quick else ([*preset_names(), "mlp:tanh"], 1)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, PYTHONPYCACHEPREFIX=f"{folder}/compiled"),
    ):
        sources = {"old": _old_source(Path(folder)), "new": ROOT / "src"}
        for source in sources.values():  # the first run of each compiles
            _python(source, ["-m", "edgewise", "predict", "gpt2"])
        rows = []
        for index, preset in enumerate(presets):
            tell(index / len(presets), preset)
            rows.append(_row(preset, sources, turns))
    return (
        [_table(rows, turns)],
        _goals(rows),
        [
            f"old: commit {OLD}. `cold`: user time of `edgewise predict PRESET` with imports; `second call`: at 256 "
            "tokens where there is a mask; `judge, failing`: 48 blocks of torch-encoder."
        ],
    )


def _old_source(folder: Path) -> Path:
    """The package as it was, unpacked from the repository."""
    packed = subprocess.run(["git", "archive", OLD, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def _row(preset: str, sources: dict[str, Path], turns: int) -> dict[str, Any]:
    """Medians over turns, old and new in turn, so that both see the same machine."""
    cold: dict[str, list[float]] = {name: [] for name in sources}
    inside: dict[str, list[list[float]]] = {name: [] for name in sources}
    for _ in range(turns):
        for name, source in sources.items():
            cold[name].append(_cold(source, preset))
            inside[name].append(json.loads(_python(source, ["-c", PROBE, preset]).stdout))
    row: dict[str, Any] = {"preset": preset, "gram": bool(inside["new"][0][3])}
    for name in sources:
        row[f"cold, {name}"] = statistics.median(cold[name])
        for index, what in enumerate(("second call", "judge", "judge, failing")):
            row[f"{what}, {name}"] = statistics.median(values[index] for values in inside[name])
    return row


def _cold(source: Path, preset: str) -> float:
    """User seconds of `edgewise predict PRESET` in a fresh process, imports included."""
    before = os.times().children_user
    _python(source, ["-m", "edgewise", "predict", preset])
    return os.times().children_user - before


def _python(source: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=source, capture_output=True, text=True
    )
    if done.returncode > 2:  # up to 2 it is a verdict
        raise RuntimeError(done.stderr)
    return done


def _table(rows: list[dict[str, Any]], turns: int) -> Table:
    kinds = ("cold", "second call", "judge", "judge, failing")
    names = [f"{what}, {which}" for what in kinds for which in ("old", "new")]
    values = [[row["preset"], *(row[name] for name in names)] for row in rows]
    return Table(f"CPU seconds, {turns} {'turn' if turns == 1 else 'turns'}", ("preset", *names), values)


def _goals(rows: list[dict[str, Any]]) -> list[Goal]:
    cold = max(row["cold, new"] for row in rows)
    judged = max(row[f"{what}, new"] for row in rows for what in ("judge", "judge, failing"))
    again = {gram: [row["second call, new"] for row in rows if row["gram"] is gram] for gram in (False, True)}
    goals = [
        Goal(f"predict from nothing: at most {COLD} s", f"{cold:.2f} s at worst", cold <= COLD),
        Goal(f"judge: at most {JUDGE} s", f"{judged:.3f} s at worst", judged <= JUDGE),
    ]
    for gram, limit, what in ((False, SIMPLEX, "simplex"), (True, GRAM, "Gram recursion at 256 tokens")):
        if again[gram]:
            worst = max(again[gram])
            goals.append(
                Goal(f"second call, {what}: at most {limit} s", f"{worst:.2f} s at worst", worst <= limit)
            )
    return goals
