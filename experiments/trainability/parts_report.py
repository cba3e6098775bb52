"""Whether new parts of the score help on the half of the held-out networks that nothing was fitted on.

python -m experiments.trainability.parts_report     writes recorded/parts_report.json; rules: `halves`
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.judgement.outcome import OUTCOME_BANDS

from .calibrate import Sample, sample
from .fits import Logistic, fit_logistic
from .halves import ALARMS, GAIN, PARTS, first_half
from .held_out_table import held_out
from .parts import FOLDER, measured
from .statistics import auroc, brier
from .table import recorded_runs, table

READOUTS = ("token", "pooled")
CERTAIN = 1e-3
Fits = dict[str, Logistic]


@dataclass(frozen=True)
class Network:
    """A sample of the calibration with the new parts, and where it belongs: old, first or second half."""

    group: str
    family: str
    sample: Sample
    parts: dict[str, float]

    def features(self, names: Sequence[str]) -> list[float]:
        loud = max(0.0, self.parts["loss"] - 1) if math.isfinite(self.parts["loss"]) else 10.0
        values = {"small": self.parts["small"], "loud": loud, "copies": self.parts["copies"]}
        return [self.sample.exponents, self.sample.forgetting, *(values[name] for name in names)]


def networks() -> list[Network]:
    parts = measured()
    old = table(recorded_runs(FOLDER / "forecast.jsonl"), recorded_runs(FOLDER / "train.jsonl"))
    new = held_out(recorded_runs(FOLDER / "held_out.jsonl"))
    rows = [Network("old", r.family, sample(r), p) for r, p in zip(old, parts["old"], strict=True)]
    return rows + [
        Network("first" if first_half(h.case) else "second", h.kind, h.sample(), p)
        for h, p in zip(new, parts["held_out"], strict=True)
        if h.label in ("dead", "trained")
    ]


def fitted(rows: Sequence[Network], names: Sequence[str]) -> Fits:
    """One curve per readout."""
    fits = {}
    for readout in READOUTS:
        chosen = [row for row in rows if row.sample.readout == readout]
        fits[readout] = fit_logistic(
            [row.features(names) for row in chosen], [row.sample.failed for row in chosen]
        )
    return fits


def chance(fits: Fits, row: Network, names: Sequence[str]) -> float:
    p = float(fits[row.sample.readout].probability([row.features(names)])[0])
    return min(1 - CERTAIN, max(CERTAIN, p))


def without_family(rows: Sequence[Network], of: Sequence[Network], names: Sequence[str]) -> list[float]:
    """The probability of each network by a fit without its family."""
    fits = {
        name: fitted([row for row in rows if row.family != name], names)
        for name in {row.family for row in of}
    }
    return [chance(fits[row.family], row, names) for row in of]


def likelihood(rows: Sequence[Network], names: Sequence[str]) -> float:
    pairs = zip(rows, without_family(rows, rows, names), strict=True)
    return sum(math.log(1 - p if row.sample.failed else p) for row, p in pairs)


def tested(rows: Sequence[Network], probability: Sequence[float]) -> dict[str, Any]:
    failed = [row.sample.failed for row in rows]
    total = count = 0.0
    for readout in READOUTS:
        chosen = [
            (-p, row.sample.failed)
            for p, row in zip(probability, rows, strict=True)
            if row.sample.readout == readout
        ]
        pairs = sum(bad for _, bad in chosen) * sum(not bad for _, bad in chosen)
        total += pairs * auroc([p for p, _ in chosen], [bad for _, bad in chosen]) if pairs else 0.0
        count += pairs
    both = list(zip(probability, failed, strict=True))
    return {
        "auroc": round(total / count, 3),
        "brier": round(brier(probability, [not bad for bad in failed]), 3),
        "dead": sum(failed),
        "dead_called_trains": sum(bad and p >= OUTCOME_BANDS.trains_from for p, bad in both),
        "trained": len(both) - sum(failed),
        "trained_called_not": sum(not bad and p <= OUTCOME_BANDS.fails_up_to for p, bad in both),
    }


def document() -> dict[str, Any]:
    rows = networks()
    fit_on = [row for row in rows if row.group != "second"]
    first, second = ([row for row in rows if row.group == name] for name in ("first", "second"))
    subsets = [names for k in range(len(PARTS) + 1) for names in itertools.combinations(PARTS, k)]
    likelihoods = {names: likelihood(fit_on, names) for names in subsets}
    candidate = max(likelihoods, key=lambda names: likelihoods[names])
    old = fitted([row for row in rows if row.group == "old"], ())
    new = {
        name: (fitted(fit_on, names), names) for name, names in (("refitted", ()), ("candidate", candidate))
    }
    fits = {"shipped": (old, ())} | new
    report = {
        name: tested(second, [chance(fit, row, names) for row in second])
        for name, (fit, names) in fits.items()
    }
    return {
        "made_by": "python -m experiments.trainability.parts_report",
        "candidate": list(candidate),
        "log_likelihoods": {
            "+".join(names) or "none": round(value, 1) for names, value in likelihoods.items()
        },
        "second_half": report,
        "kept": _kept(report),
        "first_half_without_its_family": {
            "+".join(names) or "none": tested(first, without_family(fit_on, first, names))
            for names in ((), ("small",), candidate)
        },
    }


def _kept(report: dict[str, dict[str, Any]]) -> bool:
    """The three rules of `halves`."""
    new, old = report["candidate"], report["shipped"]
    alarms = new["trained_called_not"]
    return bool(
        new["auroc"] >= old["auroc"] + GAIN
        and new["dead_called_trains"] < old["dead_called_trains"]
        and alarms <= max(1, ALARMS * new["trained"])
    )


if __name__ == "__main__":
    result = document()
    (FOLDER / "parts_report.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
