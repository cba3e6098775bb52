"""The truth of a learning rate: the grid, its best rate and its edge, on curves that are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.learning_rate import scheduled
from experiments.learning_rate import scheduled_truth as truth
from experiments.learning_rate.scheduled_population import BLIND, LIMITS

ADAMW = BLIND[0]


@pytest.mark.parametrize("best", [-6.0, 0.3, 5.0, 9.6])
def test_the_best_rate_and_the_edge_of_a_known_curve_are_found(best: float) -> None:
    """A parabola in log rate: 0.02 nat per squared rung, so the edge is sqrt(7.5) rungs above."""
    known = truth.search(lambda rung: 2.0 + 0.02 * (rung - best) ** 2, 9.0)
    found = truth.summary(ADAMW, known)
    lowest = min(known.values())
    assert found["best"] == pytest.approx(1e-3 * 1.5**best, rel=1e-6)
    inside = [k for k in range(-30, 40) if k >= best and 2.0 + 0.02 * (k - best) ** 2 <= lowest + 0.15]
    assert found["edge"] == pytest.approx(1e-3 * 1.5 ** inside[-1])
    assert len(known) <= truth.MOST


def test_a_network_that_learns_at_no_rate_has_neither() -> None:
    known = truth.search(lambda _: 2.86, truth.LEARNS["text"])
    found = truth.summary(ADAMW, known)
    assert found["best"] is None and found["edge"] is None
    assert min(known) == truth.LOWEST and len(known) <= 6


def test_low_rates_are_tried_before_none_is_said_to_learn() -> None:
    known = truth.search(lambda rung: 2.0 + 0.02 * (rung + 8) ** 2 if rung < -4 else 2.9, 2.7)
    assert truth.summary(ADAMW, known)["best"] == pytest.approx(1e-3 * 1.5**-8)


def test_runs_are_kept_and_a_network_is_finished_by_them_alone(tmp_path: Path) -> None:
    store = tmp_path / "runs.jsonl"
    known = truth.search(lambda rung: 2.0 + 0.02 * (rung - 3) ** 2, 9.0)
    rows = [{"name": ADAMW.name, "rung": k, "loss": v} for k, v in known.items()]
    store.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    assert truth.finished(ADAMW, truth.read(store)[ADAMW.name]) is None
    store.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert truth.finished(ADAMW, truth.read(store)[ADAMW.name]) == truth.summary(ADAMW, known)


def test_the_schedule_warms_up_and_ends_at_zero() -> None:
    shares = [truth.multiplier(step) for step in range(truth.STEPS)]
    assert shares[0] == 1 / 60 and shares[59] == 1.0 and max(shares) == 1.0
    assert shares[330] == pytest.approx(0.5) and 0 < shares[-1] < 1e-4


def test_the_population_has_its_strata() -> None:
    assert len({entry.name for entry in BLIND}) == 40 and LIMITS["within_2"] == 0.85
    assert sum(entry.transfer for entry in BLIND) == 12
    assert sum(entry.width > 128 or entry.depth > 24 for entry in BLIND) == 4


def test_the_first_look_is_what_the_pages_say() -> None:
    """29 of the 40, and nothing that depends on the order in which they were asked."""
    folder = Path(truth.__file__).parent / "results"
    runs = truth.read(folder / "scheduled_blind.jsonl")
    answers = [
        json.loads(line) for line in (folder / "scheduled_blind_answers.jsonl").read_text().splitlines()
    ]
    found = {e: t for e in BLIND if (t := truth.finished(e, runs.get(e.name, {}))) is not None}
    assert {e.name for e in found} == {a["name"] for a in answers}
    assert list(found) and set(found) == set(sorted(BLIND, key=truth.cost)[:29])
    scores = scheduled.table(answers, found)
    assert [scores[m]["within"] for m in ("rehearsal", "constant")] == [19, 17]
    assert scores["rehearsal"]["above"] == 4 and scores["rehearsal"]["given"] == pytest.approx(
        0.014, abs=5e-4
    )
    assert max(a["rehearsal"]["passes"] for a in answers) == LIMITS["steps"]
