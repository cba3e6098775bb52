"""Write the table of `judge`'s probability of training from the recorded runs of the forecast.

    python -m experiments.trainability.calibrate experiments/trainability/recorded
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from edgewise.judgement.probability import TABLE

from .fits import fit_logistic
from .scores import combined
from .starts import FAMILIES, starts
from .statistics import auroc
from .table import Row, recorded_runs, table

READOUTS = {"token": "bytes", "pooled": "digits"}  # by the task that is read so
SPAN = "half"  # what `judge` decides by: it forgives power laws and the first block's jump


def features(row: Row) -> list[float]:
    """(sum of both exponents with the task's own readout, forgetting), doubled second halves."""
    return [combined(*row.changes(span=SPAN)), row.forgetting(SPAN)]


def constants(rows: Sequence[Row]) -> dict[str, float]:
    """Weights and offset of P = 1 / (1 + exp(w s + u F - b)), of theory's scores."""
    fit = fit_logistic([features(row) for row in rows], [row.failed for row in rows])
    names = ("exponents", "forgetting", "offset")
    return {name: round(value, 4) for name, value in zip(names, (*fit.weights, fit.offset), strict=True)}


def calibration_table(rows: Sequence[Row]) -> dict[str, Any]:
    """The whole table: a curve per readout, the same without each family, and what was trained."""
    depths = [row.depth for row in rows]
    return {
        "made_by": "python -m experiments.trainability.calibrate experiments/trainability/recorded",
        "networks": len(rows),
        "trained": sum(not row.failed for row in rows),
        "optimizers": sorted({row.optimizer for row in rows}),
        "range": {"depth": [min(depths), max(depths)], "tokens": [16, 32], **_kinds()},
        "curves": {
            readout: _curves([row for row in rows if row.task == task], task) for readout, task in READOUTS.items()
        },
    }


def _curves(rows: Sequence[Row], task: str) -> dict[str, Any]:
    """All runs of a task; without one family, and how that fit ranks the family left out."""
    families = {family: [row for row in rows if row.family == family] for family in FAMILIES}
    without = {family: [row for row in rows if row.family != family] for family in FAMILIES}
    unseen = {
        family: auroc(
            fit_logistic([features(r) for r in rest], [r.failed for r in rest]).score(
                [features(r) for r in families[family]]
            ),
            [r.failed for r in families[family]],
        )
        for family, rest in without.items()
    }
    return {
        "task": task,
        "networks": len(rows),
        "all": constants(rows),
        "without": {family: constants(rest) for family, rest in without.items()},
        "auroc_on_the_family_left_out": {family: round(value, 3) for family, value in unseen.items()},
    }


def _kinds() -> dict[str, list[str]]:
    """What the families use of each choice."""
    defaults = {"norm": "pre", "norm_kind": "layer"}
    every = [defaults | knobs for family in FAMILIES for knobs in starts(family, 26)]
    return {name: sorted({knobs[name] for knobs in every}) for name in ("norm", "norm_kind", "activation")}


def main(folder: str) -> None:
    recorded = Path(folder)
    rows = table(recorded_runs(recorded / "forecast.jsonl"), recorded_runs(recorded / "train.jsonl"))
    home = resources.files("edgewise.judgement").joinpath(TABLE)
    Path(str(home)).write_text(json.dumps(calibration_table(rows), indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "experiments/trainability/recorded")
