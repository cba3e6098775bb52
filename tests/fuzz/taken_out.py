"""Whether the fuzz finds a class of mistakes again when its fix is taken out of a copy of the source.

    python -m tests.fuzz.taken_out [WORD ...]

tests/fuzz/taken_out.json has a row per class: the fix as a text and what stands in its place, the family that should
notice, and what it found, with the number of inputs until then. Inputs that cannot reach the place (`only`: another
verb, another route) are counted and not tried. With words, only rows whose name has one of them.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[2]
TABLE = Path(__file__).with_suffix(".json")
SEED, INPUTS, PROCESSES = 391, 800, 60
BYTES = 12 * 2**30  # of addresses: what would take all memory of the machine fails instead


def without(fix: dict[str, Any], source: Path) -> None:
    """Take the fix out of a copy of the source; each of its texts must be there once."""
    for file, before, after in fix["edits"]:
        path = source / file
        text = path.read_text(encoding="utf-8")
        if text.count(before) != 1:
            raise SystemExit(
                f"{fix['name']}: {file} has {before!r} {text.count(before)} times, expected once."
            )
        path.write_text(text.replace(before, after), encoding="utf-8")


def first_mistake(family: str, only: dict[str, str]) -> dict[str, Any]:
    """Try inputs of a family until one ends badly: its class, how many were drawn, what was said."""
    from tests.fuzz.__main__ import AS_PROCESSES, drawn
    from tests.fuzz.attempts import try_one, warm_up
    from tests.fuzz.processes import try_as_process

    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    warm_up()
    as_processes = family == AS_PROCESSES
    with tempfile.TemporaryDirectory() as folder:
        inputs = drawn(family, PROCESSES if as_processes else INPUTS, SEED, Path(folder))
    for number, given in enumerate(inputs, 1):
        if any(given.get(key) != value for key, value in only.items()):
            continue
        ending = try_as_process(given["words"], given["setting"]) if as_processes else try_one(given)
        if not ending.good:
            words = " ".join(ending.words.split())
            return {"class": ending.kind, "inputs": number, "words": words[:200]}
    return {"class": None, "inputs": len(inputs)}


def tried(fix: dict[str, Any]) -> dict[str, Any]:
    """What the family finds in a process that imports the changed copy."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(HOME / "src", source)
        without(fix, source)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.fuzz.taken_out",
                "--family",
                fix["family"],
                json.dumps(fix.get("only", {})),
            ],
            cwd=HOME,
            env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


def main(words: list[str]) -> None:
    for number, fix in enumerate(json.loads(TABLE.read_text(encoding="utf-8"))["fixes"]):
        if not words or any(word in fix["name"] for word in words):
            found = tried(fix) | {"date": date.today().isoformat()}
            print(fix["name"], found, flush=True)
            document = json.loads(TABLE.read_text(encoding="utf-8"))
            document["fixes"][number]["found"] = found
            TABLE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--family"]:
        print(json.dumps(first_mistake(sys.argv[2], json.loads(sys.argv[3]))))
    else:
        main(sys.argv[1:])
