"""How much of the held-out labels is chance or haste: `python -m experiments.trainability.longer`.

Fixed before the run. Two questions, of the records of `held_out` and of one more run each:

twins    Each network was trained at its best rate from two seeds. How often do the two fall on different sides of half
         of chance, and what AUROC within a task has the loss of one seed for the outcome of the other? No forecast
         from a description can be expected to do better: it does not see the seed either.
longer   The networks on digits as 64 single pixels that did not train in 100 steps are trained once more, at the best
         rate and from the first seed of the record, for 300 steps with the same rise of the rate. One trains if the
         mean of its last ten losses is below half of chance; then its label said "slow" or "dead" for lack of steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgewise.study import recorded_results
from edgewise.study.train import TRAINS

from .held_out import _train
from .held_out_labels import label

RECORD = Path(__file__).parent / "recorded"
STEPS, PIXELS = 300, 64


def main() -> None:
    """Write both answers beside the records."""
    rows = [{"case": each.case, "value": each.value} for each in recorded_results(RECORD / "held_out.jsonl")]
    answer = {"twins": twins(rows), "longer": [longer(row) for row in rows if hasty(row)]}
    (RECORD / "longer.json").write_text(json.dumps(answer, indent=1) + "\n")
    json.dump(answer, sys.stdout, indent=1)


def twins(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Pairs that disagree, and the AUROC of one seed's loss for the other's outcome, mean over tasks by pairs."""
    scores: dict[str, list[tuple[float, bool]]] = {}
    apart = 0
    for row in rows:
        half = TRAINS * row["value"]["chance"]
        first, second = (_final(row["value"][name]) for name in ("best", "second"))
        apart += (first < half) is not (second < half)
        scores.setdefault(row["case"]["task"], []).append((first, second < half))
    pairs = {task: auroc(values) for task, values in scores.items()}
    total = sum(count for _, count in pairs.values())
    return {
        "networks": len(rows),
        "disagree": apart,
        "by_task": {task: value for task, (value, _) in pairs.items()},
        "auroc": sum(value * count for value, count in pairs.values()) / total,
    }


def auroc(values: list[tuple[float, bool]]) -> tuple[float, int]:
    """P(a run that failed has the larger score), and the number of pairs."""
    failed, trained = (np.array([x for x, good in values if good is wanted]) for wanted in (False, True))
    larger = (failed[:, None] > trained) + 0.5 * (failed[:, None] == trained)
    return float(larger.mean()), larger.size


def hasty(row: dict[str, Any]) -> bool:
    case = row["case"]
    return case["task"] == "digits" and case["tokens"] == PIXELS and label(row["value"]) != "trained"


def longer(row: dict[str, Any]) -> dict[str, Any]:
    """One network, trained three times as long."""
    torch.set_num_threads(1)
    case, value = row["case"], row["value"]
    run = _train(case | {"steps": STEPS}, case["seed"], [value["rate"]]).best
    return {
        "kind": case["kind"],
        "depth": case["depth"],
        "label": label(value),
        "loss at 100": value["best"]["final"],
        "loss at 300": round(run.final(), 4),
        "trains": run.final() < TRAINS * value["chance"],
    }


def _final(run: dict[str, Any]) -> float:
    return float("inf") if run["final"] is None else float(run["final"])


if __name__ == "__main__":
    main()
