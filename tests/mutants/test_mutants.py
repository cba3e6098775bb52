"""The lists of planted mistakes are true, and the page shows what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants import table
from tests.mutants.run import key, plant

HOME = Path(__file__).resolve().parents[2]


def test_a_mistake_replaces_the_line_that_is_meant() -> None:
    code = "a = 1\nb = a + 1\na = 1\n"
    assert plant({"before": "a = 1", "after": "a = 2", "line": 3}, code) == ("a = 1\nb = a + 1\na = 2\n", 3)
    assert plant({"before": "c = 1", "after": "c = 2", "line": 1}, code) is None


@pytest.mark.parametrize(
    "mutant", json.loads((table.HERE / "named.json").read_text()), ids=lambda mutant: mutant["name"]
)
def test_mistakes_with_a_name_can_still_be_made(mutant: dict[str, str]) -> None:
    """Whoever changes such a line changes the list too."""
    code = (HOME / mutant["file"]).read_text()
    assert code.split("\n").count(mutant["before"]) == 1
    assert mutant["before"] != mutant["after"]


def test_what_cannot_matter_has_a_reason_and_is_on_a_list() -> None:
    reasons = json.loads((table.HERE / "equivalent.json").read_text())
    files = [table.HERE / f"{name}.json" for name in (*table.LISTS, *table.WHOLE)]
    known = {key(mutant) for file in files if file.exists() for mutant in json.loads(file.read_text())}
    assert all(len(reason.split()) >= 4 for reason in reasons.values()) and not set(reasons) - known


def test_the_page_shows_the_recorded_results() -> None:
    assert table.BEGIN + table.markdown() + table.END in table.PAGE.read_text()
