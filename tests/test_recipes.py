"""Every recipe of papers/ and experiments/ runs at small scale, judges its claim and draws; records can be judged."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from edgewise.study import Claim, find_recipes, load_recipe
from edgewise.study.engine import Work, run
from edgewise.study.recipe import FOLDERS
from edgewise.study.recorded import LARGE, conclude, read_recorded, recorded_file

ROOT = Path(__file__).parents[1]
APART = ROOT / "experiments" / "census"  # runs for hours in an environment of its own: make census
QUICK = {  # one of every folder; the others are as many minutes of reproductions, and run with `make slow`
    "papers/cowsik2024geometry/boundaries.py", "papers/goel2026preconditioning/scaling_law.py",
    "papers/poole2016exponential/figure4_curvature.py", "papers/schoenholz2017deep/figure5_trainable_depth.py",
    "papers/song2024kernels/theorem1.py", "papers/tarmoun2025softmax/condition_bound.py",
    "experiments/attention/figure1_closures.py", "experiments/logits/failing_runs.py",
    "experiments/learning_rate/second.py", "experiments/alarms/default_budget.py", "experiments/weights/draws.py",
    "experiments/spikes/conditioning.py",
    "papers/xiao2018dynamical/deep_filters.py",
    "experiments/trainability/train.py",
}  # fmt: skip
SECONDS = 2.0  # of the processor, at small scale
DEAR = {"experiments/trainability/forecast.py": 3.0}  # two families and two tasks at least: its score is cross-fitted
LONG_FIRST = {  # the better part of a second or more for one case
    *(f"experiments/trainability/{stem}.py" for stem in ("encoder48", "held_out", "rescue", "totals")),
    "experiments/learning_rate/blind.py", "papers/song2024kernels/landscape.py",
}  # fmt: skip
RECIPES = [path for folder in FOLDERS for path in find_recipes(ROOT / folder) if APART not in path.parents]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def recorded_claim(path: Path) -> dict[str, Any]:
    """The committed claim; every recipe has one."""
    claim: dict[str, Any] = json.loads((path.parent / "recorded" / f"{path.stem}.json").read_text())["claim"]
    return claim


def statements(claim: dict[str, Any]) -> list[Any]:
    """Of every part: what was said, what we found, at which scale, with which outcome, and for which rows."""
    words = ("published", "ours", "scale", "held", "rows")
    return [[part.get(word) for word in words] for part in claim.get("parts") or [claim]]


def seconds_of(path: Path, folder: Path) -> float:
    """What measuring and judging at small scale take of the processor, with everything imported."""
    work = Work.of(load_recipe(path), "small", folder)
    began = time.process_time()
    work.recipe.claim(run(work).cases)
    return time.process_time() - began


def by_cost(path: Path) -> Any:
    """A recipe as a parameter: of the default tests, or a slow one."""
    return pytest.param(path, marks=() if name(path) in QUICK else pytest.mark.slow, id=name(path))


def check_words(claim: Claim) -> None:
    for part in claim.parts or (claim,):
        assert min(len(part.published), len(part.ours), len(part.scale)) > 4


def test_every_folder_of_recipes_has_a_quick_one() -> None:
    assert {name(path) for path in RECIPES} >= QUICK
    assert {path.parent for path in RECIPES} == {(ROOT / item).parent for item in QUICK}


@pytest.mark.parametrize("path", [by_cost(path) for path in RECIPES])
def test_a_recipe_runs_at_small_scale(path: Path, tmp_path: Path) -> None:
    """No case fails, the claim speaks, and the picture shows something.

    A claim that is recorded as held may be undecided at small scale, but must not fail: a scale at which it
    cannot be seen is no evidence against it, and `held=None` says so.
    """
    work = Work.of(load_recipe(path), "small", tmp_path)
    began = time.process_time()
    results = run(work)
    assert results.failures == {}
    claim = conclude(work, results, tmp_path)
    if time.process_time() - began > SECONDS:  # imports and the picture are not the recipe's scale
        assert seconds_of(path, tmp_path / "again") < DEAR.get(name(path), SECONDS)
    check_words(claim)
    assert not (claim.held is False and recorded_claim(path)["held"] is True), str(claim)
    picture = matplotlib.image.imread(tmp_path / "figure.png")
    assert min(picture.shape[:2]) > 300
    assert picture[..., :3].std() > 0.01


@pytest.mark.parametrize("path", [path for path in RECIPES if name(path) not in QUICK | LONG_FIRST], ids=name)
def test_a_recipe_measures_its_first_small_case(path: Path) -> None:
    """What the slow tests run whole, by one case: a name that is gone shows here."""
    recipe = load_recipe(path)
    value = recipe.checked_value(recipe.module.measure(recipe.cases("small")[0]))
    assert value


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_what_is_recorded_gives_the_recorded_claim(path: Path) -> None:
    """Complete, undamaged, small, and judged today as on the day it was recorded."""
    work = Work.of(load_recipe(path), "full")
    found = read_recorded(work).results
    assert (found.missing, found.damaged) == (0, 0)
    claim = work.recipe.claim(found.cases)
    check_words(claim)
    assert statements(claim.to_dict()) == statements(recorded_claim(path)), "tools/rejudge_records.py judges again"
    assert recorded_file(work.recipe.path).stat().st_size < LARGE
    assert recorded_file(work.recipe.path).with_suffix(".png").is_file()
