"""Counts on random descriptions, in pieces: verdicts that contradict themselves, remedies that do not do what they say.

    python -m tests.judgement.random_descriptions contradictions 5000
    python -m tests.judgement.random_descriptions remedies 500
    python -m tests.judgement.random_descriptions recorded 474     all networks that were trained, by their own records

Writes `random_descriptions.json` beside this file after every piece of 100, and goes on where it ended.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import edgewise
from edgewise.errors import BadInput
from edgewise.nouns.verdict import Outcome, Verdict
from edgewise.study import tasks
from tests.judgement.test_one_answer import contradictions, described_as, wide
from tests.judgement.test_remedies import check, descriptions

FILE = Path(__file__).with_suffix(".json")
PIECE = 100
MADE_BY = "python -m tests.judgement.random_descriptions"
READOUTS = st.sampled_from(["token", "pooled", "class"])
Count = Callable[[Any], list[str]]


def verdict_of(case: tuple[dict[str, Any], str, float]) -> list[str]:
    """The outcome of one description, and every contradiction in its verdict."""
    knobs, readout, overlap = case
    try:
        trace = edgewise.predict(described_as(knobs), readout=readout, start_overlap=overlap)
    except BadInput:
        return ["refused"]
    return named(edgewise.judge(trace))[1:]


def named(verdict: Verdict) -> list[str]:
    """What is counted of one verdict."""
    return [
        "descriptions",
        verdict.outcome.value,
        *(f"CONTRADICTION: {name}" for name in contradictions(verdict)),
    ]


def remedies_of(case: Any) -> list[str]:
    """The outcome of one description and its remedies, each predicted again; what is wrong with them."""
    try:
        outcome, remedies = check(*case)
    except BadInput:
        return ["refused"]
    except AssertionError as error:
        return [f"WRONG: {str(error)[:300]}"]
    kinds = [f"remedy: {remedy.outcome.value}" for remedy in remedies]
    cured = any(remedy.outcome is Outcome.TRAINS for remedy in remedies)
    return [outcome.value, *kinds, *([f"{outcome.value}, with a remedy that trains"] if cured else [])]


KINDS: dict[str, tuple[Any, Count]] = {
    "contradictions": (st.tuples(wide, READOUTS, st.floats(0.0, 0.99)), verdict_of),
    "remedies": (descriptions(), remedies_of),
}


def piece(kind: str, number: int) -> Counter[str]:
    """A hundred descriptions, the same ones for the same number."""
    strategy, count = KINDS[kind]
    found: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=PIECE,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case: Any) -> None:
        found.update(["descriptions", *count(case)])

    run()
    return found


def trained_networks() -> Counter[str]:
    """Verdicts on the networks of experiments/trainability: the old ones by description, the held-out by record."""
    from experiments.trainability import starts
    from experiments.trainability.held_out_table import held_out
    from experiments.trainability.parts import FOLDER
    from experiments.trainability.table import recorded_runs

    found: Counter[str] = Counter()
    for run in recorded_runs(FOLDER / "forecast.jsonl"):
        data = tasks.task(run.case["task"])
        readout = "pooled" if data.pooled else "token"
        verdict = edgewise.judge(
            edgewise.predict(starts.architecture(run.case["knobs"], data), readout=readout)
        )
        found.update([*named(verdict), *named(verdict)])  # each start was trained with two optimizers
    for each in held_out(recorded_runs(FOLDER / "held_out.jsonl")):
        found.update(named(edgewise.judge(each.trace())))
    return found


def main(kind: str, total: int) -> None:
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    if kind == "recorded":
        recorded[kind] = dict(sorted(trained_networks().items()))
        FILE.write_text(json.dumps(recorded | {"made_by": MADE_BY}, indent=2, sort_keys=True) + "\n")
        print(kind, recorded[kind])
        return
    while recorded.get(kind, {}).get("descriptions", 0) < total:
        row = Counter(recorded.get(kind, {}))
        begun = time.process_time()
        row.update(piece(kind, row["pieces"]))
        row.update({"pieces": 1, "cpu_seconds": round(time.process_time() - begun)})
        recorded[kind] = dict(sorted(row.items()))
        FILE.write_text(json.dumps(recorded | {"made_by": MADE_BY}, indent=2, sort_keys=True) + "\n")
        print(kind, recorded[kind], flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], int(sys.argv[2]))
