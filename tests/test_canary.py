"""The canary sees a wrong factor anywhere, names the recipes that part, and leaves rounding alone."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgewise.study import load_recipe
from edgewise.study.engine import Work, run
from edgewise.study.results_file import keep
from tests.support.recipes import PARTS, recipes, write_recipe
from tools import canary, results

ROOT = Path(__file__).parents[1]


def parts(committed: Any, now: Any, skipped: tuple[str, ...] = ()) -> dict[str, float | None]:
    return {each.entry: each.by for each in canary.differences(committed, now, skipped)}


def test_a_difference_is_a_share_of_the_largest_number_of_its_entry() -> None:
    committed = {"curve": [4.0, 1.0, [0.0, -2.0]], "end": 0.5, "seconds": 1.0, "name": "a", "count": 3}
    now = {"curve": [4.0, 1.1, [0.02, -2.0]], "end": 0.51, "seconds": 9.0, "name": "a", "count": 3}
    found = parts(committed, now, ("seconds",))
    assert found == {"count": 0.0, "curve": pytest.approx(0.025), "end": pytest.approx(0.02), "name": 0.0}


@pytest.mark.parametrize(
    ("committed", "now"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0]),
        ({"a": 1.0}, {"b": 1.0}),
        ("held", "not held"),
        (1.0, math.nan),
        (math.inf, 1.0),
        (None, 1.0),
        (True, False),
    ],
)
def test_what_is_not_a_matter_of_size_parts(committed: Any, now: Any) -> None:
    assert parts({"x": committed}, {"x": now}) == {"x": None}
    assert parts({"x": committed}, {"x": committed}) == {"x": 0.0}
    assert parts({"x": 1.0}, {}) == {"x": None}


def test_sentences_are_left_out_and_their_outcome_is_not() -> None:
    committed = {
        "why": "a",
        "asked": [{"notes": ["x"], "rate": 1.0}],
        "structure": {"prints": "old", "wrong": []},
    }
    now = {"why": "b", "asked": [{"notes": [], "rate": 1.0}], "structure": {"prints": "new", "wrong": []}}
    skipped = ("why", "asked.notes", "structure.prints")
    assert parts(committed, now, skipped) == {"asked": 0.0, "structure": 0.0}
    assert (
        parts(committed, now | {"structure": {"prints": "new", "wrong": ["norm"]}}, skipped)["structure"]
        is None
    )
    assert parts(committed, now | {"asked": [{"notes": [], "rate": 2.0}]}, skipped)["asked"] == 1.0


def texts(value: Any) -> list[str]:
    """All texts in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    return [text for each in value for text in texts(each)] if isinstance(value, list) else [str(value)]


def test_numbers_that_are_zero_but_for_rounding_do_not_part() -> None:
    assert parts({"x": 3.9e-16}, {"x": 5.5e-17}) == {"x": 0.0}
    assert parts({"x": 3.9e-12}, {"x": 5.5e-12}) == {"x": pytest.approx(1.6 / 3.9)}


