"""Parts of the score that it does not have: how small a start is, how sure its readout, whether its layers are copies.

`halves` fixed what is asked of them before they were looked at. Untrained networks, one pass each:

    python -m experiments.trainability.parts        writes recorded/parts.json; `parts_report` judges them
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from edgewise.nouns.architecture import Architecture
from edgewise.study import tasks
from edgewise.study.train import seeded

from . import held_out_networks, starts
from .held_out_table import HeldOut, held_out
from .table import recorded_runs, table

FOLDER = Path(__file__).parent / "recorded"
FILE = FOLDER / "parts.json"
SEQUENCES = 32
GAINS = ("value_gain", "mlp_in_gain", "mlp_out_gain")


def small(network: Architecture | None) -> float:
    """max(0, -log g), g the geometric mean of the gains of values and both MLP matrices."""
    if network is None:
        return 0.0
    gains = [float(np.mean(getattr(network, name))) for name in GAINS]
    return max(0.0, -float(np.mean([math.log(max(gain, 1e-6)) for gain in gains])))


def loud(model: nn.Module, data: Any) -> tuple[float, float]:
    """(loss at step 0 over that of chance, root mean square of the logits), on held-out examples."""
    inputs, labels = data.held_out(SEQUENCES)
    with torch.no_grad():
        output = model(inputs)
    logits = output[-1] if isinstance(output, tuple) else output
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    return float(loss) / data.chance, float(logits.std())


def of_old(case: dict[str, Any]) -> dict[str, Any]:
    data = tasks.task(case["task"])
    loss, logits = loud(seeded(starts.network, case["seed"], case["knobs"], data)(), data)
    return _row(small(starts.architecture(case["knobs"], data)), loss, logits, 0.0)


def of_held_out(each: HeldOut) -> dict[str, Any]:
    data = held_out_networks.task_of(each.case)
    model = seeded(held_out_networks.network, each.case["seed"], each.case)()
    loss, logits = loud(model, data)
    copies = math.log(each.case["depth"]) if each.kind == "encoder_copied" else 0.0
    return _row(small(each.architecture), loss, logits, copies)


def _row(small: float, loss: float, logits: float, copies: float) -> dict[str, float]:
    digits = {"small": small, "loss": loss, "logits": logits, "copies": copies}
    return {name: float(f"{value:.4g}") for name, value in digits.items()}


def measured() -> dict[str, list[dict[str, float]]]:
    """The parts of all networks, in the order of their records; measured once."""
    if FILE.exists():
        recorded: dict[str, list[dict[str, float]]] = json.loads(FILE.read_text())
        return recorded
    torch.set_num_threads(1)
    runs = recorded_runs(FOLDER / "train.jsonl")
    old = table(recorded_runs(FOLDER / "forecast.jsonl"), runs)
    known: dict[str, dict[str, float]] = {}
    for run in runs:
        key = json.dumps([run.case[name] for name in ("task", "family", "start")])
        if key not in known:
            known[key] = of_old(run.case)
    parts = {
        "old": [known[json.dumps([row.task, row.family, row.start])] for row in old],
        "held_out": [of_held_out(each) for each in held_out(recorded_runs(FOLDER / "held_out.jsonl"))],
    }
    FILE.write_text(json.dumps(parts) + "\n")
    return parts


if __name__ == "__main__":
    print({name: len(rows) for name, rows in measured().items()})
