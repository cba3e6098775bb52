"""A good recipe loads; a bad one is refused by name before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.errors import BadInput
from edgewise.study import Claim, Result, find_recipes, load_recipe
from tests.support.recipes import write_recipe


def test_a_recipe_has_a_title_a_name_and_checked_cases(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path))
    assert recipe.title == "Squares of small numbers"
    assert recipe.name == "paper2020idea/figure1"
    assert recipe.cases("small") == [{"x": x} for x in range(6)]
    assert len(recipe.cases("full")) == 40
    assert recipe.claim([Result({"x": 2}, {"y": 8})]).held is True
    assert recipe.claim([Result({"x": 2}, {"y": 9})]).held is False


def test_cases_come_as_the_store_would_give_them_back(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, cases='def cases(scale):\n    return [{"b": (1, 2), "a": float("inf")}]\n')
    assert load_recipe(path).cases() == [{"a": float("inf"), "b": [1, 2]}]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"claim": ""}, r"figure1.py has no function claim\. A recipe defines cases, measure, claim, draw"),
        ({"claim": "", "draw": "draw = 3\n"}, "no function claim and no draw"),
        ({"helper": "def square(x:\n"}, "figure1.py is not Python"),
        ({"head": '"""T."""\nimport surely_not_installed\n'}, "cannot be imported: ModuleNotFoundError"),
        ({"head": '"""T."""\n1 / 0\n'}, r"cannot be imported: ZeroDivisionError.*figure1.py, line 2"),
    ],
)
def test_what_is_not_a_recipe_is_refused(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_recipe(write_recipe(tmp_path, **changed))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [{'x': 1}, {'x': 2}, {'x': 1}]", r"cases 0 and 2 of cases\('small'\) are equal: {\"x\":1}"),
        ("return [{'x': {1, 2}}]", r"cases\('small'\)\[0\]\['x'\] is a builtins.set"),
        ("return [{'x': 1}, 3]", r"cases\('small'\)\[1\] is a int"),
        ("return []", "is empty"),
        ("return None", "returned a NoneType, not a list"),
        ("return 'cases'", "returned a str, not a list"),
        ("return [{'x': 1 / 0}]", "cases raised ZeroDivisionError: division by zero"),
    ],
)
def test_bad_cases_are_refused(tmp_path: Path, body: str, message: str) -> None:
    recipe = load_recipe(write_recipe(tmp_path, cases=f"def cases(scale):\n    {body}\n"))
    with pytest.raises(BadInput, match=message):
        recipe.cases()


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("claim", "return True", "claim returned a bool, not an edgewise.study.Claim"),
        ("claim", "return results[7]", r"claim raised IndexError: .*figure1.py, line \d+"),
        ("draw", "return 3", "draw returned a int, not a matplotlib Figure"),
    ],
)
def test_bad_endings_are_refused(tmp_path: Path, name: str, body: str, message: str) -> None:
    recipe = load_recipe(write_recipe(tmp_path, **{name: f"def {name}(results):\n    {body}\n"}))
    with pytest.raises(BadInput, match=message):
        getattr(recipe, name)([])


def test_a_missing_file_and_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No recipe"):
        load_recipe(tmp_path / "figure9.py")
    (tmp_path / "figure.txt").write_text("")
    with pytest.raises(BadInput, match="not a Python file"):
        load_recipe(tmp_path / "figure.txt")


def test_neighbours_are_imported_and_read_again(tmp_path: Path) -> None:
    """Two papers may both have a common.py, and an edited one is not taken from memory."""
    relative = {"head": '"""T."""\nfrom edgewise.study import Claim, Claim\nfrom .common import FACTOR\n'}
    values = {}
    for paper, factor in (("one", 3), ("two", 5), ("one", 7)):
        path = write_recipe(tmp_path / paper, **relative)
        path.with_name("common.py").write_text(f"FACTOR = {factor}\n# {'longer' * factor}\n")
        values[paper, factor] = load_recipe(path).module.measure({"x": 1})["y"]
    assert values == {("one", 3): 3, ("two", 5): 5, ("one", 7): 7}


def test_recipes_are_found_and_helpers_are_not(tmp_path: Path) -> None:
    good, broken = write_recipe(tmp_path), write_recipe(tmp_path, "figure2.py", claim="")
    unreadable = write_recipe(tmp_path, "figure3.py", head="def (:\n")
    (good.parent / "common.py").write_text("def helper():\n    return 1\n")
    assert find_recipes(tmp_path) == [good, broken, unreadable]


def test_a_claim_names_the_rows_it_answers() -> None:
    one, two = Claim("a", "b", "c", True, rows=("A1",)), Claim("d", "e", "f", None, rows=("A2", "A1"))
    assert Claim.all([one, two]).to_dict()["rows"] == ["A1", "A2"]
    assert "rows" not in Claim("a", "b", "c", True).to_dict()
    with pytest.raises(BadInput, match="names of rows"):
        Claim("a", "b", "c", True, rows="A1")  # type: ignore[arg-type]
