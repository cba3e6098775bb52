"""Run a list of mistakes under `watch` with its default settings, and print the confusion table.

python -m experiments.mistakes.run experiments/mistakes/development.py [--only NAME] [--architecture A]
    [--healthy | --broken] [--rotate] [--json OUT] [--bits]

With --json, a run that was interrupted continues where it stopped. With --bits, each run is made again without `watch`,
and its weights must be the same to the last bit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

import edgewise

from .plot import read as read_plot

CLASSES = ("named", "symptom", "wrong cause", "silent")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("list", type=Path)
    parser.add_argument("--only", action="append")
    parser.add_argument("--architecture", action="append")
    parser.add_argument("--healthy", action="store_true", help="twins and controls only")
    parser.add_argument("--broken", action="store_true", help="mistakes only")
    parser.add_argument("--rotate", action="store_true", help="each case on one architecture, in turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--bits", action="store_true", help="compare the weights with those of an unwatched run"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    module = _loaded(options.list)
    rows, failed = _known(options.json), []
    known = {(row["kind"], row["name"], row["architecture"]) for row in rows}
    for kind, name, architecture in _wanted(module, options):
        if (kind, name, architecture) in known:
            continue
        try:
            row = ran(module, kind, name, architecture, bits=options.bits)
        except Exception as error:  # noqa: BLE001  a case of the list that does not run is said, and not scored
            print(
                f"did not run   {kind:8} {name:28} {architecture:8} {type(error).__name__}: {error}",
                flush=True,
            )
            failed.append(f"{kind} {name} {architecture}")
            continue
        rows.append(row)
        said = "; ".join(f"{a['symptom']}@{a['step']}: {a['cause'][:70]}" for a in row["alarms"])
        print(
            f"{row['class']:12} {kind:8} {name:28} {architecture:8} {row['rows']:4} rows  {said[:150]}",
            flush=True,
        )
        if options.json:
            part = options.json.with_suffix(".part")
            part.write_text(json.dumps(rows, indent=1))
            part.replace(options.json)
    print(table(rows))
    if failed:
        print(f"{len(failed)} cases did not run and are not scored: {', '.join(failed)}")


def _known(path: Path | None) -> list[dict[str, Any]]:
    """The rows of an interrupted run, so that it continues where it stopped."""
    return json.loads(path.read_text()) if path is not None and path.exists() else []


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _wanted(module: Any, options: argparse.Namespace) -> list[tuple[str, str, str]]:
    names = [name for name in dir(module) if name.startswith(("case_", "control_"))]
    found = []
    for turn, name in enumerate(names):
        kind, _, short = name.partition("_")
        if options.only and short not in options.only:
            continue
        known = list(getattr(module, "ONLY", {}).get(short, module.ARCHITECTURES))
        for architecture in [known[turn % len(known)]] if options.rotate else known:
            if options.architecture and architecture not in options.architecture:
                continue
            if kind == "control":
                found += [] if options.broken else [("control", short, architecture)]
            else:
                found += [] if options.healthy else [("mistake", short, architecture)]
                found += [] if options.broken else [("twin", short, architecture)]
    return found


def _made(module: Any, kind: str, name: str, architecture: str) -> dict[str, Any]:
    torch.manual_seed(0)
    make = getattr(module, f"{'control' if kind == 'control' else 'case'}_{name}")
    case: dict[str, Any] = make(architecture) if kind == "control" else make(architecture, kind == "mistake")
    return case


def _bits(model: nn.Module) -> str:
    """A checksum of the weights; all numbers that are not one are alike."""
    sums = hashlib.sha256()
    for value in model.state_dict().values():
        sums.update(value.detach().double().nan_to_num().numpy().tobytes())
    return sums.hexdigest()[:16]


def ran(module: Any, kind: str, name: str, architecture: str, *, bits: bool = False) -> dict[str, Any]:
    """One run: its alarms, its class, and what the plot says."""
    unwatched = ""
    if bits:
        case = _made(module, kind, name, architecture)
        for k in range(case.get("steps", 250)):
            case["step"](k)
        unwatched = _bits(case["model"])
    case = _made(module, kind, name, architecture)
    losses, gradients = [], []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        handle = edgewise.watch(case["model"], to=folder, quiet=True, **case.get("watch", {}))
        for k in range(case.get("steps", 250)):
            losses.append(float(case["step"](k)))
            gradients.append(_norm(case["model"]))
        handle.close()
    alarms = [alarm.json() for alarm in handle.alarms]
    row = {
        "kind": kind,
        "name": name,
        "architecture": architecture,
        "alarms": alarms,
        "rows": handle.budget.samples,
        "seconds": round(handle.budget.spent, 2),
        "trials": round(handle.clock.other, 2),
        "wall": round(time.perf_counter() - began, 1),
        "error": handle.error,
        "unseen": handle.unseen,
        "end": losses[-1] if math.isfinite(losses[-1]) else None,
        "plot": read_plot(losses, gradients),
    }
    if bits:
        row["bits"] = _bits(case["model"]) == unwatched
        print("same bits" if row["bits"] else "OTHER BITS", end="  ")
    if kind != "mistake":
        return row | {"class": "false" if alarms else "right"}
    return row | {"class": classed(alarms, case["truth"])}


def _norm(model: nn.Module) -> float:
    squares = [
        float(p.grad.detach().float().square().sum()) for p in model.parameters() if p.grad is not None
    ]
    return math.sqrt(sum(squares)) if squares and math.isfinite(sum(squares)) else 0.0


def classed(alarms: list[dict[str, Any]], truth: dict[str, Any]) -> str:
    """The class of a run with a mistake, by the rule of the README."""
    if not alarms:
        return "silent"
    causes = [a for a in alarms if a["cause"]]
    if any(_says(_words(a), truth["cause"]) for a in causes):
        return "named"
    if any(not _says(_words(a), truth["symptom"]) for a in causes):
        return "wrong cause"
    said = [" ".join([a["symptom"], a["what"], *a["could_be"]]) for a in alarms]
    return (
        "symptom" if any(_says(text, truth["symptom"] + truth["cause"]) for text in said) else "wrong cause"
    )


def _words(alarm: dict[str, Any]) -> str:
    return " ".join(str(alarm[name]) for name in ("symptom", "cause", "place", "module", "advice"))


def _says(text: str, alternatives: list[list[str]]) -> bool:
    return any(all(word.lower() in text.lower() for word in words) for words in alternatives)


def table(rows: list[dict[str, Any]]) -> str:
    """The confusion table."""
    lines = []
    for architecture in [*dict.fromkeys(row["architecture"] for row in rows), "all"]:
        own = [r for r in rows if architecture in (r["architecture"], "all")]
        broken = Counter(r["class"] for r in own if r["kind"] == "mistake")
        healthy = Counter(r["class"] for r in own if r["kind"] != "mistake")
        counts = ", ".join(f"{name} {broken[name]}" for name in CLASSES)
        false = f"{sum(healthy.values())} healthy: false {healthy['false']}"
        lines.append(f"{architecture:9} {sum(broken.values())} mistakes: {counts}; {false}")
    seen = [r for r in rows if r["kind"] == "mistake"]
    plot = (
        sum(bool(r["plot"]) for r in seen),
        sum(bool(r["plot"]) for r in rows) - sum(bool(r["plot"]) for r in seen),
    )
    lines.append(f"the plot speaks in {plot[0]} of {len(seen)} mistakes and in {plot[1]} healthy runs")
    few = sum(r["rows"] < 40 for r in rows)
    stopped, most = sum(bool(r["error"]) for r in rows), max((r["seconds"] for r in rows), default=0)
    lines.append(
        f"{few} runs have under 40 rows; the monitor stopped in {stopped}; watching took {most} s at most"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
