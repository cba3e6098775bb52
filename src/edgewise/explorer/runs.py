"""Runs view: watched runs as pictures with alarms, a stream while they grow; saved traces dropped on the page."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.requests import Request as HttpRequest

from edgewise.errors import BadInput
from edgewise.explorer.answers import as_bytes
from edgewise.explorer.requests import PageRequest, from_config
from edgewise.explorer.responses import ERRORS, attachment, in_turn, json_reply
from edgewise.files import Document, read_arrays, read_json
from edgewise.monitor.read_run import Run, ended
from edgewise.present import run_files, run_report
from edgewise.present.run_files import picture
from edgewise.present.run_report import MOST_ALARMS, alarms, note, state, unseen, unseen_at_a_glance

router = APIRouter()
EVERY = 1.0  # seconds between two reads of a growing run
STREAM_SECONDS = 600.0  # then the browser asks again
MOST_STREAMS = 20
LARGEST_TABLE = 3_000_000  # numbers
Name = Annotated[str, Field(max_length=400)]
Rank = Annotated[int, Field(ge=0, lt=10_000)]
leaving = threading.Event()  # set when the server is being stopped
_streams = 0
LARGEST_TRACE = 280_000  # bytes of the file
LARGEST_META = 2**22  # bytes, once unpacked: numpy has four for a letter
META = "meta"
EXAMPLES = Path(__file__).parent / "examples" / "runs"  # shown if there are no others; tools/page_examples.py


class TableRequest(PageRequest):
    """A run of the list, and which process of it."""

    name: Name
    rank: Rank = 0


class RunRequest(TableRequest):
    """statistic: what the heat map shows; the largest logit, or the first that was seen, unless given."""

    statistic: Annotated[str, Field(max_length=60)] | None = None


def folder_of(request: HttpRequest) -> Path:
    """Return the folder that the page was started with if it holds runs, else the example that comes with edgewise."""
    folder: Path | None = getattr(request.app.state, "folder", None)
    return folder if folder is not None and run_files.names(folder) else EXAMPLES


@router.get("/runs")
def runs(request: HttpRequest) -> Response:
    """Return the runs below the folder that the page was started with."""
    return json_reply(in_turn(lambda: as_bytes(listing(folder_of(request)))))


@router.post("/run", responses=ERRORS)
def run(wanted: RunRequest, request: HttpRequest) -> Response:
    """Return one run: a heat map of blocks by steps, curves, alarms."""
    return json_reply(in_turn(lambda: as_bytes(answer(folder_of(request), wanted))))


@router.post("/run/table", responses=ERRORS, response_class=Response)
def table(wanted: TableRequest, request: HttpRequest) -> Response:
    """Return the rows of a run as a CSV file."""
    return attachment(in_turn(lambda: csv(folder_of(request), wanted)), "rows.csv", "csv")


@router.post("/run/report", responses=ERRORS, response_class=Response)
def report(wanted: TableRequest, request: HttpRequest) -> Response:
    """Return the report of a run, as a file: the page of `edgewise report RUN`."""
    return attachment(in_turn(lambda: report_page(folder_of(request), wanted)), "report.html")


@router.get("/run/stream", responses=ERRORS, response_class=StreamingResponse)
def stream(request: HttpRequest, name: Annotated[Name, Query()]) -> StreamingResponse:
    """Return server-sent events: one whenever the run has grown, until it ends."""
    found = run_files.run_of(folder_of(request), name)
    if _streams >= MOST_STREAMS:
        raise HTTPException(503, "too many runs are being followed. Close one of the pages.")
    return StreamingResponse(_growth(found, name, request), media_type="text/event-stream")


async def _growth(found: Run, name: str, request: HttpRequest) -> AsyncIterator[bytes]:
    global _streams
    _streams += 1
    seen: run_files.Fingerprint | None = None
    ends = time.monotonic() + STREAM_SECONDS
    try:
        while time.monotonic() < ends and not leaving.is_set() and not await request.is_disconnected():
            now = await asyncio.to_thread(run_files.fingerprint, found)
            if now != seen:
                seen = now
                over = await asyncio.to_thread(_over, found, name)
                yield f"data: {json.dumps({'ended': over})}\n\n".encode()
                if over:
                    return
            for _ in range(4):  # until the next look, or until the server is being stopped
                if not leaving.is_set():
                    await asyncio.sleep(EVERY / 4)
    finally:
        _streams -= 1


def _over(found: Run, name: str) -> bool:
    """Return whether a run has ended; one that can no longer be read has, for who follows it."""
    try:
        with run_files.told(found, name):
            return ended(found.events())
    except BadInput:
        return True


def listing(folder: Path) -> Document:
    """Return each run in a line; one that cannot be read, with the reason."""
    runs = [_entry(folder, name) for name in run_files.names(folder)]
    return {"folder": folder.resolve().name, "example": folder == EXAMPLES, "runs": runs}


def _entry(folder: Path, name: str) -> Document:
    entry: Document = {"name": name, "title": _title(folder, name), "note": "", "refused": ""}
    entry |= {"unseen": [], "alarms": 0, "live": False}
    try:
        found = run_files.listed(folder, name)
        with run_files.told(found, name):
            events = found.events()
            entry |= {
                "note": note(found.about),
                "alarms": len(alarms(events)),
                "live": not ended(events),
                "unseen": unseen_at_a_glance(found, events),
            }
    except BadInput as error:
        entry["refused"] = str(error)
    return entry


def answer(folder: Path, wanted: RunRequest) -> Document:
    """Return everything that the page shows of one run."""
    found = run_files.run_of(folder, wanted.name)
    with run_files.told(found, wanted.name):
        names, rows, events = found.columns(), run_files.rows(found, wanted.rank), found.events(wanted.rank)
        return {
            "name": wanted.name,
            "title": _title(folder, wanted.name),
            "note": note(found.about),
            "ranks": found.ranks(),
            "unseen": unseen(found, wanted.rank, rows),
            **state(events, rows),
            "alarms": alarms(events)[:MOST_ALARMS],
            **picture(names, rows, wanted.statistic),
        }


def report_page(folder: Path, wanted: TableRequest) -> str:
    """Return one process of a run in one file, by the name that it has on the page."""
    found = run_files.run_of(folder, wanted.name)
    return run_report.page(run_report.subject(found, _title(folder, wanted.name), rank=wanted.rank))


def _title(folder: Path, name: str) -> str:
    """Return the name of a run; a folder that is a run itself is called by its own."""
    return folder.resolve().name if name == "." else name


def csv(folder: Path, wanted: TableRequest) -> str:
    """Return the rows as a table, numbers as they are stored; what was not observed is empty."""
    found = run_files.run_of(folder, wanted.name)
    with run_files.told(found, wanted.name):
        names, rows = found.columns(), run_files.rows(found, wanted.rank)
    if rows.values.size > LARGEST_TABLE:
        raise BadInput(
            f"{wanted.name} has {rows.values.size:,} numbers; this page writes tables of at most {LARGEST_TABLE:,}. "
            "`edgewise export RUN --to rows.csv` writes all."
        )
    lines = [",".join(["step", "time", *(name.replace(",", " ").replace("\n", " ") for name in names)])]
    for step, moment, row in zip(rows.step.tolist(), rows.time.tolist(), rows.values.tolist(), strict=True):
        lines.append(
            ",".join([str(step), repr(moment), *("" if value != value else repr(value) for value in row)])
        )
    return "\n".join(lines) + "\n"


class TraceRequest(PageRequest):
    """A file that Trace.save wrote, in base64."""

    data: Annotated[str, Field(max_length=4 * (LARGEST_TRACE // 3 + 1))]
    name: Annotated[str, Field(max_length=200)] = "trace.npz"


@router.post("/trace", responses=ERRORS)
def trace(wanted: TraceRequest) -> Document:
    """Return the network that a saved trace describes, as a config, and what is said about it."""
    return in_turn(lambda: described(wanted.data, wanted.name))


def described(data: str, name: str) -> Document:
    """Return the description of a trace as the text of a config, which is then read like any other."""
    meta = _trace_meta(data, name)
    values = meta.get("architecture")
    if values is None:
        raise BadInput(
            f"{name} is a trace without a description: it holds what was measured, but not the knobs of a network, so "
            f"it has no place on the map. Drop the model's config.json; `edgewise report {name}` shows the curves."
        )
    if meta.get("kind") != "Architecture" or not isinstance(values, dict):
        raise BadInput(
            f"{name} is a trace of a perceptron, and this page places transformers. `edgewise report {name}` shows it."
        )
    text = json.dumps(values)
    network = from_config(text, name, None, None)
    what = "a predicted" if str(meta.get("source", "")).startswith("theory") else "a measured"
    note = (
        f"The dot is the description ({network.name[:60]}) of {what} trace; verdict and curves are theory for that "
        "description, not the numbers in the file."
    )
    return {"config": text, "name": name, "note": note}


def _trace_meta(data: str, name: str) -> Document:
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError as error:  # also of letters beyond ASCII
        raise BadInput(f"{name} did not arrive as base64 ({error}).") from error
    if len(content) > LARGEST_TRACE:
        raise BadInput(
            f"{name} has {len(content):,} bytes; this page reads traces of at most {LARGEST_TRACE:,}. "
            "`edgewise report` reads all."
        )
    try:  # the one string of a zip of arrays
        stored = read_arrays(io.BytesIO(content), (META,), LARGEST_META)[META]
        if stored.shape != () or stored.dtype.kind != "U":
            raise BadInput(f"its {META} is {stored.dtype} of shape {stored.shape}, expected one text")
    except BadInput as error:
        raise BadInput(
            f"{name} is not a saved trace ({str(error)[:200]}). Write one with Trace.save."
        ) from error
    meta = read_json(str(stored), name)
    if not isinstance(meta, dict) or not {"sites", "source", "architecture"} <= meta.keys():
        raise BadInput(
            f"{name} is not a saved trace: it says neither sites nor source. Write one with Trace.save."
        )
    return meta
