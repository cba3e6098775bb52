"""Folders of watched runs and dossiers as anybody could have left them: cut, changed, with pipes in them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import edgewise
from edgewise.cli import exit_codes
from edgewise.cli.main import run
from edgewise.models.state import random_streams
from edgewise.monitor.columns import fast_columns, slow_columns
from edgewise.monitor.read_run import Run
from edgewise.monitor.run_folder import HEADS, RunFolder
from edgewise.study import store
from tests.fuzz.invariants import require
from tests.support.recipes import write_recipe

DEPTH, ROWS = 2, 5
FILES = (
    "run.json",
    "schema",
    "heads schema",
    "rank0-000.rows",
    "heads-rank0-000.rows",
    *["events-rank0-000.jsonl"] * 3,
    "about.json",
    "batch.pt",
    "rows.csv",
    "state.pt",
)
PIECES = st.sampled_from(
    [
        "",
        "[",
        "{}\n",
        '"',
        "\x00",
        "null\n",
        "[" * 3000,
        "9" * 5000,
        "NaN",
        '{"kind": "alarm"}\n',
        '{"kind": 3}\n',
        "\ufeff",
        "1e999",
        ",",
        "\n\n",
        '{"kind": "alarm", "alarm": "banana", "sentence": "x"}\n',
    ]
)
PLACES = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)  # in a file
VERBS = (
    "alarms",
    "alarms --json",
    "watch",
    "export",
    "export --heads",
    "replay",
    "read",
    "trace_at",
    "alarms --rank 1",
)
KEYS = (
    "depth",
    "model",
    "schema",
    "heads_schema",
    "column",
    "kind",
    "alarm",
    "sentence",
    "step",
    "what",
    "order",
    "since",
    "state",
)


@st.composite
def runs(draw: st.DrawFn, strange: st.SearchStrategy[Any]) -> dict[str, Any]:
    """A good folder, up to two of its files changed, and the verb that reads it."""
    changes = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2]))):
        how = draw(
            st.sampled_from(
                ["value"] * 5
                + ["piece"] * 4
                + ["cut"] * 2
                + ["bit"] * 5
                + ["blank"] * 2
                + ["bytes", "pipe", "loop", "device", "folder", "absent", "unreadable"]
            )
        )
        change = {"file": draw(st.sampled_from(FILES)), "how": how, "place": draw(PLACES)}
        if how == "value":
            change |= {
                "key": draw(st.sampled_from(KEYS)),
                "value": draw(strange | st.sampled_from(["../../etc", "a" * 16, DEPTH, "loss_spike"])),
            }
        if how == "piece":
            change["piece"] = draw(PIECES)
        changes.append(change)
    return {"family": "runs", "changes": changes, "verb": draw(st.sampled_from(VERBS))}


@cache
def good() -> Path:
    """A folder with rows, numbers per head, an alarm and its dossier, written once by edgewise itself."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-run-"))
    columns, heads = fast_columns(DEPTH), slow_columns([2] * DEPTH)
    folder = RunFolder(home, columns, heads, about={"depth": DEPTH, "model": "none"})
    folder.event("start", "Watching.", 0)
    for step in range(ROWS):
        folder.append(step, np.linspace(0.1, 1.0, len(columns), dtype=np.float32))
        folder.append(step, np.linspace(0.1, 1.0, len(heads), dtype=np.float32), HEADS)
    folder.event(
        "alarm",
        "ALARM.",
        3,
        alarm="loss_spike",
        place="",
        head=None,
        since=2,
        what="It rose.",
        cause="The loss.",
        order=["loss", "norm"],
        ruled_out=[],
        rows=5,
        series=9,
    )
    folder.close()
    (home / "rank0.lock").unlink()
    for kind in ("schema", "heads_schema"):
        name = json.loads((home / "run.json").read_text())[kind]
        (home / f"{kind}.name").write_text(f"schema-{name}.jsonl")
    _write_dossier(home / "dossier")
    return home


