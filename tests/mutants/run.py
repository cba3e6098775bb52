"""Plant the mistakes of a list one at a time and run the tests that reach them, the shortest first, until one fails.

    python -m tests.mutants.run NAME [ROOM ...]            every mistake that has no result yet
    python -m tests.mutants.run NAME --again [ROOM ...]    those that survived, with the tests of answers.json

The results are in tests/mutants/NAME.results.jsonl; a run goes on where it stopped. cosmic-ray's own runner has one
test command for all mutants, and mutmut rewrites every function of the package and takes no seeded sample; so the
operators are cosmic-ray's and this runner is ours. A process that has imported torch and pytest is forked for every
mistake, in a copy of the repository (`.mutants/tree`).
"""

from __future__ import annotations

import ast
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.reach import HOME

FOLDER = HOME / ".mutants"
TREE = FOLDER / ("again" if "--again" in sys.argv else "tree")
HERE = Path(__file__).parent
SECONDS_OF_ROOM, SECONDS_OF_OTHERS, MOST = 12.0, 6.0, 200  # of tests that may be run for one mistake
PATIENCE = 6  # times the processor time on the clock, which a busy machine stretches
Mutant = dict[str, Any]


@cache
def reach() -> tuple[dict[str, float], dict[str, dict[int, list[str]]]]:
    """Seconds of every test, and the tests that reach each line of each file."""
    seconds: dict[str, float] = {}
    lines: dict[str, dict[int, list[str]]] = {}
    for file in sorted((TREE / ".mutants" / "reach").glob("*.json")):
        document = json.loads(file.read_text())
        names = list(document["tests"])
        seconds |= document["tests"]
        for path, reached in document["lines"].items():
            for line, numbers in reached.items():
                lines.setdefault(path, {}).setdefault(int(line), []).extend(
                    names[number] for number in numbers
                )
    return seconds, lines


def tests_for(mutant: Mutant, line: int) -> list[str]:
    """The room's tests that reach the line, shortest first, then others; those of the file where none is known to."""
    seconds, lines = reach()
    reached = lines.get(mutant["file"], {})
    near = [node for place in where_it_acts(mutant["file"], line) for node in reached.get(place, [])] or [
        node for place in range(line - 3, line + 4) for node in reached.get(place, [])
    ]
    nodes = in_turn(set(near) or {node for named in reached.values() for node in named})
    above = mutant["room"] in ("floor 0", "nouns", "softmax_jacobian")
    home = "tests/test_" if above else f"tests/{mutant['room']}/"
    own = _within([node for node in nodes if node.startswith(home)], SECONDS_OF_ROOM)
    siblings = [node for node in seconds if node.split("::")[0] in {one.split("::")[0] for one in own[:20]}]
    others = [node for node in nodes if node not in own] + [
        node for node in in_turn(siblings) if node not in nodes
    ]
    if not nodes:
        others = in_turn(node for node in seconds if node.startswith(home))
    return own + _within(others, SECONDS_OF_OTHERS)


def where_it_acts(file: str, line: int) -> Iterable[int]:
    """The line itself in a body; the body for a line of a signature, the file for one above the functions: those run
    once, at the import, and whichever test imports first would seem to be the only one that reaches them."""
    functions = [
        node
        for node in ast.walk(ast.parse((TREE / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not functions:
        return reach()[1].get(file, {})
    inner = max(functions, key=lambda node: node.lineno)
    return (
        [line]
        if line >= inner.body[0].lineno
        else range(inner.body[0].lineno, (inner.end_lineno or line) + 1)
    )


def in_turn(nodes: Iterable[str]) -> list[str]:
    """The shortest first, and one case of every parametrized test before the second of any."""
    seconds, turns = reach()[0], Counter[str]()
    places = {}
    for node in sorted(nodes, key=seconds.__getitem__):
        name = node.partition("[")[0]
        places[node] = (turns[name], seconds[node])
        turns[name] += 1
    return sorted(places, key=places.__getitem__)


def _within(nodes: list[str], budget: float) -> list[str]:
    """As many as fit, but one at least."""
    taken, spent = [], 0.0
    for node in nodes[:MOST]:
        spent += reach()[0][node]
        if taken and spent > budget:
            break
        taken.append(node)
    return taken


def plant(mutant: Mutant, code: str) -> tuple[str, int] | None:
    """The code with the mistake, and its line, the nearest of equal ones; None if the line is no longer there.

    `rewritten`: the line as it reads now, and the same mistake in it.
    """
    lines, now = code.split("\n"), mutant.get("rewritten")
    for before, after in ((mutant["before"], mutant["after"]), *([now] if now else [])):
        places = [place for place, text in enumerate(lines) if text == before]
        if places:
            place = min(places, key=lambda place: abs(place + 1 - mutant.get("line", 0)))
            lines[place] = after
            return "\n".join(lines), place + 1
    return None


class Catcher:
    """Keeps the first test that fails."""

    def __init__(self, target: Path):
        self.target = target

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            words = str(
                (getattr(report.longrepr, "reprcrash", None) and report.longrepr.reprcrash.message) or ""
            ).split("\n")[0][:160]
            self.target.write_text(json.dumps({"by": report.nodeid, "words": words}))


def in_child(nodes: list[str], target: Path, limit: int) -> None:
    """Run these tests here, and leave with 0 if all pass."""
    os.setsid()
    log = os.open(TREE / ".mutants" / "last.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "edgewise")]:
        del sys.modules[name]
    os.chdir(TREE)
    sys.path[:] = [
        str(TREE / "src"),
        str(TREE),
        *(path for path in sys.path if Path(path or ".").resolve() not in (HOME, HOME / "src")),
    ]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # schemathesis alone takes a second
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TREE / "src"), str(TREE)])
    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *nodes], plugins=[Catcher(target)])))


