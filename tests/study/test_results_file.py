"""Recorded results are judged and drawn without measuring; no change of the code makes them invalid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import edgewise
from edgewise.errors import BadInput
from edgewise.study import load_recipe, recorded_results, store
from edgewise.study.engine import Work, run
from edgewise.study.results_file import conclude, keep, read_recorded, recorded_file, recorded_summary, tally
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
    assert (found.missing, len(found.cases), found.stamps) == (0, 40, (store.stamp(),))
    assert [result.case["x"] for result in found.cases] == list(range(40))
    assert [result.case["x"] for result in recorded_results(kept)] == list(range(40))


def test_recording_twice_gives_the_same_file(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    first = record(path).read_bytes()
    assert record(path).read_bytes() == first


@pytest.mark.parametrize(
    "changed",
    [
        {"head": '"""Other words."""\nimport math\n\nfrom edgewise.study import Claim\n'},
        {
            "measure": 'def measure(case):\n    if case["x"] > 99:\n        raise OSError("x")\n    return {"y": 1}\n'
        },
        {"helper": "def square(x):\n    return 3 * x**2\n"},
    ],
    ids=["docstring", "message", "helper"],
)
def test_no_change_of_the_code_makes_a_result_invalid(tmp_path: Path, changed: dict[str, str]) -> None:
    record(write_recipe(tmp_path))
    found = read_recorded(full_work(write_recipe(tmp_path, **changed)))
    assert (found.missing, found.damaged) == (0, 0)
    assert [result.value["y"] for result in found.cases] == [2 * x * x for x in range(40)]
    assert run(full_work(write_recipe(tmp_path, **changed))).computed == 0, "a run folder goes on, too"


def test_cases_that_were_added_are_missing(tmp_path: Path) -> None:
    record(write_recipe(tmp_path))
    found = read_recorded(full_work(write_recipe(tmp_path, cases=PARTS["cases"].replace("40", "42"))))
    assert (found.missing, len(found.cases)) == (2, 40)


def test_a_result_file_begins_with_one_stamp_and_keeps_those_of_other_versions(tmp_path: Path) -> None:
    old = store.Stamp("0.0.9", "abcdef0", "2026-01-31", "2.6.0", "1.26.0", "AVX2", 8)
    day = replace(old, date="2026-02-01")
    new = replace(old, edgewise="0.1.0")
    records = [store.Record({"x": x}, 0.5, {"y": x}, stamp=stamp) for x, stamp in enumerate((old, day, old))]
    file = tmp_path / "figure1.jsonl"
    file.write_bytes(store.lines_of(records))
    assert [store.read_line(line) for line in file.read_bytes().splitlines()].count(day) == 1, (
        "of one version: one"
    )
    assert store.read([file]).stamps() == [day]
    records.insert(1, store.Record({"x": 9}, 0.5, {"y": 9}, stamp=new))
    file.write_bytes(store.lines_of(records))
    contents = store.read([file])
    assert {record.case["x"]: record.stamp for record in contents.done.values()} == {
        0: old,
        1: day,
        2: old,
        9: new,
    }
    assert store.span(contents.stamps()) == "edgewise 0.0.9, 0.1.0, 2026-01-31 to 2026-02-01"


def test_a_recorded_claim_says_what_measured_it_and_when(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    assert recorded_summary(path) is None
    record(path)
    summary = recorded_summary(path)
    assert summary is not None
    assert (summary.outcome, summary.measured) == ("source 1 of 1", str(store.stamp()))
    assert store.stamp().edgewise == edgewise.__version__ in summary.measured
    assert store.stamp().date in summary.measured


def test_statements_of_a_source_and_ours_are_counted_apart() -> None:
    parts = [
        {"published": "It converges.", "held": True},
        {"published": "It is fast [talk].", "held": None},
        {"published": "(ours, after the run) It is stable.", "held": False},
        {"published": "Ours: it is exact.", "held": True},
    ]
    told = tally({"parts": parts}, Path("papers/a2020b/figure1.py"))
    assert told == "source 1 of 2 (1 open), ours 1 of 2"
    assert tally({"parts": parts}, Path("experiments/alarms/edge.py")) == (
        "source 0 of 1 (1 open), ours 2 of 3"
    )
    assert tally(parts[0], Path("papers/a2020b/figure1.py")) == "source 1 of 1"


def test_a_damaged_line_is_told_and_left_out(tmp_path: Path) -> None:
    kept = record(path := write_recipe(tmp_path))
    kept.write_bytes(kept.read_bytes().replace(b'"y":8}', b'"y":9}'))
    found = read_recorded(full_work(path))
    assert (found.damaged, found.missing) == (1, 1)


def test_nothing_recorded_is_refused(tmp_path: Path) -> None:
    work = full_work(write_recipe(tmp_path))
    assert not recorded_file(work.recipe.path).exists()
    with pytest.raises(BadInput, match="Nothing is recorded"):
        read_recorded(work)
