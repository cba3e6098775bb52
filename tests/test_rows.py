"""Every row of the sources has an answer that exists, and research/rows.md is what the records give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.rows_page import PAGE, PICTURES, Answer, answers, counterexamples, page, rows

ROOT = Path(__file__).parents[1]
COUNTS = {"A": 39, "B": 17, "C": 42, "D": 11}
ROWS, ANSWERS = rows(), answers()


def test_there_are_109_rows() -> None:
    assert list(ROWS) == [f"{letter}{k}" for letter, count in COUNTS.items() for k in range(1, count + 1)]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_an_answer(name: str) -> None:
    assert len(ROWS[name]["says"]) > 8
    assert ANSWERS.get(name) or ROWS[name].get("where"), (
        "no recorded claim names it, and no part of the library does"
    )


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.get("where")])
def test_the_part_of_the_library_exists_and_is_tested(name: str) -> None:
    """`PATH NAME, NAME; TEST`: the files are there, and the names are defined in the first."""
    place, test = (part.strip() for part in ROWS[name]["where"].split(";"))
    path, _, names = place.partition(" ")
    source = (ROOT / path).read_text()
    for defined in filter(None, names.split(", ")):
        assert re.search(rf"(?:def|class) {defined}\b|^{defined}\b", source, re.MULTILINE), defined
    assert test.startswith("tests/") and "def test_" in (ROOT / test).read_text()


def test_every_line_of_the_page_is_whole() -> None:
    """A statement with what we found, a scale, an outcome, and a recipe with its picture or a file with its test."""
    lines = [line for line in page().splitlines() if re.match(r"\| ([A-D]\d+)? \|", line)]
    assert sum(not line.startswith("| |") for line in lines) == len(ROWS)
    for line in lines:
        _, _, _, ours, scale, outcome, where, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
        assert min(len(ours), len(scale)) > 8, line
        assert outcome.startswith(("held", "[not held](counterexamples.md#", "open", "tested")), line
        assert "[picture](../docs/images/rows/" in where or "`tests/" in where, line


def test_records_name_rows_that_exist_and_recipes_that_do() -> None:
    found = [(name, answer) for name, each in ANSWERS.items() for answer in each]
    assert {name for name, _ in found} <= set(ROWS)
    assert all((ROOT / answer.recipe).is_file() for _, answer in found)


def test_the_page_is_the_one_that_the_records_give() -> None:
    """After a change: python tools/rows_page.py."""
    assert PAGE.read_text(encoding="utf-8") == page()
    linked = set(re.findall(r"images/rows/([^)]+)\)", page()))
    assert linked
    assert all((PICTURES / name).is_file() for name in linked)


def test_what_did_not_hold_has_a_counterexample() -> None:
    """Under a heading that names the row, with its recipe; tests/test_docs.py runs them."""
    wanted = {
        (name, str(answer.recipe))
        for name, each in ANSWERS.items()
        for answer in each
        if answer.outcome == "not held"
    }
    assert wanted - set(counterexamples()) == set()


def test_an_outcome_is_said_in_a_word() -> None:
    outcomes = [Answer(Path("x.py"), {"held": held}).outcome for held in (True, False, None)]
    assert outcomes == ["held", "not held", "open"]
