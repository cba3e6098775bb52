"""Small parts of a page: numbers in its table, shapes of outcomes, places of labels; the examples in its code run."""

from __future__ import annotations

import doctest
import pkgutil
import re
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import edgewise
from edgewise.nouns.verdict import Outcome
from edgewise.present.html import BOTTOM, glyph, name_beside
from edgewise.present.json_documents import statistics


@pytest.mark.parametrize("room", ["present", "explorer"])
def test_the_examples_in_the_code_run(room: str) -> None:
    if room == "explorer":
        pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
    package = import_module(f"edgewise.{room}")
    names = [name for _, name, _ in pkgutil.iter_modules(package.__path__, f"edgewise.{room}.")]
    assert [name for name in names if doctest.testmod(import_module(name)).failed] == []


def test_shapes_of_outcomes_stand_in_the_middle_of_their_box() -> None:
    for outcome in Outcome:
        circles = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', str(glyph(outcome)))
        assert circles and all(float(x) == float(y) == 10 for x, y in circles)


@pytest.mark.parametrize(
    "height, other, above", [(60.0, 90.0, True), (60.0, 30.0, False), (BOTTOM - 5, 30.0, True)]
)
def test_a_name_stands_where_the_other_line_is_not_and_inside(
    height: float, other: float, above: bool
) -> None:
    found = re.search(r' y="([\d.]+)"', str(name_beside(height, other, "after the fix")))
    assert found is not None and (float(found[1]) < height) is above


def test_growths_of_a_pair_add_up_over_the_sites_of_a_block() -> None:
    trace = edgewise.predict(edgewise.transformer(depth=2, width=32, heads=2, tokens=4))
    growths = np.arange(1.0, 1 + len(trace.sites))[None]
    rows = statistics(replace(trace, statistics={"pair_growth": growths}))
    assert rows["pair_growth"] == [1.0, 2.0 + 3.0, 4.0 + 5.0]
