"""Count contradictions on one screen: errors of check, errors of the audit, and the verdict of the same network.

    python -m experiments.preflight.contradictions --keep ROWS --part 0/4

Every fourth of the known mistakes (twelve architectures, and four others) and of the healthy trainings.
A network contradicts itself if the audit has an error that check has not or the other way round, if check names an
error of the start's numbers and the verdict says that it trains, or if the verdict says that it does not train and
check has nothing to say.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import edgewise
from edgewise.errors import BadInput
from experiments.preflight import development_two, healthy, known_elsewhere
from experiments.preflight.run import Making, checked, trainings

NUMBERS = {"not finite", "never written", "loss not finite", "first loss"}  # errors about the start itself


def contradictions(made: dict[str, Any]) -> tuple[list[str], str]:
    """What contradicts itself in this training, and the outcome of the verdict; its weights are as given."""
    report = checked(made)
    errors = [f for f in report.findings if f.severity == "error"]
    places, found = {place for finding in errors for place in finding.places}, []
    try:
        audit = [f for f in edgewise.audit_initialization(made["model"]) if f.severity.value == "error"]
    except BadInput:
        audit = []  # a family that it does not know
    found += [f"the audit's error is none of check: {f}" for f in audit if not places & set(f.parameters)]
    if any(f.kind == "initialization" for f in errors) and not audit:
        found.append("check names an error of the audit that it does not have")
    batch = made["batches"][0]
    try:
        inputs = batch[:, :-1] if torch.is_tensor(batch) and not batch.is_floating_point() else batch
        inputs = inputs[0] if isinstance(inputs, (tuple, list)) else inputs
        outcome = edgewise.judge(edgewise.measure(made["model"], inputs)).outcome.value
    except BadInput:
        return found, "not measured"
    if {f.kind for f in errors} & NUMBERS and outcome == "trains":
        found.append(f"an error of the start's numbers beside a verdict that trains: {report!r}")
    if outcome == "will not train" and report.ok:
        found.append("the verdict says that it does not train, and check has nothing to say")
    return found, outcome


def networks() -> Iterator[Making]:
    yield from development_two.more()
    yield from known_elsewhere.more()
    yield from trainings(healthy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, required=True, help="rows, one by one: a second run continues")
    parser.add_argument("--part", default="0/4", help="k/n: every n-th of them, from the k-th on")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    kept = arguments.keep.read_text().splitlines() if arguments.keep.exists() else []
    rows = {row["name"]: row for row in map(json.loads, kept)}
    for name, role, make in list(networks())[part::parts]:
        if name in rows:
            continue
        torch.manual_seed(0)
        made = make()
        row: dict[str, Any] = {"name": name, "role": role, "outcome": "not planted", "found": []}
        if made is not None:
            made.pop("truth", None)
            row["found"], row["outcome"] = contradictions(made)
        rows[name] = row
        with arguments.keep.open("a") as file:
            file.write(json.dumps(row) + "\n")
    asked = [row for row in rows.values() if row["outcome"] != "not planted"]
    print(dict(Counter(f"{row['role']}, {row['outcome']}" for row in asked)))
    print(f"{sum(bool(row['found']) for row in asked)} of {len(asked)} networks contradict themselves")
    for row in asked:
        for what in row["found"]:
            print(f"{row['name']}: {what}")


if __name__ == "__main__":
    main()
