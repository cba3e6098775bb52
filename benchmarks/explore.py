"""The page of `edgewise explore`, asked over HTTP as a browser asks it, and opened in chromium where there is one."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.report import Cell, Findings, Goal, Table, Tell

SOURCES = {
    "transformer": {"preset": "transformer"},
    "gpt2, 64 tokens": {"preset": "gpt2"},
    "llama-2-7b, 32 tokens": {"preset": "llama-2-7b"},
}
AXES = {
    "x": {"knob": "mlp_in_gain", "low": 0.1, "high": 3},
    "y": {"knob": "attention_branch", "low": 0, "high": 1.25},
}
CLIENTS, POINTS = 10, 8


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """The shell's own command, at a free port: its address and its process."""
    command = [sys.executable, "-u", "-m", "edgewise", "explore", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        assert match is not None
        try:
            yield match[0], process.pid
        finally:
            process.terminate()


def cpu_seconds(process: int) -> float:
    """What server and workers have computed so far, which does not depend on what else runs here; 0 without /proc."""
    stats = {int(file.parent.name): _fields(file) for file in Path("/proc").glob("[0-9]*/stat")}
    own = [
        fields for each, fields in stats.items() if fields and (each == process or fields[1] == str(process))
    ]
    return sum(int(fields[11]) + int(fields[12]) for fields in own) / os.sysconf("SC_CLK_TCK")


def _fields(file: Path) -> list[str]:
    """State and parent first; none of a process that is gone by now."""
    try:
        return file.read_text().rpartition(")")[2].split()
    except OSError:
        return []


class Client:
    """One connection that stays open, as a browser's does."""

    def __init__(self, address: str, process: int = 0) -> None:
        self.process = process
        self.connection = HTTPConnection(urlsplit(address).netloc, timeout=120)

    def ask(self, path: str, body: dict[str, Any]) -> tuple[float, int]:
        """Seconds and bytes of one answer."""
        start = time.perf_counter()
        self.connection.request(
            "POST", f"/api/1/{path}", json.dumps(body), {"content-type": "application/json"}
        )
        answer = self.connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return time.perf_counter() - start, len(data)


def point(source: dict[str, Any], draw: random.Random, fixes: bool = False) -> dict[str, Any]:
    """A place that nobody has asked for before: answers are kept."""
    knobs = {"mlp_in_gain": draw.uniform(0.5, 2), "attention_branch": draw.uniform(0.1, 1)}
    return {"source": source, "knobs": knobs, "fixes": fixes}


def map_of(source: dict[str, Any], points: int, draw: random.Random) -> dict[str, Any]:
    x = {**AXES["x"], "high": 3 + draw.random()}
    return {"source": source, "x": x, "y": AXES["y"], "points": points}


def run(quick: bool, tell: Tell) -> Findings:
    draw, turns = random.Random(0), 3 if quick else 9
    with server() as (address, process):
        tell(0.0, "one client")
        client = Client(address, process)
        alone = [row for name, source in SOURCES.items() for row in _alone(client, name, source, turns, draw)]
        tell(0.5, "ten clients")
        crowd = _crowd(address, draw)
        tell(0.7, "points beside slow maps")
        beside = _beside(address, draw, turns)
        growing = _growing(address, draw)
        tell(0.9, "the first picture")
        first = _first_picture(address)
        reports = [[name, _report(address, source) / 1000] for name, source in SOURCES.items()]
    seconds = {(row[0], row[1]): row[2] for row in alone}
    tables = [
        Table(
            f"One client, median of {turns} answers that were not kept",
            ("network", "question", "s", "CPU s of the server", "kB"),
            alone,
        ),
        Table(
            "Ten clients at once, each a map of 64 x 64 and then eight points; and a point beside five slow maps",
            ("question", "median s", "worst s"),
            [*crowd, *beside],
        ),
        Table("The map of gpt2 with mask and positions, while it grows", ("picture", "s"), growing),
        Table("Report of a network", ("network", "kB"), reports),
    ]
    if first:
        tables.append(Table("Opened in chromium", ("what", "value"), first))
    return (
        tables,
        _goals(seconds, quick),
        [] if first else ["No chromium was found: the first picture was not timed."],
    )


def _alone(
    client: Client, name: str, source: dict[str, Any], turns: int, draw: random.Random
) -> list[list[Cell]]:
    questions: dict[str, Callable[[], tuple[float, int]]] = {
        "point": lambda: client.ask("point", point(source, draw)),
        "point with fixes": lambda: client.ask("point", point(source, draw, True)),
        "map, 12 x 12": lambda: client.ask("map", map_of(source, 12, draw)),
        "map, 64 x 64": lambda: client.ask("map", map_of(source, 64, draw)),
    }
    for question in questions.values():
        question()  # what is loaded at the first question is not counted
    rows: list[list[Cell]] = []
    for words, question in questions.items():
        before, count = cpu_seconds(client.process), turns if "point" in words else max(2, turns // 4)
        samples = [question() for _ in range(count)]
        used = (cpu_seconds(client.process) - before) / count
        rows.append(
            [name, words, median(s for s, _ in samples), used, median(size for _, size in samples) / 1000]
        )
    start, count = time.perf_counter(), 2 * turns
    for _ in range(count):
        questions["point"]()
    return [
        *rows,
        [name, "answers a second while dragging", count / (time.perf_counter() - start), None, None],
    ]


def _crowd(address: str, draw: random.Random) -> list[list[Cell]]:
    seeds = [draw.random() for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda seed: _one_of_many(address, random.Random(seed)), seeds))
    maps, points = [first for first, _ in answers], [each for _, rest in answers for each in rest]
    return [["map, 64 x 64", median(maps), max(maps)], ["point", median(points), max(points)]]


def _one_of_many(address: str, draw: random.Random) -> tuple[float, list[float]]:
    client, source = Client(address), SOURCES["transformer"]
    first = client.ask("map", map_of(source, 64, draw))[0]
    return first, [client.ask("point", point(source, draw))[0] for _ in range(POINTS)]


def _beside(address: str, draw: random.Random, turns: int) -> list[list[Cell]]:
    """Points of a network without positions, and of one with them, while maps with positions grow for five readers."""
    readers = [_stream(address, draw) for _ in range(5)]
    client, rows = Client(address), []
    for name in ("transformer", "gpt2, 64 tokens"):
        samples = [client.ask("point", point(SOURCES[name], draw))[0] for _ in range(2 * turns)]
        rows.append([f"point of {name} beside five slow maps", median(samples), max(samples)])
    for reader in readers:
        reader.close()  # which stops the maps
    return rows


def _stream(address: str, draw: random.Random) -> HTTPConnection:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=300)
    wanted = map_of(SOURCES["gpt2, 64 tokens"], 64, draw)
    del wanted["points"]
    connection.request(
        "POST", "/api/1/map/positions", json.dumps(wanted), {"content-type": "application/json"}
    )
    return connection