@pytest.mark.parametrize("path", recipes(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_states_its_tolerance_and_can_be_compared(path: Path) -> None:
    assert 1e-6 <= canary.tolerance_of(load_recipe(path)) <= 0.02
    records = canary.committed_records(path, "small") or canary.committed_records(path)
    record = min(records, key=lambda each: each.seconds)
    assert record.seconds <= canary.DEAREST or str(path.relative_to(ROOT)) in canary.APART
    compared = canary.without(record.value, getattr(load_recipe(path).module, "NOT_COMPARED", ()))
    assert max((len(text.split()) for text in texts(compared)), default=0) <= 12, "sentences are not compared"


def test_a_recipe_whose_result_is_not_committed_yet_is_listed_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Criteria are committed before their runs, so that such a recipe is no mistake."""
    path = write_recipe(tmp_path, head=PARTS["head"] + "TOLERANCE = 0.01\n")
    monkeypatch.setattr(canary, "ROOT", tmp_path)
    for options in ([], ["--whole"]):
        monkeypatch.setattr("sys.argv", ["canary", "--workers", "1", *options, str(path)])
        assert canary.main() == 0
        assert "(no result is committed)" in capsys.readouterr().out


def test_the_cheapest_case_is_measured_again(tmp_path: Path) -> None:
    head = PARTS["head"] + "TOLERANCE = 0.01\n"
    path = write_recipe(tmp_path, head=head)
    work = Work.of(load_recipe(path), "full", tmp_path)
    run(work)
    keep(work)
    outcome = canary.cheapest(path)
    assert outcome is not None and not outcome.parted and "as committed" in str(outcome)
    write_recipe(
        tmp_path, head=head, measure='def measure(case):\n    return {"y": 9.9 * square(case["x"]) + 9}\n'
    )
    outcome = canary.cheapest(path)
    assert outcome is not None and [each.entry for each in outcome.parted] == ["y"]
    assert "y" in canary.table([outcome]) and "parted" in str(outcome)


@pytest.mark.parametrize(
    ("measure", "code", "said"),
    [
        ('return {"y": square(case["x"]) + 9}', 0, "1 of 1 recipes as committed"),
        ('return {"y": 9.9 * (square(case["x"]) + 9)}', 3, "1 parted, which fails nothing"),
        ('raise ValueError("no room")', 1, "no room"),
        ('return {"y": [1.0], "z": object()}', 1, "1 raised, which fails CI"),
    ],
    ids=["same", "parted", "raised", "no value"],
)
def test_a_recipe_that_raises_fails_ci_and_one_that_parts_does_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measure: str,
    code: int,
    said: str,
) -> None:
    head, right = PARTS["head"] + "TOLERANCE = 0.01\n", 'return {"y": square(case["x"]) + 9}'
    path = write_recipe(tmp_path, head=head, measure=f"def measure(case):\n    {right}\n")
    work = Work.of(load_recipe(path), "full", tmp_path)
    run(work)
    keep(work)
    write_recipe(tmp_path, head=head, measure=f"def measure(case):\n    {measure}\n")
    monkeypatch.setattr(canary, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["canary", "--workers", "1", str(path)])
    assert canary.main() == code
    assert said in capsys.readouterr().out


def test_make_passes_what_parted_and_fails_for_what_raised() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    rule = next(line.strip() for place, line in enumerate(rules) if rules[place - 1].startswith("canary:"))
    shell = rule.replace("$$", "$").replace("$(BIN)/python tools/canary.py", "sh -c 'exit '$CODE")
    codes = [
        subprocess.run(["sh", "-c", shell], env={"CODE": str(code)}, check=False).returncode
        for code in range(4)
    ]
    assert codes == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("recipe", "file", "right", "wrong"),
    [
        (
            "papers/cowsik2024geometry/particles.py",
            "theory/simplex/step.py",
            "state.difference * row.s2, state",
            "1.02 * state.difference * row.s2, state",
        ),
        pytest.param(
            "experiments/census/by_hand.py",
            "models/names/weight_gains.py",
            "Gain(math.sqrt(mean_square * matrix.fan_in)",
            "Gain(1.1 * math.sqrt(mean_square * matrix.fan_in)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "experiments/spikes/conditioning.py",
            "monitor/columns.py",
            "site[self.growth] = 2 * (logs - logs[-1])",
            "site[self.growth] = 2.1 * (logs - logs[-1])",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["theory", "reader", "monitor"],
)
def test_a_wrong_factor_is_named(tmp_path: Path, recipe: str, file: str, right: str, wrong: str) -> None:
    """Planted in a copy of the tree; without it the same recipe is as committed."""
    outcome = canary.cheapest(ROOT / recipe)
    assert outcome is not None and "as committed" in str(outcome), outcome
    for folder in ("src", "tools", str(Path(recipe).parent)):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    code = tmp_path / "src" / "edgewise" / file
    assert code.read_text().count(right) == 1
    code.write_text(code.read_text().replace(right, wrong))
    done = subprocess.run(
        [sys.executable, "tools/canary.py", "--workers", "1", recipe],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"},
    )
    assert (done.returncode, f"{recipe}: parted" in done.stdout) == (canary.PARTED, True), (
        done.stdout + done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "processor",
    [
        {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "OPENBLAS_CORETYPE": "Haswell"},
    ],
    ids=["no vectors", "avx2"],
)
def test_nothing_parts_on_another_processor(processor: dict[str, str]) -> None:
    """Compared cases do not amplify rounding, so that what parts is due to the code."""
    environment = os.environ | processor | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "tools/canary.py", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_results_are_measured_cheapest_first_and_say_what_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "build")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    paths = [write_recipe(tmp_path / name) for name in ("papers", "experiments")]
    monkeypatch.setattr(results, "APART", tmp_path / "experiments" / "census")
    monkeypatch.setattr("sys.argv", ["results", "--workers", "1", *map(str, paths[:1])])
    assert results.main() == 0
    assert "1 recipes remain, 0.00 core-hours" in capsys.readouterr().out
    assert (paths[0].parent / "recorded" / "figure1.json").is_file()
    assert results.main() == 0
    assert "Everything was kept before" in capsys.readouterr().out


def test_the_page_of_dates_has_every_result_and_claims_none_to_be_newer() -> None:
    """A result that was measured after the page was written is newer than its row, which is no false claim."""
    page = (ROOT / "research" / "measured.md").read_text()
    rows = {
        name: date for date, name in re.findall(r"^\| (\S+) \| `[\w+]+` \| `(\S+)` \|", page, re.MULTILINE)
    }
    written = re.search(r"As of (\S+),", page)
    assert written is not None and len(rows) > 70
    for name, (date, *_) in results.stamps().items():
        assert rows.get(name, written[1]) <= date, "run `python tools/results.py --page`"
