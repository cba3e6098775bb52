"""Do the remedies that edgewise offers rescue starts of the atlas that never arrived?

    python -m experiments.atlas.rescue [--blind] [--table]

Every start that did not reach the target of its shape within 500 steps is asked about once and trained again in the
same way (the rate of its shape and a third of it, the same batches), with each remedy that is offered for it:

plan      `initialize_(model, batch)`, if its plan changes anything
repair    the lines that the audit gives for its errors and warnings, if there are any
both      first the repairs, then the plan, if both are offered

*Rescued* is a start that then reaches the target within 500 steps. Goal, written before any was tried: of the starts
for which something is offered, at least 70 % are rescued by one of its remedies; a remedy that rescues under half of
those it is offered for is not one.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import edgewise
from edgewise.audit.finding import AuditSeverity
from edgewise.errors import BadInput

from . import report, run, train
from .data import Data, data

RESULTS = Path(__file__).parent / "results"


def repaired(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> bool:  # noqa: ARG001
    """Run the lines of the audit's errors and warnings; return whether there are any."""
    found = [
        f for f in edgewise.audit_initialization(model) if f.repair and f.severity is not AuditSeverity.NOTE
    ]
    for finding in found:
        exec(finding.repair, {"model": model, "torch": torch, "nn": nn, "edgewise": edgewise})
    return bool(found)


def planned(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> bool:
    """Write the critical plan; return whether it changes anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(edgewise.initialize_(model, batch, generator=0).plan.parameters)


REMEDIES = {"plan": (planned,), "repair": (repaired,), "both": (repaired, planned)}


def rescues(case: dict[str, Any], result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every start of a shape that never arrived, what is said of it, and the slowdown with each remedy."""
    torch.set_num_threads(1)
    task, rows = data(case["task"], case["tokens"]), []
    for other in result["others"]:
        if math.isfinite(report.slowdown(other["runs"], result["target"])):
            continue
        row: dict[str, Any] = {"start": other["start"], **_said(case, task, other["start"]), "slowdown": {}}
        for name, steps in REMEDIES.items():
            runs = _trained(case, task, other["start"], steps, result["rate"], result["target"])
            if runs is not None:
                slow = report.slowdown(runs, result["target"])
                row["slowdown"][name] = slow if math.isfinite(slow) else None
        rows.append(row)
    return rows


def _said(case: dict[str, Any], task: Data, start: list[Any]) -> dict[str, Any]:
    model, (inputs, _) = train.build(case, task, start), next(task.batches(case["batch"], case["seed"]))
    try:
        verdict = edgewise.judge(edgewise.measure(model, (inputs,)))
    except BadInput as error:
        return {"outcome": None, "said": str(error)[:200]}
    return {
        "outcome": verdict.outcome.value,
        "kinds": [finding.kind.value for finding in verdict.findings],
        "remedies": [remedy.sentence for remedy in verdict.remedies],
    }


def _trained(
    case: dict[str, Any], task: Data, start: list[Any], steps: Any, rate: float, target: float
) -> list[list[float]] | None:
    """Both runs with a remedy; None if it is not offered for this network."""
    model, (inputs, _) = train.build(case, task, start), next(task.batches(case["batch"], case["seed"]))
    try:
        offered = [step(model, (inputs,)) for step in steps]
    except BadInput:
        return None
    if not all(offered):
        return None
    begun = {name: value.clone() for name, value in model.state_dict().items()}
    return train.raced(case, task, start, (rate, rate / train.LOWER), target, begun)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Say how many were offered something and rescued, by remedy and by what was wrong."""
    offered, saved = defaultdict(int), defaultdict(int)
    for row in rows:
        kind = " ".join(map(str, row["start"][:2] if row["start"][0] == "structure" else row["start"][:1]))
        for name in ("anything", *row["slowdown"]) if row["slowdown"] else ():
            values = row["slowdown"].values() if name == "anything" else [row["slowdown"][name]]
            for key in (name, f"{name}, {kind}"):
                offered[key] += 1
                saved[key] += any(value is not None for value in values)
    said = [f"{len(rows)} starts never arrived; something is offered for {offered['anything']}"]
    return said + [f"{saved[key]:3} of {offered[key]:3} rescued by {key}" for key in sorted(offered)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blind", action="store_true", help="the list that is kept apart")
    parser.add_argument("--table", action="store_true", help="only say what is recorded")
    options = parser.parse_args()
    path = RESULTS / f"rescue{'_blind' if options.blind else ''}.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    shapes = {run.name(shape): shape for shape in train.shapes(options.blind)}
    for result in [] if options.table else run.read("train", options.blind):
        if report.counted(result) and result["shape"] not in {row["shape"] for row in done}:
            done.append({"shape": result["shape"], "starts": rescues(shapes[result["shape"]], result)})
            with path.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
            print(result["shape"], len(done[-1]["starts"]), flush=True)
    print("\n".join(table([row for shape in done for row in shape["starts"]])))


if __name__ == "__main__":
    main()