def run_tests(nodes: list[str]) -> dict[str, Any]:
    """How the tests end: caught (with the test), too long, or survived."""
    target = TREE / ".mutants" / "failed.json"
    target.unlink(missing_ok=True)
    limit = int(30 + 3 * sum(reach()[0].get(node, 20.0) for node in nodes))
    child = os.fork()
    if child == 0:
        try:
            in_child(nodes, target, limit)
        finally:
            os._exit(70)
    began, status, usage = time.monotonic(), None, None
    while status is None:
        pid, code, usage = os.wait4(child, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() - began > PATIENCE * limit:
            os.killpg(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            status = -signal.SIGKILL
        else:
            time.sleep(0.05)
    spent = {"seconds": round(usage.ru_utime + usage.ru_stime, 1), "tests": len(nodes)}
    if target.exists():
        return {"outcome": "caught", **json.loads(target.read_text()), **spent}
    if status == 0:
        return {"outcome": "survived", **spent}
    return {
        "outcome": "too long" if status in (-signal.SIGXCPU, -signal.SIGKILL) else "crash",
        "by": f"status {status}",
        **spent,
    }


def try_mutant(mutant: Mutant, number: int) -> dict[str, Any]:
    """Plant, run, take out."""
    path = TREE / mutant["file"]
    code = path.read_text(encoding="utf-8")
    planted = plant(mutant, code)
    if planted is None:
        return {"outcome": "gone"}
    changed, line = planted
    nodes = [node for node in mutant.get("only") or tests_for(mutant, line) if _is_there(node)]
    if not nodes:
        return {"outcome": "survived", "tests": 0}
    stamp = path.stat()
    try:
        path.write_text(changed, encoding="utf-8")
        os.utime(
            path, (10**9 + 7 * number,) * 2
        )  # a time of its own: bytecode of another mistake is never taken for it
        return run_tests(nodes)
    finally:
        path.write_text(code, encoding="utf-8")
        os.utime(path, (stamp.st_atime, stamp.st_mtime))


def _is_there(node: str) -> bool:
    """Whether the tree has the test: pytest ends in an error where one is missing, which must not count as caught."""
    file, _, name = node.partition("::")
    path = TREE / file
    return path.exists() and (not name or f"def {name.partition('[')[0].split('::')[-1]}(" in _text(path))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def key(mutant: Mutant) -> str:
    return f"{mutant['file']}|{mutant['before'].strip()}|{mutant['after'].strip()}"


def results(name: str) -> dict[str, dict[str, Any]]:
    """The last result of every mistake of a list."""
    file = HERE / f"{name}.results.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {record["key"]: record for record in map(json.loads, lines)}


def warm_up() -> None:
    """What tests import, imported once before the forks; not edgewise, which carries the mistakes."""
    for name in (
        "torch",
        "torch.func",
        "numpy",
        "scipy.optimize",
        "scipy.special",
        "scipy.integrate",
        "hypothesis.strategies",
        "click",
        "rich.console",
        "yaml",
        "transformers",
        "matplotlib.figure",
        "joblib",
        "jsonschema",
        "mpmath",
    ):
        __import__(name)


def copy_of_the_repository(again: bool) -> None:
    """The committed files; what a run that was killed left planted is taken out too. A copy stays at its commit, to
    which belongs what is known of the reach of its tests, until `.mutants` is removed."""
    pinned = TREE / ".mutants" / "commit"
    pinned.parent.mkdir(parents=True, exist_ok=True)
    if again or not pinned.exists():
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=HOME, check=True, capture_output=True, text=True
        )
        pinned.write_text(head.stdout)
    commit = pinned.read_text().strip()
    archive = subprocess.run(["git", "archive", commit], cwd=HOME, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(TREE)], input=archive, check=True)


def main(name: str, *rooms: str) -> None:
    again = "--again" in rooms
    rooms = tuple(room for room in rooms if not room.startswith("--"))
    mutants = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    answers = json.loads((HERE / "answers.json").read_text()) if again else {}
    known = results(name)
    equivalent = json.loads((HERE / "equivalent.json").read_text(encoding="utf-8"))
    survived = {k for k, record in known.items() if record["outcome"] == "survived" and k not in equivalent}
    pending = [m for m in mutants if key(m) not in known or (again and key(m) in survived)]
    pending = [m | {"only": answers.get(m["room"], [])} if again and "only" not in m else m for m in pending]
    pending = [m for m in pending if not again or key(m) in known or name == "named"]
    pending = [m for m in pending if (not rooms or m["room"] in rooms) and m.get("only", True)]
    pending = pending[::2] + pending[1::2]  # a run that is ended early has tried a part of every room
    copy_of_the_repository(again)
    print(f"{len(pending)} of {len(mutants)} to try", flush=True)
    warm_up()
    for number, mutant in enumerate(pending):
        record = {"room": mutant["room"], "key": key(mutant), **try_mutant(mutant, number), "again": again}
        with open(HERE / f"{name}.results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        print(
            number + 1,
            record["room"],
            record["outcome"],
            record.get("seconds"),
            mutant["file"],
            record.get("by", ""),
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
