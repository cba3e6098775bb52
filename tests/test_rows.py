"""Every row of the sources has an answer that exists, and research/rows.md is what the records give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from edgewise.study.results_file import judgement
from tools.rows_page import PAGE, PICTURES, answers, asked, counterexamples, page, rows, statements

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
    """A statement with what we found, a scale and a recipe with its picture; or a part of the library, its test."""
    rows_of_sources = page().partition("## What a referee asked for")[0]
    lines = [line for line in rows_of_sources.splitlines() if re.match(r"\| [A-D]\d+", line)]
    assert {name for line in lines for name in line.split("|")[1].strip().split(", ")} == set(ROWS)
    for line in lines:
        _, _, what, came, scale, where, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
        assert len(what) > 8, line
        assert "[picture](../docs/images/rows/" in where or "`tests/" in where, line
        if "[picture]" in where:
            assert min(len(came), len(scale)) > 8, line


def test_a_source_is_not_contradicted_without_its_own_sentence_and_an_interval() -> None:
    """What did not hold has a reading with its kind; "not held" has the numbers that exclude the effect."""
    for letter in COUNTS:
        for _, answer in statements(letter):
            judged = answer.judged
            if judged.ours or judged.outcome == "held":
                continue
            assert judged.reading, f"papers/readings.yaml lacks {answer.recipe}: {answer.claim['published']}"
            assert judged.reading["spoken"] and judged.reading["reading"]
            if judged.outcome == "not held":
                assert judged.reading["kind"] == "refuted" and re.search(r"\d", judged.reading["numbers"])
                (low, high), (least, most) = judged.reading["interval"], judged.reading["effect"]
                excluded = (least is not None and high < least) or (most is not None and low > most)
                assert low <= high and excluded, (
                    f"{answer.recipe}: the interval holds what the statement needs"
                )
                assert judged.reading["measured"]
            else:
                assert judged.reading["settle"], f"{answer.recipe}: what would settle it?"
                priced = "price" in judged.reading or re.search(
                    "proof|out of reach", judged.reading["settle"]
                )
                assert priced, f"{answer.recipe}: what would it cost?"


def test_a_reading_belongs_to_one_statement() -> None:
    table = yaml.safe_load((ROOT / "papers" / "readings.yaml").read_text())
    assert set(table.pop("learned")) == set(COUNTS)

    found = {(str(a.recipe.with_suffix("")), a.claim["published"]) for each in ANSWERS.values() for a in each}
    for recipe, entries in table.items():
        for entry in entries:
            named = [said for name, said in found if name == recipe and said.startswith(entry["starts"])]
            assert len(named) >= 1, f"{recipe}: no statement starts with {entry['starts']!r}"
            assert len(named) == 1 or entry["starts"].startswith("(our"), f"{recipe}: {named}"


def test_what_was_asked_for_is_settled_or_priced() -> None:
    """By a file with two commits, the criterion's and the result's; or missing with a price."""
    items = [item for each in asked().values() for item in each]
    assert [len(each) for each in asked().values()] == [12, 11, 15]
    for item in items:
        if "missing" in item:
            assert item["price"] > 0, item["what"]
        else:
            assert (ROOT / item["by"]).is_file() and len(item["came"]) > 8, item["what"]
            assert all(re.fullmatch("[0-9a-f]{8}", str(item[name])) for name in ("criterion", "result")), (
                item["what"]
            )


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
    for letter in COUNTS:
        for names, answer in statements(letter):
            if answer.outcome == "not held" and not answer.ours:
                assert any((name, str(answer.recipe)) in counterexamples() for name in names), answer.claim[
                    "published"
                ]


@pytest.mark.parametrize(
    ("recipe", "said", "held", "outcome", "ours"),
    [
        ("papers/x/y", "It converges.", True, "held", False),
        (
            "papers/x/y",
            "It converges.",
            False,
            "not held",
            False,
        ),  # a recipe of a user: nobody judged the reading
        ("papers/x/y", "It converges.", None, "open", False),
        ("papers/x/y", "(ours) It converges.", False, "not held", True),
        ("papers/x/y", "(our question) Does it?", None, "open", True),
        ("experiments/x/y", "It converges.", False, "not held", True),
        ("experiments/x/y", "It converges [talk].", False, "not held", False),
        (
            "papers/tarmoun2025softmax/opening_figure",
            "On LeNet-5 and ResNet-18 SGD performs at the level of Adam",
            False,
            "depends on the reading",
            False,
        ),
        (
            "papers/song2024kernels/pathfinder32",
            "The same, on Pathfinder of 32 x 32 pixels: it trains faster.",
            False,
            "open",
            False,
        ),
        (
            "papers/song2024kernels/pathfinder32",
            "The same, on Pathfinder of 32 x 32 pixels: it trains faster.",
            True,
            "held",
            False,
        ),
    ],
)
def test_outcomes(recipe: str, said: str, held: bool | None, outcome: str, ours: bool) -> None:
    judged = judgement(recipe, {"published": said, "held": held})
    assert (judged.outcome, judged.ours) == (outcome, ours)
