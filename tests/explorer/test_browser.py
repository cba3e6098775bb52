"""The page in a real browser: moved by mouse and keys, in both themes, at phone width; nothing leaves the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("EDGEWISE_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)
AXE = Path(__file__).parents[2] / "build" / "axe" / "package" / "axe.min.js"
pytestmark = pytest.mark.skipif(BROWSER is None, reason="NO BROWSER FOUND: `make browser` installs Debian's chromium")
SMALL = "?preset=transformer&depth=12&tokens=32"
WAIT = 60_000  # milliseconds


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The shell's own command, at a free port."""
    command = [sys.executable, "-u", "-m", "edgewise", "explore", "--port", "0"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert match is not None, line
        yield match[0]
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """A page that notes every complaint and every request to elsewhere."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.address, self.complaints, self.elsewhere = address, [], []  # type: ignore[var-annotated]
        self.page = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | options).new_page()
        self.page.set_default_timeout(WAIT)
        self.page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:")):
            self.elsewhere.append(url)

    def open(self, query: str) -> Any:
        self.page.goto(self.address + query)
        self.page.wait_for_selector("path.iso", state="attached")
        self.page.wait_for_selector("#progress", state="hidden")
        return self.page

    def close(self) -> None:
        assert self.complaints == [] and self.elsewhere == []
        self.page.context.close()


def outcome(page: Any) -> str:
    return str(page.inner_text("#chance"))


def test_the_dot_is_dragged_and_moved_by_keys_and_the_verdict_follows(browser: Any, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.open(SMALL)
    page.wait_for_selector("#fixes li")
    first = outcome(page)
    assert page.inner_text("#outcome") == "Trains" and "12 blocks" in page.inner_text("#meta")
    actions = page.locator(".actions").bounding_box()["y"]

    plot = page.locator("#heat").bounding_box()
    page.mouse.move(plot["x"] + 0.3 * plot["width"], plot["y"] + 0.3 * plot["height"])
    page.mouse.down()
    page.mouse.move(plot["x"] + 0.95 * plot["width"], plot["y"] + 0.05 * plot["height"], steps=5)
    page.mouse.up()
    page.wait_for_url("**at=*")
    sync_api.expect(page.locator("#chance")).not_to_have_text(first)
    far = outcome(page)
    assert page.locator(".actions").bounding_box()["y"] == actions  # nothing moves but what you move

    page.keyboard.press("Home")
    sync_api.expect(page.locator("#chance")).to_have_text(first)
    assert "at=" not in page.url
    page.keyboard.press("Shift+ArrowUp")
    page.wait_for_url("**at=*")
    page.fill("#x-value", "2.5")
    page.keyboard.press("Enter")
    page.wait_for_url("**at=2.5*")
    page.locator("#code-button").click()
    sync_api.expect(page.locator("#code")).to_contain_text("mlp_in_gain=2.5")
    page.locator("#simulate").click()
    sync_api.expect(page.locator("#drawn-note")).to_contain_text("one random network of width 256")
    assert page.locator("circle.drawn").count() >= 3 * 12
    assert far != first
    visit.close()


def test_an_address_brings_back_the_same_place(browser: Any, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.open(SMALL + "&x=value_gain&y=mlp_branch&at=2,0.5")
    assert (page.input_value("#x-knob"), page.input_value("#y-knob")) == ("value_gain", "mlp_branch")
    assert (page.input_value("#x-value"), page.input_value("#y-value")) == ("2", "0.5")
    visit.close()


def test_a_config_is_taken_and_another_refused_in_words(browser: Any, address: str, tmp_path: Path) -> None:
    visit = Visit(browser, address)
    page = visit.page
    page.goto(address)
    page.wait_for_selector("text=Put your model on the map")
    config = tmp_path / "mine.json"
    config.write_text(json.dumps({"depth": 14, "tokens": 24, "norm": "post", "activation": "tanh"}))
    page.set_input_files("#file", config)
    page.wait_for_selector("path.iso", state="attached")
    assert "mine · 14 blocks · post-norm" in page.inner_text("#meta").replace(".json", "")
    hostile = tmp_path / "<img src=x onerror=alert(1)>.json"
    hostile.write_text(json.dumps({"model_type": "<script>alert(1)</script>"}))
    visit.complaints.clear()
    page.set_input_files("#file", hostile)
    page.wait_for_selector("text=This cannot be shown")
    assert "alert(1)" in page.inner_text("#state") and page.locator("#state img, #state script").count() == 0
    assert page.inner_text("#outcome") == "No verdict" and page.locator("path.iso").count() == 0
    visit.complaints = [text for text in visit.complaints if "422" not in text]  # the browser's note of the refusal
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_scrolling_sideways(browser: Any, address: str, scheme: str) -> None:
    visit = Visit(browser, address, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = visit.open(SMALL)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(251, 251, 249)", "dark": "rgb(15, 19, 23)"}[scheme]
    visit.close()


def test_another_origin_can_neither_read_nor_start_anything(browser: Any, address: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>elsewhere</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        attempt = (
            "async ([url, options]) => { try { return (await fetch(url, options)).type } catch (error) "
            "{ return error.name } }"
        )
        body = json.dumps({"source": {"preset": "gpt2"}})
        for options in (
            {}, {"mode": "no-cors"}, {"method": "POST", "mode": "no-cors", "body": body},
            {"method": "POST", "body": body, "headers": {"content-type": "application/json"}},
        ):  # fmt: skip
            path = "api/1/point" if "body" in options else "api/1/catalogue"
            assert page.evaluate(attempt, [address + path, options]) == "TypeError", options
        page.close()
        other.shutdown()


@pytest.mark.skipif(not AXE.is_file(), reason="NO AXE-CORE FOUND: `make browser` fetches it")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_accessibility_violation_of_level_a_or_aa(browser: Any, address: str, scheme: str) -> None:
    visit = Visit(browser, address, color_scheme=scheme, bypass_csp=True)
    page = visit.open(SMALL)
    page.wait_for_selector("#fixes li")
    page.add_script_tag(content=AXE.read_text())
    tags = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
    violations = page.evaluate("async (tags) => (await axe.run(document, tags)).violations", tags)
    assert [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in violations] == []
    visit.close()
