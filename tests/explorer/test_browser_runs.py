"""Depth, Runs and Papers in a real browser, and all views by keyboard alone under the page's own policy."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from edgewise.monitor.run_folder import RunFolder  # noqa: E402
from tests.support.browser import BROWSER, NO_BROWSER, WAIT, Visit, chromium, serving  # noqa: E402
from tests.support.run_folders import ABOUT, ALARM, COLUMNS, NAMES, value, write  # noqa: E402

sync_api.expect.set_options(timeout=WAIT)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "old", 12, alarm=True)
    (folder / HOSTILE).mkdir()
    (folder / HOSTILE / "run.json").write_text("[]")
    return folder


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with serving(str(home)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def visited(browser: Any, address: str, route: str, **options: Any) -> Visit:
    visit = Visit(browser, address, **{"bypass_csp": True, **options})
    visit.page.goto(f"{address}#/{route}")
    return visit


def table(page: Any, button: str) -> list[dict[str, str]]:
    """The file that a button downloads."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).first.click()
    return list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))


def test_depth(browser: Any, address: str) -> None:
    """The block first, then its fixes; the numbers of the picture are downloaded; another depth asks again."""
    visit = visited(browser, address, "depth?preset=torch-encoder&tokens=16")
    page = visit.page
    sync_api.expect(page.get_by_role("button", name="Save numbers")).to_be_enabled()
    limit = page.inner_text("h1")
    assert limit.startswith("Up to ") and page.locator("path.curve.fix-1").count() >= 1
    assert "edgewise.initialize_(model)" in page.inner_text(".fixes")
    rows = table(page, "Save numbers")
    first = [row for row in rows if row["network"] == "as it is"]
    deepest = int(limit.split()[2])
    assert all(float(row["share"]) >= 0.75 for row in first if int(row["blocks"]) <= deepest)
    assert any(float(row["share"]) < 0.75 for row in first if int(row["blocks"]) == deepest + 1)
    page.fill("#depth", str(deepest + 4))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**depth={deepest + 4}*")
    sync_api.expect(page.locator(".meta")).to_contain_text(f"{deepest + 4} blocks")
    visit.check_everywhere()
    visit.close()


def test_a_run_is_followed_while_it_grows(browser: Any, address: str, home: Path) -> None:
    """Rows, an alarm and the end appear by themselves; a cursor goes through; a second run stands beside it."""
    folder = RunFolder(home / "growing", COLUMNS, about=ABOUT)
    folder.event("start", "watching Tiny.")
    append(folder, range(3))
    visit = visited(browser, address, "runs")
    page, note = visit.page, visit.page.locator(".run .meta")
    sync_api.expect(note).to_contain_text(
        "3 rows, to step 2 · going on"
    )  # the run that is going on is chosen
    sync_api.expect(page.locator(".alarm")).to_contain_text("No alarm")
    append(folder, range(3, 9))
    sync_api.expect(note).to_contain_text("9 rows, to step 8 · going on")
    details = {key: item for key, item in ALARM.json().items() if key not in ("kind", "step")}
    folder.event("alarm", str(ALARM), 7, alarm=ALARM.kind.value, **details)
    sync_api.expect(page.locator(".alarm h2")).to_have_text("Logit growth in block 1, head 0.")
    assert page.locator("line.alarm-line").count() == 3
    folder.event("stop", "ended.")
    folder.close()
    sync_api.expect(note).to_contain_text("9 rows, to step 8 · ended")

    page.locator(".run .box[role=slider]").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator(".readout")).to_contain_text(
        "step 1 · largest logit 2 (block 0) · loss 2.99"
    )
    page.locator("#with").select_option("old")
    page.wait_for_url("**with=old*")
    sync_api.expect(page.locator(".run")).to_have_count(2)
    sync_api.expect(page.locator(".run .meta").last).to_contain_text("12 rows")
    rows = table(page, "Save table")
    assert len(rows) == 9 and float(rows[3]["block.1.largest_logit"]) == 8.0
    visit.check_everywhere()
    visit.close()


def append(folder: RunFolder, steps: range) -> None:
    for step in steps:
        folder.append(step, np.array([value(step, name) for name in NAMES], np.float32))
    folder.flush()


