"""research/families.md shows what is found today."""

from __future__ import annotations

import pytest

from tests.support.families_table import PAGE, lines_of, page

SOME = ("gpt2", "mixtral", "t5", "torch_post")  # every kind of line, few classes to import


def test_lines_of_some_families_are_current() -> None:
    shown, lines = PAGE.read_text().splitlines(), lines_of(SOME)
    assert len(lines) == 2 * 3 + 1
    assert not [line for line in lines if line not in shown], "run `python -m tests.support.families_table`"


@pytest.mark.slow
def test_the_tables_are_current() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.support.families_table` and look at what changed"
