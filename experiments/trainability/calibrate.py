"""Write the table of `judge`'s probability of training from the recorded runs.

python -m experiments.trainability.calibrate experiments/trainability/recorded [everything]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.judgement.outcome import TABLE

from .fits import Logistic, fit_logistic
from .scores import combined
from .starts import FAMILIES, starts
from .statistics import auroc
from .table import Row, recorded_runs, table

if TYPE_CHECKING:
    from .held_out_table import HeldOut

READOUTS = {"token": "bytes", "pooled": "digits"}  # by the task that is read so
SPAN = "half"  # what `judge` decides by: it forgives power laws and the first block's jump
FORMS = ("described", "bare")  # with what the stream forgets, and without


@dataclass(frozen=True)
class Sample:
    """One trained network as the calibration sees it."""

    readout: str
    family: str
    exponents: float  # |angle| + |relative gradient|, doubled second halves
    forgetting: float
    failed: bool

    def features(self, form: str) -> list[float]:
        return [self.exponents, self.forgetting] if form == "described" else [self.exponents]


def sample(row: Row) -> Sample:
    """A run of the forecast, with the readout of its task."""
    readout = next(name for name, task in READOUTS.items() if task == row.task)
    return Sample(readout, row.family, combined(*row.changes(span=SPAN)), row.forgetting(SPAN), row.failed)


def fitted(samples: Sequence[Sample], form: str) -> Logistic:
    """P = 1 / (1 + exp(w s + u F - b)) on some networks."""
    return fit_logistic([each.features(form) for each in samples], [each.failed for each in samples])


def constants(fit: Logistic) -> dict[str, float]:
    weights = (*fit.weights, 0.0)[:2]
    named = {"exponents": weights[0], "forgetting": weights[1], "offset": fit.offset}
    return {name: round(value, 4) for name, value in named.items()}


def curves(samples: Sequence[Sample]) -> dict[str, Any]:
    """Both forms of one readout, with all families and without each; how well those rank the family left out."""
    families = dict.fromkeys(each.family for each in samples)
    whole: dict[str, Any] = {"networks": len(samples), "trained": sum(not each.failed for each in samples)}
    for form in FORMS:
        without = {name: fitted([s for s in samples if s.family != name], form) for name in families}
        whole[form] = {
            "all": constants(fitted(samples, form)),
            "without": {name: constants(fit) for name, fit in without.items()},
            "auroc_on_the_family_left_out": {
                name: _ranked(fit, [s for s in samples if s.family == name], form)
                for name, fit in without.items()
            },
        }
    return whole


def _ranked(fit: Logistic, samples: Sequence[Sample], form: str) -> float | None:
    """None where a family has one outcome only."""
    value = auroc(fit.score([s.features(form) for s in samples]), [s.failed for s in samples])
    return None if value != value else round(value, 3)


def calibration_table(rows: Sequence[Row], new: Sequence[HeldOut] = ()) -> dict[str, Any]:
    """The whole table: two curves per readout, and what was trained.

    new: held-out networks, once the forecast has been tested on them; only those that are dead or trained count.
    """
    clear = [each for each in new if each.label in ("dead", "trained")]
    samples = [sample(row) for row in rows] + [each.sample() for each in clear]
    return {
        "made_by": "python -m experiments.trainability.calibrate experiments/trainability/recorded",
        "networks": len(samples),
        "trained": sum(not each.failed for each in samples),
        "optimizers": sorted({row.optimizer for row in rows}),
        "range": _range(rows, clear),
        "curves": {name: curves([each for each in samples if each.readout == name]) for name in READOUTS},
    }


def _range(rows: Sequence[Row], new: Sequence[HeldOut]) -> dict[str, Any]:
    """Between which sizes, and with which choices, networks were trained."""
    described = [network for each in new if (network := each.architecture) is not None]
    depths = [row.depth for row in rows] + [each.depth for each in described]
    tokens = [16, 32] + [each.tokens for each in described]
    defaults = {"norm": "pre", "norm_kind": "layer"}
    starting = [defaults | knobs for family in FAMILIES for knobs in starts(family, 26)]
    choices = {
        name: sorted({knobs[name] for knobs in starting} | {str(getattr(each, name)) for each in described})
        for name in ("norm", "norm_kind", "activation")
    }
    return {"depth": [min(depths), max(depths)], "tokens": [min(tokens), max(tokens)], **choices}


def main(folder: str, everything: bool = False) -> None:
    """everything: the held-out networks too, which ends their being held out."""
    from .held_out_table import held_out

    recorded = Path(folder)
    rows = table(recorded_runs(recorded / "forecast.jsonl"), recorded_runs(recorded / "train.jsonl"))
    fresh = recorded / "held_out.jsonl"
    new = held_out(recorded_runs(fresh)) if everything else []
    home = resources.files("edgewise.judgement").joinpath(TABLE)
    Path(str(home)).write_text(json.dumps(calibration_table(rows, new), indent=2) + "\n")


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "experiments/trainability/recorded",
        "everything" in sys.argv[2:],
    )
