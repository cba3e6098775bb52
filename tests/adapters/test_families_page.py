"""docs/families.md shows what is found today."""

from __future__ import annotations

from tests.support.families_table import PAGE, page


def test_the_tables_are_current() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.support.families_table` and look at what changed"
