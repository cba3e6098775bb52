"""Tiny recipes written to a folder, so that tests can change one function; modules beside a recipe of ours."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from edgewise.study import find_recipes, load_recipe
from edgewise.study.recipe import FOLDERS

PARTS = {
    "head": (
        '"""Squares of small numbers.\n\nMore words."""\n'
        "import math\nfrom edgewise.study import Claim\n\nFACTOR = 2\n"
    ),
    "cases": 'def cases(scale="small"):\n    return [{"x": x} for x in range(6 if scale == "small" else 40)]\n',
    "helper": "def square(x):\n    return FACTOR * x * x\n",
    "measure": 'def measure(case):\n    return {"y": square(case["x"])}\n',
    "claim": (
        "def claim(results):\n"
        '    right = all(r.value["y"] == 2 * r.case["x"] ** 2 for r in results)\n'
        '    return Claim("y = 2 x^2.", "It is.", f"{len(results)} cases", right, {"cases": len(results)})\n'
    ),
    "draw": (
        "def draw(results):\n"
        "    from matplotlib.figure import Figure\n"
        "    figure = Figure()\n"
        '    figure.subplots().plot([r.case["x"] for r in results], [r.value["y"] for r in results])\n'
        "    return figure\n"
    ),
}


def write_recipe(folder: Path, name: str = "figure1.py", **changed: str) -> Path:
    """A recipe file below folder/paper2020idea; every part can be replaced, or left out as ''."""
    path = folder / "paper2020idea" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join({**PARTS, **changed}.values()))
    return path


@cache
def recipes() -> tuple[Path, ...]:
    """Every recipe of this repository."""
    root = Path(__file__).parents[2]
    return tuple(path for folder in FOLDERS for path in find_recipes(root / folder))


def neighbor(recipe: str, name: str) -> Any:
    """A module beside a recipe of this repository, as the recipe itself imports it."""
    package = load_recipe(Path(__file__).parents[2] / recipe).module.__package__
    return import_module(f"{package}.{name}")
