"""The map of the source: every module says on its first line what it is, and CONTRIBUTING has today's rooms."""

from __future__ import annotations

import pytest

from tools import source_map

LONGEST = 120  # letters of a first line
SCREEN = 100  # lines of CONTRIBUTING.md
# What somebody looks for, by words, and the file that has it.
IDEAS = {
    "exit codes": "cli/exit_codes.py",
    "--batch": "cli/options.py",
    "process pool": "explorer/process_pool.py",
    "Hessian": "landscape/hessian.py",
    "rebalancing": "landscape/support.py",
    "rotary": "optim/query_key.py",
    "synthetic": "rehearsal/short_training.py",
    "constant answer": "rehearsal/baseline.py",
    "Dask": "study/engine.py",
    "CIFAR-10": "study/tasks.py",
    "Lightning": "integrations/lightning.py",
}


@pytest.mark.parametrize(("path", "line"), source_map.modules().items(), ids=lambda value: str(value)[:40])
def test_a_module_begins_with_one_line_about_it(path: str, line: str) -> None:
    assert line and len(line) <= LONGEST, path
    assert line.endswith((".", "?", ":")), path


@pytest.mark.parametrize(("word", "path"), IDEAS.items())
def test_an_idea_is_found_by_its_words(word: str, path: str) -> None:
    assert path in source_map.find(word)


def test_contributing_has_the_rooms_of_today_and_fits_on_a_screen() -> None:
    text = source_map.CONTRIBUTING.read_text()
    assert text == source_map.contributing(), "run python tools/source_map.py --write"
    assert len(text.splitlines()) <= SCREEN


def test_the_page_names_every_module() -> None:
    page = source_map.page()
    assert all(f"`{path}`" in page for path in source_map.modules() if not path.endswith("__init__.py"))
