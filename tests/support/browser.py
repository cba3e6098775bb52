"""A real browser for tests of the page: the shell's own server, visits that note every complaint, axe-core."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("EDGEWISE_BROWSER") or next(
    (path for name in NAMES if (path := shutil.which(name))), None
)
NO_BROWSER = "NO BROWSER FOUND: `make browser` installs Debian's chromium"
AXE = Path(__file__).parents[2] / "build" / "axe" / "package" / "axe.min.js"
LEVELS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
WAIT = 60_000  # milliseconds


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """`edgewise explore` at a free port, and its address."""
    command = [sys.executable, "-u", "-m", "edgewise", "explore", "--port", "0", *arguments]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert match is not None, line
        try:
            yield match[0]
        finally:
            server.terminate()


def working() -> float:
    """Seconds that the worker processes of servers started here have computed so far."""
    servers = children(os.getpid())
    workers = [child for server in servers for child in children(server)]
    ticks = [fields for worker in workers if (fields := _stat(worker))]
    return sum(int(fields[11]) + int(fields[12]) for fields in ticks) / os.sysconf("SC_CLK_TCK")


def children(process: int) -> list[int]:
    """By /proc; none where the system has none."""
    every = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [each for each in every if (fields := _stat(each)) and fields[1] == str(process)]


def alive(process: int) -> bool:
    """Neither gone nor a zombie that nobody has asked about."""
    return bool(fields := _stat(process)) and fields[0] != "Z"


def _stat(process: int) -> list[str]:
    """State and parent first; nothing of a process that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


TOUR_CLOSED = "localStorage.setItem('edgewise: tour closed', '1')"


class Visit:
    """A page that notes every complaint and every request to elsewhere."""

    def __init__(self, browser: Any, address: str, tour: bool = False, **options: Any) -> None:
        self.address = address
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page = browser.new_context(**{"viewport": DESKTOP} | options).new_page()
        if not tour:  # as on every visit after it was closed
            self.page.add_init_script(TOUR_CLOSED)
        self.page.set_default_timeout(WAIT)
        self.page.on(
            "console", lambda message: message.type == "error" and self.complaints.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:")):
            self.elsewhere.append(url)

    def violations(self) -> list[tuple[str, list[str]]]:
        """What axe-core finds of level A and AA; the visit needs `bypass_csp=True`."""
        if self.page.evaluate("typeof axe") == "undefined":
            self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("async (tags) => (await axe.run(document, tags)).violations", LEVELS)
        return [(item["id"], [node["html"][:120] for node in item["nodes"]]) for item in found]

    def check_everywhere(self) -> None:
        """No violation in either theme, and no scrolling sideways on a phone."""
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme)
            assert not AXE.is_file() or self.violations() == []
        self.page.set_viewport_size(PHONE)  # pictures are drawn again once the page has been laid out
        self.page.wait_for_function(
            "width => document.documentElement.scrollWidth <= width", arg=PHONE["width"]
        )

    def close(self) -> None:
        assert self.complaints == [] and self.elsewhere == []
        self.page.context.close()
