"""The stories of docs/gallery.md run, stay short, and say what the page says."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STORIES = {
    "leak_found": "A norm averages over the tokens, not over the features of one token.   norm",
    "own_phase_diagram": "WILL NOT TRAIN",
    "spike_named": "The first alarm comes at step 112, the loss turns at step 185.",
    "rate_and_width": "width 128: Trains at ",
    "rescued_encoder": "The plan helps",
}
QUICK = ("own_phase_diagram", "leak_found")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in STORIES if name not in QUICK)]
)
def test_a_story(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_module(f"examples.stories.{name}").main(tmp_path)
    said = capsys.readouterr().out
    assert STORIES[name] in said
    assert [path for path in tmp_path.iterdir() if path.suffix in (".png", ".html")]


def test_the_page_has_every_story_and_each_is_short() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    files = sorted((ROOT / "examples" / "stories").glob("*.py"))
    assert {path.stem for path in files} == set(STORIES) == set(re.findall(r"examples\.stories\.(\w+)", page))
    assert all(len(path.read_text().splitlines()) < 40 for path in files)