def test_a_rehearsed_run_shows_how_far_its_steps_are_from_the_edge(
    browser: Any, address: str, home: Path
) -> None:
    """A real rehearsal and a real training whose rate grows beyond it; the report of the run is a file."""
    highest = rehearsed(home / "rehearsed")
    assert highest > 1
    visit = visited(browser, address, "runs?run=rehearsed")
    page = visit.page
    title = page.get_by_role("heading", name="Step against the rehearsed edge")
    sync_api.expect(title).to_be_visible()
    figure = page.locator("figure", has=title)
    sync_api.expect(figure.locator("path.curve")).to_have_count(1)
    sync_api.expect(figure.locator("text", has_text="healthy below")).to_be_visible()
    sync_api.expect(page.locator(".readout")).to_contain_text("step against the rehearsed edge")
    assert "not observed" not in page.inner_text(".readout") and "(step 20)" in page.inner_text(".readout")
    with page.expect_download() as download:
        page.get_by_role("button", name="Report").click()
    report = Path(download.value.path()).read_text()
    assert (
        "Step against the rehearsed edge" in report and "rehearsed · " in report and "<script" not in report
    )
    visit.check_everywhere()
    visit.close()


def rehearsed(folder: Path) -> float:
    """A watched run held against a rehearsal, and its largest step in units of that at the edge."""
    import torch

    import edgewise
    from examples.watch_failing import network, sequences

    model, criterion, drawn = network(), torch.nn.CrossEntropyLoss(), torch.Generator().manual_seed(1)
    batches = [sequences(4, drawn) for _ in range(25)]

    def loss(model: Any, x: Any) -> Any:
        return criterion(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    rate = edgewise.learning_rate(
        model, batches, loss, optimizer=torch.optim.AdamW, steps=4, rates=3, progress=False
    )
    assert rate.best is not None
    optimizer = torch.optim.AdamW(model.parameters(), rate.best)
    with edgewise.watch(model, to=folder, criterion=criterion, quiet=True, rate=rate, everything=True):
        for step, x in enumerate(batches):
            optimizer.param_groups[0]["lr"] = rate.best * 1.25**step
            optimizer.zero_grad()
            loss(model, x).backward()
            optimizer.step()
    rows = edgewise.read(folder, frame=False)
    return float(np.nanmax(rows["stream_change_of_edge"]))


def test_a_hostile_run_is_named_with_the_reason(browser: Any, address: str) -> None:
    visit = visited(browser, address, "runs?run=old")
    page = visit.page
    sync_api.expect(page.locator(".alarm h2")).to_be_visible()
    page.get_by_role("button", name=HOSTILE).click()
    sync_api.expect(page.locator(".refused")).to_contain_text("is not the folder of a watched run")
    assert page.locator("main img").count() == 0
    visit.complaints = [
        text for text in visit.complaints if "422" not in text
    ]  # the browser's note of the refusal
    visit.close()


def test_papers(browser: Any, address: str) -> None:
    """Statements are filtered by source, outcome and words, kept in the address; a figure opens; a table is saved."""
    visit = visited(browser, address, "papers")
    page = visit.page
    sync_api.expect(page.locator("h1")).to_contain_text("held")
    everything = page.locator(".statement").count()
    page.locator("#papers-outcome").select_option("not held")
    page.locator("#papers-words").fill("condition")
    page.wait_for_url("**outcome=not+held&words=condition*")
    rows = table(page, "Save table")
    assert 0 < len(rows) == page.locator(".statement").count() < everything
    assert {row["outcome"] for row in rows} == {"not held"}
    page.get_by_role("button", name="Figure").first.click()
    page.wait_for_function("() => document.querySelector('.record-figure img')?.naturalWidth > 100")
    visit.check_everywhere()
    visit.close()


def test_every_view_is_reached_by_keyboard_under_the_policy_of_the_page(browser: Any, address: str) -> None:
    visit = visited(browser, address, "papers", bypass_csp=False)
    page = visit.page
    page.locator("h1").wait_for()
    names = page.locator("#views a").all_inner_texts()
    assert names == ["Map", "Depth", "Flow", "Perceptron", "Simplex", "Runs", "Landscape", "Papers"]
    for number, name in enumerate(names):
        page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
        page.locator(".skip").focus()
        for _ in range(2 + number):  # the mark, then the bar
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        sync_api.expect(page.locator("#views a[aria-current]")).to_have_text(name)
        page.wait_for_function("name => document.title.startsWith(name)", arg=name)
        sync_api.expect(page.locator("main h1").first).not_to_be_empty()
        assert page.evaluate("document.activeElement.id") == "main"
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main" and "#/papers" in page.url
    visit.close()
