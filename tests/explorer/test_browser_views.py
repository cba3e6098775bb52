"""Flow, Perceptron, Simplex and Landscape in a real browser: by mouse and keys, both themes, phone width."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from tests.explorer.test_landscape import bowl, store  # noqa: E402
from tests.support.browser import BROWSER, NO_BROWSER, WAIT, Visit, chromium, serving  # noqa: E402

sync_api.expect.set_options(timeout=WAIT)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("planes")
    store(folder / "smooth.npz", bowl())
    store(folder / "rough.npz", bowl(waves=0.3))
    (folder / "<img src=x onerror=alert(1)>.npz").write_text("not a zip")
    with serving(str(folder)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def visited(browser: Any, address: str, route: str, **options: Any) -> Visit:
    visit = Visit(browser, address, bypass_csp=True, **options)
    visit.page.goto(f"{address}#/{route}")
    return visit


def heading(page: Any, words: str) -> None:
    sync_api.expect(page.locator("h1")).to_have_text(words)


def drag(page: Any, box: dict[str, float], start: tuple[float, float], end: tuple[float, float]) -> None:
    """From one place of a box to another, as shares of its width and height."""
    first, last = ([box["x"] + x * box["width"], box["y"] + y * box["height"]] for x, y in (start, end))
    page.mouse.move(*first)
    page.mouse.down()
    page.mouse.move(*last, steps=4)
    page.mouse.up()


def test_flow(browser: Any, address: str) -> None:
    """A slider splits the fixed point; a path starts where one presses; keys and the address do the same."""
    visit = visited(browser, address, "flow")
    page = visit.page
    page.get_by_text("torch-encoder · 48 blocks").wait_for()  # what the page opens with
    page.locator("#preset").select_option("a plain block")
    page.get_by_text("a plain block · 24 blocks").wait_for()
    heading(page, "All tokens end alike")
    assert page.locator("circle.rest").count() == 1
    page.locator("#slide-mlp_in_gain").focus()
    for _ in range(10):
        page.keyboard.press("PageUp")
    heading(page, "Tokens settle apart")
    assert page.locator("circle.rest").count() == 2
    page.wait_for_url("**mlp_in_gain=*")
    drag(page, page.locator(".layers").bounding_box(), (0.5, 0.5), (0.8, 0.2))
    page.wait_for_url("**from=*")
    place = page.url.partition("from=")[2]
    page.locator(".dot").focus()
    page.keyboard.press("Shift+ArrowLeft")
    page.wait_for_function("before => !location.href.endsWith(before)", arg=place)
    sync_api.expect(page.locator(".outcome.small")).not_to_be_empty()
    again = visited(browser, address, page.url.partition("#/")[2])
    heading(again.page, "Tokens settle apart")
    again.close()
    page.get_by_text("Back to the block as given").click()
    heading(page, "All tokens end alike")
    page.locator("#preset").select_option("gpt2")
    heading(page, "The stream grows")
    sync_api.expect(page.locator("figcaption")).to_contain_text("positions are left out")
    visit.check_everywhere()
    visit.close()


def test_perceptron(browser: Any, address: str) -> None:
    """The layer steps by keys and by itself, the dot moves through order and chaos, a draw has its own seed."""
    visit = visited(browser, address, "perceptron?w=1.5&b=0.05&layer=2")
    page = visit.page
    heading(page, "Order: inputs merge")
    page.locator("path.strand").wait_for()
    first = page.locator("path.strand").get_attribute("d")
    page.locator("#layer").focus()
    page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator(".bar output")).to_have_text("3 of 16")
    assert page.locator("path.strand").get_attribute("d") != first
    page.locator(".bar button").click()
    sync_api.expect(page.locator(".bar button")).to_have_text("Pause")
    sync_api.expect(page.locator(".bar output")).to_have_text("5 of 16")
    page.locator(".bar button").click()
    drag(page, page.locator(".layers").first.bounding_box(), (0.4, 0.5), (0.9, 0.7))
    heading(page, "Chaos: inputs part")
    page.wait_for_url("**w=5*")
    page.get_by_text("Draw another random network").click()
    page.wait_for_url("**seed=1*")
    page.locator("#activation").select_option("relu")
    heading(page, "Signals explode")
    visit.check_everywhere()
    visit.close()


def test_perceptron_stands_still_where_motion_is_not_wanted(browser: Any, address: str) -> None:
    visit = visited(browser, address, "perceptron?layer=2", reduced_motion="reduce")
    button = visit.page.locator(".bar button")
    sync_api.expect(button).to_have_text("Next layer")
    button.click()
    visit.page.wait_for_timeout(900)
    sync_api.expect(visit.page.locator(".bar output")).to_have_text("3 of 16")
    visit.close()


def test_simplex(browser: Any, address: str) -> None:
    """Three paths; start and target move by mouse and keys; orthogonal keys join gradient and replicator."""
    visit = visited(browser, address, "simplex?mixing=0")
    page = visit.page
    sync_api.expect(page.locator("h1")).to_contain_text("natural gradient is")
    assert page.locator("path.way").count() >= 3
    sync_api.expect(page.locator(".say")).to_contain_text("exactly as the replicator does")
    sync_api.expect(page.locator(".picture .box svg[role=img]").first).to_be_attached()
    page.get_by_text("Into a corner").click()
    page.wait_for_url("**target=1%2C0%2C0*")
    page.locator(".dot:not(.goal)").focus()
    page.keyboard.press("Shift+ArrowDown")
    page.wait_for_function("() => !location.href.includes('start=0.02')")
    page.locator("#slide-mixing").focus()
    page.keyboard.press("End")
    page.wait_for_url("**mixing=1*")
    sync_api.expect(page.locator(".say")).to_contain_text("away from orthogonal")
    visit.check_everywhere()
    visit.close()


def test_landscape(browser: Any, address: str) -> None:
    """Two surfaces turn together by mouse and keys; a hostile file is refused in words."""
    visit = visited(browser, address, "landscape?left=smooth.npz&right=rough.npz")
    page = visit.page
    heading(page, "rough.npz is rougher")
    assert page.locator("canvas.relief").count() == 2
    drag(page, page.locator("canvas.relief").first.bounding_box(), (0.5, 0.5), (0.8, 0.5))
    page.wait_for_function("() => !location.href.includes('turn=35')")
    turned = page.locator("#slide-turn").input_value()
    page.locator("canvas.relief").last.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#slide-turn").input_value() == str(int(turned) + 5)
    visit.check_everywhere()
    page.set_viewport_size({"width": 1440, "height": 900})
    page.locator("#left").select_option("<img src=x onerror=alert(1)>.npz")
    page.get_by_text("This plane cannot be shown").wait_for()
    assert page.locator(".state img").count() == 0
    visit.complaints = [text for text in visit.complaints if "422" not in text]
    visit.close()


def test_a_page_without_planes_says_what_to_do(browser: Any, tmp_path: Path) -> None:
    with serving(str(tmp_path)) as address:
        visit = visited(browser, address, "landscape")
        sync_api.expect(visit.page.locator("canvas.relief")).to_have_count(2)  # it opens with both examples
        visit.page.get_by_text("Your own planes").wait_for()
        assert "landscape.plane(" in visit.page.inner_text("pre")
        left = visit.page.locator("#left").input_value()
        late = []  # the answer about the right plane alone comes after nothing is chosen any more
        visit.page.route("**/api/**landscape*", lambda route: late.append(route))
        for side in ("left", "right"):
            visit.page.locator(f"#{side}").select_option("")
        visit.page.get_by_text("No planes yet").wait_for()
        for route in late:
            with contextlib.suppress(sync_api.Error):  # one that the page has given up
                route.continue_()
        visit.page.wait_for_timeout(1000)
        visit.page.unroute("**/api/**landscape*")
        sync_api.expect(visit.page.get_by_text("No planes yet")).to_be_visible()
        assert "landscape.plane(" in visit.page.inner_text("pre")
        visit.page.get_by_role("button", name="Show an example").click()
        sync_api.expect(visit.page.locator("canvas.relief")).to_have_count(1)
        visit.page.locator("#left").select_option(left)
        sync_api.expect(visit.page.locator("canvas.relief")).to_have_count(1)
        visit.check_everywhere()
        visit.close()
