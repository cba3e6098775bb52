"""The page in a real browser: moved by mouse and keys, in both themes, at phone width; nothing leaves the machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import edgewise

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from tests.support.browser import AXE, BROWSER, NO_BROWSER, WAIT, Visit, chromium, serving, working  # noqa: E402

sync_api.expect.set_options(timeout=WAIT)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
SMALL = "?preset=transformer&depth=12&tokens=32"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def opened(visit: Visit, query: str) -> Any:
    """The page once its map is fine."""
    visit.page.goto(visit.address + query)
    visit.page.wait_for_selector("path.iso", state="attached")
    visit.page.wait_for_selector("#progress", state="hidden")
    return visit.page


def outcome(page: Any) -> str:
    return str(page.inner_text("#chance"))


def test_the_dot_is_dragged_and_moved_by_keys_and_the_verdict_follows(browser: Any, address: str) -> None:
    visit = Visit(browser, address)
    page = opened(visit, SMALL)
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
    sync_api.expect(page.locator("circle.drawn")).to_have_count(3 * 13)  # the input and twelve blocks
    assert far != first
    visit.close()


def test_an_address_brings_back_the_same_place(browser: Any, address: str) -> None:
    visit = Visit(browser, address)
    page = opened(visit, SMALL + "&x=value_gain&y=mlp_branch&at=2,0.5")
    assert (page.input_value("#x-knob"), page.input_value("#y-knob")) == ("value_gain", "mlp_branch")
    assert (page.input_value("#x-value"), page.input_value("#y-value")) == ("2", "0.5")
    visit.close()


def test_a_config_is_taken_and_another_refused_in_words(browser: Any, address: str, tmp_path: Path) -> None:
    visit = Visit(browser, address)
    page = visit.page
    page.goto(address)
    page.wait_for_selector("path.iso", state="attached")
    page.select_option("#preset", "")
    page.wait_for_selector("text=Put your model on the map")
    config = tmp_path / "mine.json"
    config.write_text(json.dumps({"depth": 14, "tokens": 24, "norm": "post", "activation": "tanh"}))
    page.set_input_files("#file", config)
    page.wait_for_selector("path.iso", state="attached")
    assert "mine · 14 blocks · post-norm" in page.inner_text("#meta").replace(".json", "")
    edgewise.predict(edgewise.transformer(depth=3, tokens=8).replace(name="saved")).save(
        tmp_path / "saved.npz"
    )
    page.set_input_files("#file", tmp_path / "saved.npz")
    sync_api.expect(page.locator("#note")).to_contain_text(
        "The dot is the description (saved) of a predicted trace"
    )
    sync_api.expect(page.locator("#meta")).to_contain_text("saved · 3 blocks")
    hostile = tmp_path / "<img src=x onerror=alert(1)>.json"
    hostile.write_text(json.dumps({"model_type": "<script>alert(1)</script>"}))
    visit.complaints.clear()
    page.set_input_files("#file", hostile)
    page.wait_for_selector("text=This cannot be shown")
    assert "alert(1)" in page.inner_text("#state") and page.locator("#state img, #state script").count() == 0
    assert page.inner_text("#outcome") == "No verdict" and page.locator("path.iso").count() == 0
    visit.complaints = [
        text for text in visit.complaints if "422" not in text
    ]  # the browser's note of the refusal
    visit.close()


def test_a_slow_map_shows_progress_and_stops_when_cancelled_or_left(browser: Any, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.page
    page.goto(address + "#/map?preset=gpt2&tokens=128")
    cancel = page.locator("#progress button")
    sync_api.expect(cancel).to_have_text("Cancel")
    page.wait_for_function("() => document.querySelector('#progress progress').value > 0")
    cancel.click()
    sync_api.expect(cancel).to_have_text("Go on")
    assert "leaves mask and positions out" in page.inner_text("#caption")
    resting(page)
    cancel.click()
    sync_api.expect(cancel).to_have_text("Cancel")
    page.locator("#views a", has_text="Papers").click()
    page.wait_for_selector(".record")
    resting(page)
    visit.close()


def resting(page: Any) -> None:
    """Soon no worker computes."""
    for _ in range(40):
        before = working()
        page.wait_for_timeout(500)
        if working() - before < 0.05:
            return
    raise AssertionError("workers go on although nobody waits for them")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_scrolling_sideways(browser: Any, address: str, scheme: str) -> None:
    visit = Visit(browser, address, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = opened(visit, SMALL)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(251, 251, 249)", "dark": "rgb(15, 19, 23)"}[scheme]
    visit.close()


def test_another_origin_can_neither_read_nor_start_anything(
    browser: Any, address: str, tmp_path: Path
) -> None:
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
            {},
            {"mode": "no-cors"},
            {"method": "POST", "mode": "no-cors", "body": body},
            {"method": "POST", "body": body, "headers": {"content-type": "application/json"}},
        ):
            path = "api/1/point" if "body" in options else "api/1/catalogue"
            assert page.evaluate(attempt, [address + path, options]) == "TypeError", options
        page.close()
        other.shutdown()


@pytest.mark.skipif(not AXE.is_file(), reason="NO AXE-CORE FOUND: `make browser` fetches it")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_accessibility_violation_of_level_a_or_aa(browser: Any, address: str, scheme: str) -> None:
    visit = Visit(browser, address, color_scheme=scheme, bypass_csp=True)
    page = opened(visit, SMALL)
    page.wait_for_selector("#fixes li")
    assert visit.violations() == []
    visit.close()


def test_a_first_visit_opens_with_a_model_its_fix_a_run_and_a_tour(browser: Any, address: str) -> None:
    """Nothing waits for a file: a network that will not train, and one click that moves it to where it does."""
    visit = Visit(browser, address, tour=True)
    page = visit.page
    page.goto(address)
    page.wait_for_selector("#fixes li button")
    assert "torch-encoder · 48 blocks" in page.inner_text("#meta")
    assert page.inner_text("#outcome") == "Will not train"
    page.locator("#fixes li button").first.click()
    sync_api.expect(page.locator("#outcome")).to_have_text("Trains")
    tour = page.locator(".tour")
    for view, sign in (("depth", "#depth"), ("runs", ".run .alarm"), ("papers", "main h1")):
        tour.locator("button.primary").click()
        page.wait_for_url(f"**/#/{view}*")
        page.wait_for_selector(sign, state="attached")
    assert "4 of 4" in tour.inner_text()
    tour.locator("button.primary").click()
    assert tour.count() == 0
    page.reload()
    page.wait_for_selector("main h1")
    assert tour.count() == 0, "a tour that was closed stays closed"
    page.click("#tour")
    assert "1 of 4" in tour.inner_text()
    page.goto(address + "#/landscape")
    sync_api.expect(page.locator("main canvas")).to_have_count(2)
    assert visit.complaints == [] and visit.elsewhere == []
    visit.close()