def _growing(address: str, draw: random.Random) -> list[list[Cell]]:
    """Seconds until each picture is there."""
    start, rows = time.perf_counter(), []
    answer = _stream(address, draw).getresponse()
    names = iter(("9 x 9 over 16 tokens", "9 x 9 over 64 tokens", "17 x 17 over 64 tokens"))
    while line := answer.readline():
        if b'"map"' in line:
            rows.append([next(names), time.perf_counter() - start])
    return rows


def _report(address: str, source: dict[str, Any]) -> int:
    return Client(address).ask("report", {"source": source})[1]


def _first_picture(address: str) -> list[list[Cell]]:
    """Seconds until the coarse map and the verdict are there, and the bytes that this took."""
    browser = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if browser is None:
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page, sizes = chromium.new_page(), []
        page.on("response", lambda answer: sizes.append(len(answer.body()) if answer.ok else 0))
        start = time.perf_counter()
        page.goto(f"{address}#/map?preset=transformer")
        page.wait_for_selector("path.iso", state="attached")
        coarse = time.perf_counter() - start
        page.wait_for_selector("#progress", state="hidden")
        fine, total = time.perf_counter() - start, sum(sizes)
        chromium.close()
    return [["s to the coarse map", coarse], ["s to the fine map", fine], ["kB in all", total / 1000]]


def _goals(seconds: dict[tuple[Cell, Cell], Cell], quick: bool) -> list[Goal]:
    wanted = [
        ("transformer", "point", 0.2),
        ("transformer", "map, 12 x 12", 0.3),
        ("transformer", "map, 64 x 64", 2.0),
        ("gpt2, 64 tokens", "point", 1.0),
        ("llama-2-7b, 32 tokens", "point", 1.0),
    ]
    goals = []
    for name, question, limit in wanted:
        found = seconds[name, question]
        assert isinstance(found, float)
        met = None if quick else found < limit
        goals.append(Goal(f"{question} of {name} in under {limit:g} s", f"{found:.2f} s", met))
    drag = seconds["transformer", "answers a second while dragging"]
    assert isinstance(drag, float)
    return [*goals, Goal("20 answers a second while dragging", f"{drag:.0f}", None if quick else drag >= 20)]
