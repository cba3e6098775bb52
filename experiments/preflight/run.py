"""Run `edgewise.check` on a list of mistakes with twins and controls, and score it; the README says what a list is."""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import edgewise
from edgewise.preflight.catalog import CheckFinding
from edgewise.preflight.check_report import CheckReport

SECONDS, MEMORY = 60, 6  # a check in a process of its own may take, and GiB
CHECKED = ("model", "batches", "loss", "optimizer", "step", "also", "steps", "only")


def load(path: Path) -> ModuleType:
    """Import a list from its file."""
    spec = importlib.util.spec_from_file_location(f"list_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def checked(setup: dict[str, Any]) -> CheckReport:
    """Check one training as the list gives it."""
    given = {key: setup[key] for key in CHECKED if key in setup}
    return edgewise.check(given.pop("model"), **given)


def matches(item: CheckFinding, alternatives: list[list[str]]) -> bool:
    """Whether all word beginnings of one alternative occur in the finding."""
    text = f"{item.kind} {item.sentence} {item.evidence} {item.advice}".lower()
    return any(all(word.lower() in text for word in words) for words in alternatives)


def at_place(item: CheckFinding, places: list[str]) -> bool:
    """Whether a place of the finding begins with one of these, or is where they belong to; an empty list takes any."""
    return not places or any(own.startswith(place) for own in item.places for place in places)


def score(report: CheckReport, truth: dict[str, Any]) -> dict[str, Any]:
    """Mark of a mistake: named, in part or silent; and the findings that are a wrong cause."""
    problems = report.problems
    words, places = truth.get("words", []), truth.get("places", [])
    if "kinds" in truth:
        words = [*words, *([kind] for kind in truth["kinds"])]
    allowed = [*words, *truth.get("consequences", [])]
    wrong = [f.kind for f in problems if not matches(f, allowed)]
    if not problems:
        mark = "silent"
    elif matches(problems[0], words) and at_place(problems[0], places):
        mark = "named"
    elif any(matches(f, words) or (places and at_place(f, places)) for f in problems):
        mark = "in part"
    else:
        mark = "wrong"
    return {"mark": mark, "wrong": wrong}


def told(report: CheckReport) -> list[dict[str, Any]]:
    """Errors and warnings, short."""
    return [
        {"kind": f.kind, "severity": f.severity, "places": list(f.places[:4]), "evidence": f.evidence[:160]}
        for f in report.problems
    ]


def run(name: str, make: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """One check; a check that raises is recorded, never hidden."""
    torch.manual_seed(0)
    setup = make()
    if setup is None:
        return {"name": name, "mark": "not planted"}
    began = time.perf_counter()
    try:
        report = checked(setup)
    except Exception as error:  # noqa: BLE001  recorded as a crash
        return {"name": name, "crash": f"{type(error).__name__}: {error}"}
    row: dict[str, Any] = {
        "name": name,
        "seconds": round(time.perf_counter() - began, 2),
        "told": told(report),
    }
    row["undecided"] = [fact for fact, _ in report.undecided]
    row["failed"] = [f"{fact}: {why}" for fact, why in report.undecided if "fact itself failed" in why]
    row["notes"] = [f.kind for f in report.findings if f.severity == "note"]
    if "truth" in setup:
        row |= score(report, setup["truth"]) | {"cost": setup["truth"].get("cost"), "truth": setup["truth"]}
    return row


Check = Callable[[str, Callable[[], dict[str, Any] | None]], dict[str, Any]]
Making = tuple[str, str, Callable[[], dict[str, Any] | None]]  # name, role, training


def trainings(module: ModuleType) -> Iterator[Making]:
    """Every case broken and healthy, every control, and whatever `more()` of the list yields."""
    for name, value in list(vars(module).items()):
        if callable(value) and name.startswith("case_"):
            yield f"{name} broken", "broken", lambda f=value: f(True)
            yield f"{name} twin", "twin", lambda f=value: f(False)
        elif callable(value) and name.startswith("control_"):
            yield name, "control", value
    yield from getattr(module, "more", lambda: ())()


def apart(name: str, make: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """One check in a process of its own, whose time and memory are limited: it cannot take the others with it."""
    context = multiprocessing.get_context("fork")  # nothing has been computed yet: no threads
    here, there = context.Pipe(duplex=False)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY << 30, MEMORY << 30))
        torch.set_num_threads(1)
        there.send(run(name, make))

    process = context.Process(target=work, daemon=True)
    process.start()
    there.close()
    try:
        row: dict[str, Any] = here.recv() if here.poll(SECONDS) else {"crash": f"not ended after {SECONDS} s"}
    except EOFError:
        row = {"crash": f"the process ended without an answer; it may take {MEMORY} GiB"}
    process.kill()
    process.join()
    return {"name": name} | row


def rows(
    module: ModuleType, only: str, part: int, parts: int, kept: Path | None, check: Check = run
) -> Iterator[dict[str, Any]]:
    """Check every n-th training; those in the file of kept rows are not checked again."""
    known = {}
    if kept is not None and kept.exists():
        known = {row["name"]: row for row in map(json.loads, kept.read_text().splitlines())}
    chosen = [t for t in trainings(module) if only in t[0]][part::parts]
    for name, role, make in chosen:
        row = known.get(name)
        if row is None:
            row = check(name, make if role == "broken" else lambda m=make: _healthy(m())) | {"role": role}
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        if row.get("mark") != "not planted":
            yield row


def _healthy(setup: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if setup is None else {key: value for key, value in setup.items() if key != "truth"}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a list."""
    broken = [r for r in results if r["role"] == "broken"]
    healthy = [r for r in results if r["role"] != "broken"]
    errors = [r["name"] for r in healthy if any(f["severity"] == "error" for f in r.get("told", []))]
    warned = [r["name"] for r in healthy if r.get("told") and r["name"] not in errors]
    marks = Counter(r.get("mark", "crash") for r in broken)
    return {
        "broken": len(broken),
        **{mark: marks.get(mark, 0) for mark in ("named", "in part", "silent", "wrong", "crash")},
        "wrong causes": sum(bool(r.get("wrong")) for r in broken),
        "healthy": len(healthy),
        "false errors": errors,
        "false warnings": warned,
        "facts undecided": sum(len(r.get("undecided", ())) for r in healthy),
        "facts that failed": sorted({f for r in results for f in r.get("failed", ())}),
        "crashes": [r["name"] for r in results if "crash" in r],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list", type=Path)
    parser.add_argument("--json", type=Path, help="write every result here")
    parser.add_argument("--only", default="", help="only names that contain this")
    parser.add_argument("--keep", type=Path, help="rows, one by one: a second run continues")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th of them, from the k-th on")
    parser.add_argument(
        "--apart", action="store_true", help="every check in a process of its own, with limits"
    )
    arguments = parser.parse_args()
    results = []
    part, parts = map(int, arguments.part.split("/"))
    check = apart if arguments.apart else run
    for row in rows(load(arguments.list), arguments.only, part, parts, arguments.keep, check):
        results.append(row)
        said = "; ".join(
            f"{f['severity']} {f['kind']} at {', '.join(f['places'][:2])}" for f in row.get("told", [])
        )
        print(f"{row['name']:44} {row.get('mark', ''):8} {row.get('crash', said)}", flush=True)
    numbers = summary(results)
    print(json.dumps(numbers, indent=1))
    if arguments.json is not None:
        document = {
            "summary": numbers,
            "version": edgewise.__version__,
            "torch": torch.__version__,
            "rows": results,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
