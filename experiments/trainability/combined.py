"""The loss after 20 steps with the forecast of the start, against either alone; writes the table of `outlook`.

    python -m experiments.trainability.combined

Fitted on the held-out networks that are dead or trained: their first 20 steps are at the rate of the training but for a
rise over eight. Those of the 312 old runs lie inside a long warm-up, so they are a test from outside. Every number is
of networks whose family the fit has not seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from edgewise.judgement.outcome import RiskScore
from edgewise.judgement.outcome import chance as chance_of_start
from edgewise.rehearsal.prospect import CERTAIN, FAILS_UP_TO, LEAST_FALL, TRAINS_FROM

from .calibrate import Sample, sample
from .fits import Logistic, fit_logistic
from .held_out_table import held_out
from .parts import FOLDER, measured
from .statistics import auroc, brier
from .table import recorded_runs, table

FORMS = {"verdict": ("verdict",), "alone": ("fall",), "both": ("fall", "verdict")}
HUGGING_FACE = ("gpt2", "llama", "opt", "gpt_neox", "bert", "vit")
DIVERGED = 99.0  # shares of the chance loss


@dataclass(frozen=True)
class Start:
    """A trained network: what was known after 20 steps, and what became of it."""

    group: str
    task: str
    family: str
    failed: bool
    fall: float
    start: float

    def features(self, form: str) -> list[float]:
        p = min(max(self.start, CERTAIN), 1 - CERTAIN)
        parts = {"fall": -math.log(max(self.fall, LEAST_FALL)), "verdict": -math.log(p / (1 - p))}
        return [parts[name] for name in FORMS[form]]


def _start(
    group: str, task: str, family: str, failed: bool, early: float | None, first: float, row: Sample
) -> Start:
    curves = json.loads((FOLDER / "forecast_table.json").read_text())["curves"][row.readout]
    p = chance_of_start(RiskScore(row.exponents, 0.0, row.forgetting), curves["described"]["all"])
    return Start(group, task, family, failed, 1 - (DIVERGED if early is None else early) / first, p)


def networks() -> list[Start]:
    """All recorded networks that are dead or trained."""
    parts = measured()
    old = table(recorded_runs(FOLDER / "forecast.jsonl"), recorded_runs(FOLDER / "train.jsonl"))
    new = held_out(recorded_runs(FOLDER / "held_out.jsonl"))
    rows = [
        _start("old", r.task, r.family, r.failed, r.run["early"], p["loss"] * r.run["chance"], sample(r))
        for r, p in zip(old, parts["old"], strict=True)
    ]
    return rows + [
        _start(
            "held out",
            h.task,
            h.kind,
            h.label == "dead",
            h.value["early"],
            p["loss"] * h.value["chance"],
            h.sample(),
        )
        for h, p in zip(new, parts["held_out"], strict=True)
        if h.label in ("dead", "trained")
    ]


def fitted(rows: Sequence[Start], form: str, without: str = "") -> Logistic:
    kept = [row for row in rows if row.group == "held out" and row.family != without]
    return fit_logistic([row.features(form) for row in kept], [row.failed for row in kept])


def constants(fit: Logistic, form: str) -> dict[str, float]:
    weights = {name: round(weight, 4) for name, weight in zip(FORMS[form], fit.weights, strict=True)}
    return weights | {"offset": round(fit.offset, 4)}


def tested(rows: Sequence[Start], fits: dict[str, Logistic], form: str) -> dict[str, Any]:
    """AUROC within tasks, Brier score, misses and false alarms of networks whose family was left out."""
    probability = [float(fits[row.family].probability([row.features(form)])[0]) for row in rows]
    pairs = list(zip(probability, [row.failed for row in rows], strict=True))
    return {
        "networks": len(rows),
        "dead": sum(row.failed for row in rows),
        "auroc": round(_within(rows, probability), 3),
        "brier": round(brier(probability, [not row.failed for row in rows]), 3),
        "dead_called_trains": sum(failed and p >= TRAINS_FROM for p, failed in pairs),
        "trained_called_not": sum(not failed and p <= FAILS_UP_TO for p, failed in pairs),
    }


def _within(rows: Sequence[Start], probability: Sequence[float]) -> float:
    """The mean over tasks of the AUROC, by the number of pairs."""
    total = count = 0.0
    for task in {row.task for row in rows}:
        chosen = [(-p, row.failed) for p, row in zip(probability, rows, strict=True) if row.task == task]
        dead = sum(failed for _, failed in chosen)
        pairs = dead * (len(chosen) - dead)
        if pairs:
            total += pairs * auroc([p for p, _ in chosen], [failed for _, failed in chosen])
            count += pairs
    return total / count


def document() -> dict[str, Any]:
    rows = networks()
    families = sorted({row.family for row in rows})
    groups = {
        "held out": [row for row in rows if row.group == "held out"],
        "of Hugging Face": [row for row in rows if row.group == "held out" and row.family in HUGGING_FACE],
        "old": [row for row in rows if row.group == "old"],
    }
    curves, tests = {}, {}
    for form in FORMS:
        fits = {family: fitted(rows, form, family) for family in families}
        tests[form] = {name: tested(group, fits, form) for name, group in groups.items()}
        curves[form] = {
            "all": constants(fitted(rows, form), form),
            "without": {name: constants(fit, form) for name, fit in fits.items()},
        }
    curves.pop("verdict")
    made_by = "python -m experiments.trainability.combined"
    count = len(groups["held out"])
    return {"made_by": made_by, "networks": count, "curves": curves, "tested_without_the_family": tests}


def main() -> None:
    home = resources.files("edgewise.rehearsal").joinpath("chances.json")
    result = document()
    Path(str(home)).write_text(json.dumps(result, indent=2) + "\n")
    for form, groups in result["tested_without_the_family"].items():
        for name, numbers in groups.items():
            print(form, name, numbers)


if __name__ == "__main__":
    main()
