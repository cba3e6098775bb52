"""Recorded results are judged and drawn without measuring, and say when the code has moved on."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.errors import BadInput
from edgewise.study import load_recipe
from edgewise.study.engine import Work, run
from edgewise.study.recorded import conclude, keep, read_recorded, recorded_file
from tests.support.recipes import PARTS, write_recipe


def full_work(path: Path) -> Work:
    return Work.of(load_recipe(path), "full", path.parents[1] / "runs")


def record(path: Path) -> Path:
    work = full_work(path)
    conclude(work, run(work), work.folder / "full")
    return keep(work, work.folder / "full")


def test_recorded_results_come_back_in_the_order_of_the_cases(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    kept = record(path)
    assert kept == path.parent / "recorded" / "figure1.jsonl"
    assert [kept.with_suffix(end).stat().st_size > 100 for end in (".png", ".json")] == [True, True]
    found = read_recorded(full_work(path))
    assert (found.changed, found.results.missing, len(found.results.cases)) == (0, 0, 40)
    assert [result.case["x"] for result in found.results.cases] == list(range(40))


def test_recording_twice_gives_the_same_file(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    first = record(path).read_bytes()
    assert record(path).read_bytes() == first


def test_changed_code_and_missing_cases_are_told(tmp_path: Path) -> None:
    record(write_recipe(tmp_path))
    more = PARTS["cases"].replace("40", "42")
    path = write_recipe(tmp_path, cases=more, helper="def square(x):\n    return 2 * x**2\n")
    found = read_recorded(full_work(path))
    assert (found.changed, found.results.missing) == (40, 2)
    assert found.codes != (full_work(path).code,)


def test_a_damaged_line_is_told_and_left_out(tmp_path: Path) -> None:
    kept = record(path := write_recipe(tmp_path))
    kept.write_bytes(kept.read_bytes().replace(b'"y":8}', b'"y":9}'))
    found = read_recorded(full_work(path))
    assert (found.results.damaged, found.results.missing) == (1, 1)


def test_nothing_recorded_is_refused(tmp_path: Path) -> None:
    work = full_work(write_recipe(tmp_path))
    assert not recorded_file(work.recipe.path).exists()
    with pytest.raises(BadInput, match="Nothing is recorded"):
        read_recorded(work)
