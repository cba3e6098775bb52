"""Every recipe of papers/ and experiments/ runs at small scale, judges its claim and draws; records can be judged."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.image
import matplotlib.pyplot
import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from edgewise.study import Claim, load_recipe
from edgewise.study.engine import Work, run
from edgewise.study.results_file import LARGE, conclude, read_recorded, recorded_file
from tests.support.recipes import recipes

ROOT = Path(__file__).parents[1]
APART = ROOT / "experiments" / "census"  # needs packages of its own, and hours: make census
EMPTY = {"experiments/learning_rate/horizon.py"}  # in ten steps no network moves far enough to be drawn
RECIPES = [path for path in recipes() if APART not in path.parents]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def recorded_claim(path: Path) -> dict[str, Any]:
    """The committed claim; every recipe has one."""
    claim: dict[str, Any] = json.loads((path.parent / "recorded" / f"{path.stem}.json").read_text())["claim"]
    return claim


def check_words(claim: Claim) -> None:
    for part in claim.parts or (claim,):
        assert min(len(part.published), len(part.ours), len(part.scale)) > 4


@pytest.fixture
def _drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No margins: to settle them, matplotlib draws a figure twice. What they become is for tests/present."""
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)


def drawn(figure: Figure) -> list[bool]:
    """Of every panel, whether something is in it; how it looks on paper is for the slow test and for tests/present."""
    panels = [axes.has_data() for axes in figure.axes if axes.axison]
    matplotlib.pyplot.close(figure)
    return panels


@pytest.mark.usefixtures("_drafts")
@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_runs_at_small_scale(path: Path, tmp_path: Path) -> None:
    """No case fails, the claim speaks, and the picture shows something.

    A claim that is recorded as held may be undecided at small scale, but must not fail: a scale at which it
    cannot be seen is no evidence against it, and `held=None` says so.
    """
    recipe = load_recipe(path)
    results = run(Work.of(recipe, "small", tempfile.mkdtemp(dir=tmp_path)))
    assert results.failures == {} and results.missing == 0
    claim = recipe.claim(results.cases)
    check_words(claim)
    assert not (claim.held is False and recorded_claim(path)["held"] is True), str(claim)
    panels = drawn(recipe.draw(results.cases))
    assert panels and (any(panels) or name(path) in EMPTY)  # some panels may be empty at this scale


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_is_drawn_as_for_a_reader(path: Path, tmp_path: Path) -> None:
    """With settled margins and at full resolution, as `edgewise run` does."""
    work = Work.of(load_recipe(path), "small", tmp_path)
    conclude(work, run(work), tmp_path)
    picture = matplotlib.image.imread(tmp_path / "figure.png")
    assert min(picture.shape[:2]) > 300
    assert picture[..., :3].std() > 0.01


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_what_is_recorded_is_whole(path: Path) -> None:
    """Complete, undamaged and small; that it is judged as on the day it was recorded is for the canary."""
    found = read_recorded(Work.of(load_recipe(path), "full"))
    assert (found.missing, found.damaged) == (0, 0)
    assert recorded_file(path).stat().st_size < LARGE
    assert recorded_file(path).with_suffix(".png").is_file()
