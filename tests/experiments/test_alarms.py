"""The recipes about alarms train what they measure, each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.study import load_recipe
from edgewise.study.engine import measured
from edgewise.study.store import dumps

FOLDER = Path(__file__).parents[2] / "experiments" / "alarms"
RECIPES = ("held_out", "default_budget")
STEP = 2e-3  # seconds of a step at least; to ask the detectors alone takes 0.3 ms


@pytest.mark.parametrize("name", RECIPES)
def test_seconds_of_a_case_are_those_of_its_training_also_the_second_time(name: str) -> None:
    recipe = load_recipe(FOLDER / f"{name}.py")
    case = dumps(recipe.module.cases("small")[1] | {"steps": 8})
    first, second = measured(recipe, case), measured(recipe, case)
    assert first.value and second.value and first.value["end"] == second.value["end"]
    assert second.seconds > 8 * STEP
