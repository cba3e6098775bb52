"""Take the pictures of `edgewise explore` that the docs show, from the page as it is.

    python tools/screenshots.py          write docs/images/explore_*.png (needs a browser: `make browser`)
    python tools/screenshots.py --check  say which of them show other words than the page has now

Every picture holds the words that were on the page, so that an old one is known by its content.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from tests.support.browser import DESKTOP, TOUR_CLOSED, WAIT, chromium, serving  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MAP = "map?preset=torch-encoder&depth=48&tokens=64"
SHOTS = {  # name: address, theme, what is there once the page is complete
    "map_light": (MAP, "light", "#fixes li"),
    "map_dark": (MAP, "dark", "#fixes li"),
    "depth": ("depth?preset=torch-encoder&tokens=64", "light", "button:enabled:text('Save numbers')"),
    "flow": ("flow?mlp_in_gain=3", "light", ".outcome.small svg"),
    "perceptron": ("perceptron?w=4&layer=6", "light", "path.strand"),
    "simplex": ("simplex", "light", "path.way.natural"),
}
# Numbers of a training differ a little between machines, so that its picture has no words to compare.
OF_RUNS = {"runs": ("runs?run=failing&with=healthy", "light", ".run + .run .alarm")}
COLOURS = 255  # of a palette, which keeps a picture small
SECONDS = re.compile(r", \d+\.\d+ s\b")  # how long an answer took is of no picture's age


def shots(wanted: Mapping[str, tuple[str, str, str]], *folder: str) -> Iterator[tuple[str, Any, str]]:
    """Name, page and its words, each page complete."""
    with serving(*folder) as address, chromium() as browser:
        for name, (route, theme, sign) in wanted.items():
            page = browser.new_context(
                viewport=DESKTOP, color_scheme=theme, reduced_motion="reduce"
            ).new_page()
            page.add_init_script(TOUR_CLOSED)
            page.set_default_timeout(3 * WAIT)
            page.goto(f"{address}#/{route}")
            page.wait_for_selector(sign, state="attached")
            page.wait_for_load_state("networkidle")
            if page.locator("#progress").count():
                page.wait_for_selector("#progress", state="hidden")
            page.wait_for_timeout(500)
            yield name, page, words(page)
            page.context.close()


def words(page: Any) -> str:
    """What can be read on the page, without times."""
    return " ".join(SECONDS.sub("", page.inner_text("main")).split())


def file(name: str) -> Path:
    return IMAGES / f"explore_{name}.png"


def write() -> None:
    from examples.watch_failing import network, train

    with tempfile.TemporaryDirectory() as home:
        train(network(), Path(home) / "failing", rate=3e-3)
        train(network(), Path(home) / "healthy", rate=3e-3, e_fold=None)
        for name, page, text in shots(SHOTS | OF_RUNS, home):
            save(name, page, text)


def save(name: str, page: Any, text: str) -> None:
    """The picture in few colours, with the words that are on it."""
    notes = PngInfo()
    notes.add_itxt("words", text)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(file(name), optimize=True, pnginfo=notes)


def old() -> list[str]:
    """Pictures that are missing, or show other words than the page."""
    return [name for name, _, text in shots(SHOTS) if not file(name).is_file() or recorded(name) != text]


def recorded(name: str) -> str:
    with Image.open(file(name)) as picture:
        picture.load()
        return str(picture.info.get("words", ""))


if __name__ == "__main__":
    if "--check" in sys.argv:
        outdated = old()
        print(
            f"old: {', '.join(outdated)}. `make screenshots` takes them again."
            if outdated
            else "all are current"
        )
        sys.exit(bool(outdated))
    write()
