"""Write the table of `judge`'s probability of training from the recorded runs of the forecast.

    python -m edgewise.study.forecast_calibration papers/forecast/recorded
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from edgewise.stability.training_probability import TABLE
from edgewise.study.forecast_fit import fit_logistic
from edgewise.study.forecast_scores import combined
from edgewise.study.forecast_starts import FAMILIES, starts
from edgewise.study.forecast_statistics import auroc
from edgewise.study.forecast_table import Row, recorded_runs, table

READOUTS = ("token", "pooled")
SPAN = "half"  # what `judge` decides by: it forgives power laws and the first block's jump


def constants(rows: Sequence[Row], readout: str) -> dict[str, float]:
    """Weight and offset of P = 1 / (1 + exp(w s - b)), of theory's score."""
    scores = [[combined(*row.changes("theory", readout, span=SPAN))] for row in rows]
    fit = fit_logistic(scores, [row.failed for row in rows])
    return {"weight": round(fit.weights[0], 4), "offset": round(fit.offset, 4)}


def calibration_table(rows: Sequence[Row]) -> dict[str, Any]:
    """The whole table: curves over all runs and per task, by readout, and what was trained."""
    tasks = {task: [row for row in rows if row.task == task] for task in dict.fromkeys(row.task for row in rows)}
    curves = {
        readout: {
            "all": constants(rows, readout),
            "tasks": {task: constants(mine, readout) for task, mine in tasks.items()},
            "auroc": {task: _ranking(mine, readout) for task, mine in tasks.items()},
        }
        for readout in READOUTS
    }
    depths = [row.depth for row in rows]
    return {
        "made_by": "python -m edgewise.study.forecast_calibration papers/forecast/recorded",
        "networks": len(rows),
        "trained": sum(not row.failed for row in rows),
        "optimizers": sorted({row.optimizer for row in rows}),
        "range": {"depth": [min(depths), max(depths)], "tokens": [16, 32], **_kinds()},
        "curves": curves,
    }


def _ranking(rows: Sequence[Row], readout: str) -> float:
    scores = [combined(*row.changes("theory", readout, span=SPAN)) for row in rows]
    return round(auroc(scores, [row.failed for row in rows]), 3)


def _kinds() -> dict[str, list[str]]:
    """What the families use of each choice."""
    defaults = {"norm": "pre", "norm_kind": "layer"}
    every = [defaults | knobs for family in FAMILIES for knobs in starts(family, 26)]
    return {name: sorted({knobs[name] for knobs in every}) for name in ("norm", "norm_kind", "activation")}


def main(folder: str) -> None:
    recorded = Path(folder)
    rows = table(recorded_runs(recorded / "forecast.jsonl"), recorded_runs(recorded / "train.jsonl"))
    home = resources.files("edgewise.stability").joinpath(TABLE)
    Path(str(home)).write_text(json.dumps(calibration_table(rows), indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "papers/forecast/recorded")