def _write_dossier(path: Path) -> None:
    path.mkdir()
    call = {"inputs": [torch.ones(2, 3)], "named": {}}
    seen = {"inputs": [torch.zeros(2, 3), torch.ones(2, 3)], "named": {}}
    batch = {
        "call": call,
        "before": call,
        "criterion": seen,
        "criterion_before": seen,
        "random": torch.get_rng_state(),
        "autocast": None,
    }
    torch.save(batch, path / "batch.pt")
    torch.save(
        {"model": {"weight": torch.eye(3), "bias": torch.zeros(3)}, "optimizer": {}}, path / "state.pt"
    )
    (path / "about.json").write_text(
        json.dumps({"alarm": {"step": 3, "kind": "loss_spike"}, "checkpoint": None, "state": True})
    )
    (path / "rows.csv").write_text("step,loss\n1,0.5\n2,0.5\n3,0.6\n")
    (path / "model.py").write_text(
        "from torch import nn\ndef make():\n    return nn.utils.skip_init(nn.Linear, 3, 3), nn.MSELoss()\n"
    )


def _path(folder: Path, file: str) -> Path:
    if file.endswith("schema"):
        return folder / (folder / f"{file.replace(' ', '_')}.name").read_text()
    return (folder if (folder / file).exists() else folder / "dossier") / file


def change(path: Path, given: dict[str, Any]) -> None:
    """One change to one file."""
    if not path.is_file():
        return  # changed already, into something that has no bytes
    data = path.read_bytes()
    place = int(given["place"] * len(data))
    if given["how"] in ("pipe", "loop", "device", "folder", "absent"):
        path.unlink()
    match given["how"]:
        case "value":
            path.write_bytes(_with_value(data, given["key"], given["value"], place))
        case "piece":
            path.write_bytes(data[:place] + given["piece"].encode() + data[place:])
        case "cut":
            path.write_bytes(data[:place])
        case "bytes":
            path.write_bytes(data[:place] + b"\xff\xfe" + data[place + 2 :])
        case "bit":
            place = min(place, len(data) - 1)
            path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        case "blank":
            place = data.find(b"\n", place) + 1
            path.write_bytes(data[:place] + b"\n" + data[place:])
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "unreadable":
            path.chmod(0o000)


def _with_value(data: bytes, key: str, value: Any, place: int) -> bytes:
    """One value of one JSON line replaced; other files keep their bytes."""
    lines = data.decode(errors="replace").splitlines()
    if not lines or not lines[0].startswith("{"):
        return data
    number = min(data[:place].count(b"\n"), len(lines) - 1)
    try:
        values = json.loads(lines[number])
    except (ValueError, RecursionError):
        return data
    if isinstance(values, dict):
        inner = (
            values["alarm"] if isinstance(values.get("alarm"), dict) and key in values["alarm"] else values
        )
        inner[key] = value
        lines[number] = json.dumps(values)
    return ("\n".join(lines) + "\n").encode()


def prepare(folder: Path, given: dict[str, Any]) -> list[str] | None:
    """The folder changed, and the words of the shell that read it; None for what only Python reads."""
    home = folder / "run"
    shutil.copytree(good(), home)
    for each in given["changes"]:
        change(_path(home, each["file"]), each)
    verb, *options = given["verb"].split()
    own = {"watch": ["--once"], "export": ["--to", str(folder / "rows.csv")]}
    if verb == "replay":
        return ["replay", str(home / "dossier"), f"{home / 'dossier' / 'model.py'}:make"]
    return None if verb in ("read", "trace_at") else [verb, str(home), *own.get(verb, []), *options]


def read_in_python(home: Path, given: dict[str, Any]) -> None:
    """What only Python reads; damaged lines are no reason to refuse."""
    try:
        _read_in_python(home, given["verb"])
    except edgewise.BadInput as error:
        require(not is_harmless(given), f"a damaged line makes a run unreadable: {error}")
        raise


