"""Count contradictions between the screens of one network: predict, measure, fix and the card of a report.

    python -m tests.judgement.one_voice 500        the first so many networks of the atlas, cheapest shapes first

Each screen is asked as the shell asks it. Two screens contradict each other if one says that the network trains and
another that it does not, if `fix` begins from another outcome than `measure`, or if the diagnosis of the plan calls
angle and gradient innocent of what `measure` lays to them. Writes `one_voice.json`, and goes on where it ended.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

import edgewise
from edgewise.cli.fix_command import Cure, cure_of
from edgewise.cli.measure_command import READOUTS, SEEDS, audit_of, beside_theory
from edgewise.cli.options import Batches
from edgewise.errors import BadInput
from edgewise.nouns.verdict import FindingSeverity, Kind, Outcome, Verdict
from edgewise.present.cards import verdict_card
from edgewise.probe.subjects import subject
from experiments.atlas import train
from experiments.atlas.data import data

FILE = Path(__file__).with_suffix(".json")
FIRM = {Outcome.TRAINS, Outcome.FAILS}
EXPONENTS = {Kind.RANK_COLLAPSE, Kind.TOKENS_SEPARATE, Kind.VANISHING_GRADIENT, Kind.EXPLODING_GRADIENT}


def networks() -> Iterator[tuple[str, nn.Module, Any]]:
    """Name, model and first batch of every start of the atlas, cheapest shapes first."""
    for shape in train.shapes():
        task = data(shape["task"], shape["tokens"])
        for start in shape["starts"]:
            batch = next(task.batches(shape["batch"], shape["seed"]))
            yield (
                f"{shape['family']} {shape['seed']} {start[0]} {start[1]}",
                train.build(shape, task, start),
                batch,
            )


def asked(model: nn.Module, pair: Any) -> dict[str, Any]:
    """Every screen of one network: verdicts of predict and measure, what fix begins with, what a report answers."""
    inputs = pair[0]
    audit = audit_of(model, family_recipe=False)
    trace = edgewise.measure(model, inputs, seeds=SEEDS, readouts=READOUTS[:1], pair=False)
    measured = beside_theory("", trace, audit).verdict
    plan = edgewise.critical_plan(model, inputs)
    answers = {
        "predict": edgewise.judge(edgewise.predict(model, inputs)),
        "measure": measured,
        "diagnosis": plan.diagnosis,
        "report": verdict_card(measured, trace, fixes=False).answer,
    }
    if plan.changes:
        answers["fix"] = _cure(model, pair).now
    return answers


def _cure(model: nn.Module, pair: Any) -> Cure:
    return cure_of(
        subject(model), Batches("the first batch", [pair]), None, "critical", (), False, lambda _: None
    )


def contradictions(said: dict[str, Any]) -> list[str]:
    """What in the answers about one network cannot all be true."""
    predict, measure = said["predict"], said["measure"]
    assert isinstance(predict, Verdict) and isinstance(measure, Verdict)
    fix, diagnosis = said.get("fix"), said["diagnosis"]
    blamed = [
        finding
        for finding in measure.findings
        if finding.kind in EXPONENTS and finding.severity is FindingSeverity.FAILS
    ]
    checks = {
        "predict and measure": {predict.outcome, measure.outcome} == FIRM,
        "measure and fix": fix is not None and fix.outcome is not measure.outcome,
        "measure and report": said["report"] != measure.outcome.value,
        "the signal is lost and it trains": "signal leaves the range" in diagnosis
        and measure.outcome is Outcome.TRAINS,
        "blamed and innocent": "are not the reason" in diagnosis and bool(blamed),
    }
    return [name for name, wrong in checks.items() if wrong]


def main(count: int) -> None:
    counts = json.loads(FILE.read_text()) if FILE.is_file() else {}
    seen = Counter(counts.pop("counts", {}))
    wrong: dict[str, list[str]] = counts.pop("wrong", {})
    for name, model, batch in islice(networks(), seen["networks"], count):
        seen["networks"] += 1
        try:
            found = contradictions(asked(model, batch))
        except BadInput as error:
            seen["not answered"] += 1
            print(f"{name}: {error}", flush=True)
            found = []
        for kind in found:
            wrong.setdefault(kind, []).append(name)
            print(f"{name}: {kind}", flush=True)
        document = {"made_by": f"python -m tests.judgement.one_voice {count}", "counts": seen, "wrong": wrong}
        FILE.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
