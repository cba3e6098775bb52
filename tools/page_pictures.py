"""Take the pictures of docs/explore.md from the page itself: python tools/page_pictures.py [FOLDER]

Needs the extra `explore`, playwright and a chromium. The run that is shown is that of examples/watch_failing.py.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
SIZE = {"width": 1280, "height": 800}
PICTURES = {
    "explore_map": ("map?preset=torch-encoder&depth=24&tokens=64", "#fixes li .then", "#progress"),
    "explore_depth": ("depth?preset=torch-encoder&tokens=64", "button:enabled:text('Save numbers')", ".progress"),
    "explore_runs": ("runs?run=failing&with=healthy", ".run + .run .alarm", ".nothing"),
}


def take(browser: Any, address: str, folder: Path) -> list[Path]:
    """Every picture once its numbers are there; few colours, so that they stay small."""
    from PIL import Image

    paths = []
    for name, (route, there, gone) in PICTURES.items():
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.set_default_timeout(180_000)
        page.goto(f"{address}#/{route}")
        page.wait_for_selector(there)
        page.wait_for_selector(gone, state="hidden")
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(method=Image.Quantize.FASTOCTREE)
        image.save(path := folder / f"{name}.png", optimize=True)
        paths.append(path)
        page.close()
    return paths


def main(folder: Path) -> None:
    from examples.watch_failing import network, train
    from tests.support.browser import chromium, serving

    with tempfile.TemporaryDirectory() as home:
        train(network(), Path(home) / "failing", rate=3e-3)
        train(network(), Path(home) / "healthy", rate=3e-3, e_fold=None)
        with serving(home) as address, chromium() as browser:
            for path in take(browser, address, folder):
                print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