def _read_in_python(home: Path, verb: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damage is said
        if verb == "read":
            require("step" in edgewise.read(home, frame=False), "no steps")
        else:
            require(len(edgewise.monitor.trace_at(home).sites) == DEPTH + 1, "another depth")


# --- records of a recipe ---
@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A folder of measured records, some changed, and the run that completes it."""
    ways = [*BYTES, *BYTES, "pipe", "device", "loop", "folder", "absent", "unreadable"]
    changes = [
        {"how": draw(st.sampled_from(ways)), "place": draw(PLACES), "piece": draw(PIECES)}
        for _ in range(draw(st.integers(0, 3)))
    ]
    return {"family": "records", "changes": changes}


@cache
def measured() -> Path:
    """A folder with a recipe and its records, as edgewise writes them."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-records-"))
    require(_run_recipe(home, write_recipe(home)) == exit_codes.FINE, "the recipe failed")
    return home


def _run_recipe(home: Path, recipe: Path) -> int:
    with random_streams():  # a run seeds every case
        return run(["run", str(recipe), "--into", str(home / "runs"), "--workers", "1"])


def try_records(given: dict[str, Any]) -> int:
    """What was measured is used, what is damaged is measured again, and the result is that of an untouched folder."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        shutil.copytree(measured(), home)
        kept = home / "runs" / "paper2020idea" / "figure1" / "records"
        for each in given["changes"]:
            change(store.files_of(kept)[0] if store.files_of(kept) else kept / "none", each)
        code = _run_recipe(home, home / "paper2020idea" / "figure1.py")
        if all(each["how"] in (*BYTES, "absent") for each in given["changes"]):
            require(code == exit_codes.FINE, f"damaged records end a run with {code}")
        if code == exit_codes.FINE:
            done = store.read(store.files_of(kept)).done.values()
            values = sorted((record.case["x"], record.value["y"]) for record in done if record.value)
            require(values == [(x, 2 * x * x) for x in range(6)], f"{values}")
        return code


BYTES = ("piece", "cut", "bytes", "bit", "blank")  # what a disk, a crash or an editor does to a line


def is_harmless(given: dict[str, Any]) -> bool:
    """Whether the changes hit lines of events alone, or a bit of a row: the rest can be read, and must be."""
    ways = {"events": ("value", *BYTES), "rank0": ("bit",), "heads": ("bit",)}
    return given["verb"] not in ("replay", "alarms --rank 1") and all(
        change["how"] in ways.get(change["file"].partition("-")[0], ()) for change in given["changes"]
    )


def flipped(given: dict[str, Any], file: str) -> bool:
    """Whether single bits are all that was changed, one of them in such a file."""
    places = {(change["file"], change["place"]) for change in given["changes"] if change["how"] == "bit"}
    return len(places) == len(given["changes"]) and any(name.startswith(file) for name, _ in places)


def check_counts(home: Path, given: dict[str, Any]) -> None:
    """A flipped bit is seen, whatever it makes of a line or a row."""
    if flipped(given, "events") and is_harmless(given):
        seen = Run(home)
        require(seen.damaged_events() or seen.cut_off(), "a flipped bit of an event is not seen")
    if flipped(given, "rank0") and is_harmless(given):
        require(Run(home).rows().damaged == 1, "a flipped bit of a row is not seen")


def check_alarms(given: dict[str, Any], code: int, out: str) -> None:
    """An untouched folder has one failing alarm; a changed one never loses it silently."""
    require(
        code != exit_codes.BAD_INPUT or not is_harmless(given),
        f"a damaged line makes a run unreadable: {out}",
    )
    if given["verb"] in ("alarms", "alarms --json") and is_harmless(given) and flipped(given, "events"):
        require(" skipped." in out or "incomplete" in out, f"damage is not said: {out}")
    if (
        given["verb"].startswith("alarms")
        and "--rank" not in given["verb"]
        and not any(c["file"].startswith("events") for c in given["changes"])
    ):
        require(code in (exit_codes.FAILS, exit_codes.BAD_INPUT), f"the alarm is lost: {code} {out}")
