"""The long run: thousands of inputs in this process, some as real processes; counts by class, and a corpus.

    python -m tests.fuzz [--inputs 8000] [--processes 500] [--seed N] [--corpus .fuzz] [--record]

Inputs that ended badly are kept in CORPUS/bad.jsonl and tried again first; all that were tried are in
CORPUS/inputs-SEED.jsonl with their class, and refusals to be read by a person in CORPUS/refusals.txt. With the seed of
a run that was interrupted, it goes on where that one stopped. `--record` writes the counts beside this file. The exit
code is 0 when every input was answered or refused by name.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.fuzz.attempts import try_one, warm_up
from tests.fuzz.classes import CLASSES, REFUSED, Ending
from tests.fuzz.inputs import FAMILIES, LINES, Input
from tests.fuzz.processes import try_as_process

RECORD = Path(__file__).with_name("counts.json")
SHARES = {
    "traces": 10,
    "tokenizers": 5,
    "runs": 10,
    "records": 4,
    "files": 10,
    "perceptrons": 8,
    "streams": 5,
    "words": 6,
    "knobs": 10,
    "page": 10,
    "training": 8,
    "models": 2,
    "configs": 12,
}
AS_PROCESSES = "as processes"


class Tally:
    """Counts by family and class, and the corpus they are written to."""

    def __init__(self, corpus: Path, number: int) -> None:
        corpus.mkdir(parents=True, exist_ok=True)
        self.corpus, self.counts = corpus, {name: Counter[str]() for name in (*FAMILIES, AS_PROCESSES)}
        inputs = corpus / f"inputs-{number}.jsonl"
        for line in inputs.read_text(encoding="utf-8").splitlines() if inputs.exists() else []:
            record = json.loads(line)
            self.counts[record["family"]][record["kind"]] += 1
        self._inputs, self._bad, self._refusals = (
            open(corpus / name, "a", encoding="utf-8", errors="replace")  # noqa: SIM115  open for the whole run
            for name in (inputs.name, "bad.jsonl", "refusals.txt")
        )

    def add(self, family: str, example: Input, ending: Ending) -> None:
        self.counts[family][ending.kind] += 1
        line = json.dumps({"family": family, "kind": ending.kind, "input": example})
        print(line, file=self._inputs, flush=True)
        if not ending.good:
            print(line, file=self._bad, flush=True)
            print(f"{ending.kind}: {line[:300]}\n{ending.words[-1500:]}", file=sys.stderr, flush=True)
        elif ending.kind == REFUSED:
            print(f"{line[:200]}\n    {ending.words.strip()}", file=self._refusals, flush=True)

    def table(self) -> dict[str, dict[str, int]]:
        """Counts of every class, families and all of them."""
        rows = {name: {kind: count[kind] for kind in CLASSES} for name, count in self.counts.items()}
        return rows | {"all": {kind: sum(row[kind] for row in rows.values()) for kind in CLASSES}}


def earlier(corpus: Path) -> Iterator[Input]:
    """What ended badly in earlier runs; the file is begun anew."""
    path = corpus / "bad.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    yield from {line: json.loads(line)["input"] for line in lines}.values()


def drawn(family: str, count: int, number: int, corpus: Path) -> list[Input]:
    """Inputs of a family; hypothesis keeps its own examples in the corpus too."""
    examples: list[Input] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=DirectoryBasedExampleDatabase(corpus / "examples"),
        deadline=None,
        phases=[Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(LINES if family == AS_PROCESSES else FAMILIES[family])
    def draw(example: Input) -> None:
        examples.append(example)

    draw()
    gc.collect()  # what is there now stays: looking through it before every attempt took longer than the attempt
    gc.freeze()
    return examples


def run(inputs: int, processes: int, number: int, corpus: Path) -> dict[str, dict[str, int]]:
    warm_up()
    repeated = list(earlier(corpus))
    tally = Tally(corpus, number)
    for example in repeated:
        tally.add(example["family"], example, try_one(example))
    for family, share in SHARES.items():
        done, count = tally.counts[family].total(), max(1, inputs * share // 100)
        for example in drawn(family, count, number, corpus)[done:] if done < count else ():
            tally.add(family, example, try_one(example))
        print(family, dict(tally.counts[family]), flush=True)
    for example in drawn(AS_PROCESSES, processes, number + 1, corpus)[tally.counts[AS_PROCESSES].total() :]:
        tally.add(AS_PROCESSES, example, try_as_process(example["words"], example["setting"]))
    return tally.table()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=8000)
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"))
    parser.add_argument("--record", action="store_true", help=f"write the counts to {RECORD.name}")
    options = parser.parse_args()
    table = run(options.inputs, options.processes, options.seed, options.corpus)
    commit = subprocess.check_output(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], text=True
    ).strip()
    about = {"seed": options.seed, "commit": commit, "date": date.today().isoformat()}
    document: dict[str, Any] = about | {"tried": sum(table["all"].values()), "counts": table}
    print(json.dumps(document, indent=1))
    if options.record:
        RECORD.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(table["all"][kind] for kind in CLASSES[2:]))


if __name__ == "__main__":
    sys.exit(main())
