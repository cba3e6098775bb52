"""The pictures of the page in the docs show what the page says now: `make screenshots` takes them again."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from tests.support.browser import BROWSER, NO_BROWSER
from tools import screenshots


def test_every_picture_is_made_by_the_tool_and_small_and_holds_its_words() -> None:
    names = screenshots.SHOTS | screenshots.OF_RUNS
    assert set(screenshots.IMAGES.glob("explore_*.png")) == {screenshots.file(name) for name in names}
    for name in names:
        assert screenshots.file(name).stat().st_size < 150_000
        assert len(screenshots.recorded(name)) > 200


def test_times_are_of_no_pictures_age() -> None:
    assert re.sub(screenshots.SECONDS, "", "64 tokens · theory, 0.31 s About") == "64 tokens · theory About"


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
@pytest.mark.slow
def test_no_picture_is_old() -> None:
    assert screenshots.old() == [], "`make screenshots` takes them again"
