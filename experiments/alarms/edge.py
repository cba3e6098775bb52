"""Does the edge of a rehearsal tell a rate that is too large? Healthy runs at the advised rate, and rates that break.

Every network is rehearsed before it trains; one row in ten then says how far a step moves the last stream, against the
rehearsed edge. The factor and the number of looks that raise an alarm were chosen on seed 1; the claim is about seed 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import edgewise
from edgewise.monitor.detectors import BEYOND
from edgewise.monitor.read_run import Run
from edgewise.monitor.series import LOOKS
from edgewise.nouns.card import Curve, Panel
from edgewise.present import Sheet
from edgewise.study import Claim, Result
from edgewise.study.tasks import task

from .network import Network
from .population import SHAPES, TASKS
from .training import trained

TOLERANCE = 0.006  # of the largest number in an entry; seeds scatter by 0.058 or more
NOT_COMPARED = ("rate", "looks")  # of twelve steps near the edge: with other vectors 3 % and 17 % away
KINDS: dict[str, dict[str, Any]] = {
    "advised rate": {"failure": "none"},
    "rate ramped": {"failure": "rate ramped"},
    "rate 0.1": {"failure": "none", "rate": 0.1},
}
BATCHES = 26


def cases(scale: str = "small") -> list[dict[str, Any]]:
    steps, seeds = (400, (1, 2)) if scale == "full" else (12, (2,))
    shape = SHAPES[0] if scale == "full" else {"depth": 1, "width": 32, "heads": 2}
    tasks = tuple(TASKS) if scale == "full" else ("digits",)
    return [
        {
            "kind": kind,
            "task": name,
            "batch": TASKS[name] if scale == "full" else 16,
            "norm": "pre",
            "steps": steps,
            "seed": seed,
        }
        | shape
        | change
        for (kind, change), name, seed in product(
            list(KINDS.items())[: None if scale == "full" else 1], tasks, seeds
        )
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Rehearse, train at the advised rate unless the case has another, and return what every look saw."""
    rate = rehearsed(case)
    if rate.best is None:
        return {
            "error": f"no rate is named: {rate.reason}",
            "looks": [],
            "turn": None,
            "rate": None,
            "edge": None,
        }
    with TemporaryDirectory(prefix="edgewise-alarms-") as name:
        folder = Path(name) / "run"
        outcome = trained({"rate": rate.best, **case}, folder, rate)
        rows, edge = edgewise.read(folder, frame=False), Run(folder).about["edge"]
    seen = np.isfinite(rows["stream_change_of_edge"])
    looks = [
        [int(s), float(v)]
        for s, v in zip(rows["step"][seen], rows["stream_change_of_edge"][seen], strict=True)
    ]
    return {**outcome, "rate": float(rows["learning_rate"][0]), "edge": edge["rate"], "looks": looks}


def rehearsed(case: dict[str, Any]) -> edgewise.rehearsal.Rate:
    torch.manual_seed(case["seed"])
    data = task(case["task"])
    model = Network(data, case["depth"], case["width"], case["heads"], True)
    stream, criterion = data.batches(case["batch"], 100 + case["seed"]), nn.CrossEntropyLoss()

    def loss(network: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        value: torch.Tensor = criterion(network(batch[0]).reshape(-1, data.outputs), batch[1].reshape(-1))
        return value

    batches = [next(stream) for _ in range(BATCHES)]
    return edgewise.learning_rate(model, batches, loss, optimizer=torch.optim.Adam, progress=False)


def alarm_at(looks: Sequence[Sequence[float]], factor: float = BEYOND, count: int = LOOKS) -> int | None:
    """The step of the first look that makes `count` in a row beyond the edge."""
    row = 0
    for step, value in looks:
        row = row + 1 if value >= factor else 0
        if row == count:
            return int(step)
    return None


def claim(results: Sequence[Result]) -> Claim:
    reported = [r for r in results if r.case["seed"] == 2]
    full = len(results) > len(KINDS)
    healthy = [r for r in reported if r.case["kind"] == "advised rate"]
    broken = [r for r in reported if r.case["kind"] != "advised rate"]
    false = sum(alarm_at(r.value["looks"]) is not None for r in healthy)
    at = [(alarm_at(r.value["looks"]), r.value["turn"]) for r in broken]
    caught = [(step, turn) for step, turn in at if step is not None]
    leads = [turn - step for step, turn in caught if turn is not None]
    words = f"Median warning {median(leads):.0f} steps in the {len(leads)} whose loss turns." if leads else ""
    return Claim(
        f"{LOOKS} looks in a row beyond {BEYOND:g} times the edge: in no run at the advised rate, in every run whose "
        "rate is too large.",
        f"{false} of {len(healthy)} at the advised rate, {len(caught)} of {len(broken)} too large. {words}",
        "small encoders on film reviews and digits, 400 steps, seed 2",
        (false == 0 and len(caught) == len(broken)) if full else None,
        {
            "false": false,
            "healthy": len(healthy),
            "caught": len(caught),
            "broken": len(broken),
            "leads": leads,
        },
    )


def draw(results: Sequence[Result]) -> Figure:
    """Every look of every run, by kind."""
    panels = []
    for kind in KINDS:
        runs = [r for r in results if r.case["kind"] == kind]
        curves = tuple(
            Curve(
                "",
                np.array([s for s, _ in r.value["looks"]]),
                np.array([v for _, v in r.value["looks"]]),
                i % 6,
            )
            for i, r in enumerate(runs)
        )
        line = Curve("", np.array([0.0, 400.0]), np.array([BEYOND, BEYOND]), 6, "third")
        panels.append(Panel(kind, "step", "change of the stream, edge = 1", (*curves, line), log_y=True))
    foot = "one line per run; dotted: where an alarm would ring"
    return Sheet("One step's change of the stream against the rehearsed edge", tuple(panels), foot).draw()
