"""Records are carried over to changed code where a sample is equal, and left where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.cli.main import run
from edgewise.study.recorded import recorded_changes, recorded_file
from edgewise.study.store import Record
from tests.support.recipes import write_recipe
from tools.migrate_records import CASES, Migration, sample

EQUAL = "def square(x):\n    return x * x * FACTOR\n"
OTHER = "def square(x):\n    return FACTOR * x * x + (x == 1) * 1e-9\n"
DRAWN = 'def measure(case):\n    import numpy\n    return {"y": square(case["x"]) + numpy.random.random()}\n'


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose values rest on the random numbers that the engine sets, with its record."""
    monkeypatch.chdir(tmp_path)
    path = write_recipe(tmp_path, measure=DRAWN)
    run(["run", str(path), "--workers", "1", "--full", "--keep"])
    return path


def test_equal_values_carry_a_record_over(kept: Path) -> None:
    write_recipe(kept.parents[1], measure=DRAWN, helper=EQUAL)
    assert recorded_changes(kept) == 40
    assert Migration(kept, 0.0).from_record(60.0) == "carried over, 40 of 40 cases equal"
    assert recorded_changes(kept) == 0
    assert Migration(kept, 0.0).from_record(60.0) == "up to date"


def test_one_other_value_leaves_it(kept: Path) -> None:
    write_recipe(kept.parents[1], measure=DRAWN, helper=OTHER)
    before = recorded_file(kept).read_bytes()
    assert Migration(kept, 0.0).from_record(60.0).startswith("DIFFERS by ")
    assert recorded_file(kept).read_bytes() == before
    assert Migration(kept, 1e-6).from_record(60.0).startswith("carried over, 40 of 40 cases within ")


def test_a_sample_has_three_cases_whatever_they_take() -> None:
    dear = [Record("k", {"seed": seed, "width": 8}, "code", 500.0 + seed, {}) for seed in range(9)]
    assert [item.case["seed"] for item in sample(dear, 60.0)] == list(range(CASES))
    cheap = [Record("k", {"seed": 0, "width": width}, "code", 1.0, {}) for width in range(9)]
    assert len(sample(cheap, 5.0)) == 5
