"""`edgewise watch`, `alarms`, `replay`, `export`: the verbs of a watched run."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.exit_codes import printing, prints_aside, visible
from edgewise.cli.options import json_option
from edgewise.files import Document, json_values

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgewise.monitor.alarm import Alarm
    from edgewise.monitor.read_run import Run
    from edgewise.monitor.run_folder import RunRows


COLUMNS = {
    "norm": "norm",
    "separation": "separation",
    "gradient_growth": "log gradient",
    "entropy": "entropy",
    "largest_logit": "largest logit",
    "logit_growth": "its growth",
    "softmax_gain": "gain",
    "update_ratio.attention": "update, attention",
    "update_ratio.mlp": "update, MLP",
    "headroom": "headroom",
}
NARROW, ROWS, SHOWN = 120, 40, 3  # columns of a page that is not a terminal; most blocks, and alarms
NOT_SEEN = "Not everything was seen:"
run_argument = click.argument("run", type=click.Path())
rank_option = click.option("--rank", type=click.IntRange(0), default=0, help="Of which process.")


@click.command()
@run_argument
@click.option("--once", is_flag=True, help="Print the table once and end, also while the run continues.")
@click.option("--every", type=click.FloatRange(0.1), default=2.0, help="Seconds between two looks.")
@rank_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document once, and nothing else.")
def watch(run: str, once: bool, every: float, rank: int, as_json: bool) -> int:
    """Show what was not seen of a watched run, its last row, block by block, and its alarms, while it grows.

    Exit code 3 if no alarm is known and too little was seen to say that there was none, else 0.
    """
    from rich.console import Console
    from rich.live import Live

    from edgewise.monitor.read_run import Run

    folder = Run(run)
    if as_json:
        document = json_values(_watch_document(folder, rank))
        with printing():
            click.echo(json.dumps(document))
        return _code(folder, rank)
    console = Console()
    if not console.is_terminal:
        console = Console(width=NARROW)
    if once or not console.is_terminal or _over(folder, rank):
        with printing():
            console.print(view(folder, rank, console.width))
        return _code(folder, rank)
    with Live(view(folder, rank, console.width), console=console, auto_refresh=False) as live:
        while not _over(folder, rank):
            time.sleep(every)
            live.update(view(folder, rank, console.width), refresh=True)
    return _code(folder, rank)


def _code(folder: Run, rank: int) -> int:
    known = any(event["kind"] == "alarm" for event in folder.events(rank))
    return exit_codes.UNSEEN if not known and folder.unseen(rank) else exit_codes.FINE


def _watch_document(folder: Run, rank: int) -> Document:
    """Return the same for machines: state, last row by column, alarms as `edgewise alarms --json` has them."""
    from edgewise.monitor.alarm import Alarm
    from edgewise.monitor.read_run import ended

    rows, events = folder.rows(rank=rank), folder.events(rank)
    told = [event for event in events if event["kind"] == "alarm"]
    last = dict(zip(folder.columns(), rows.values[-1].tolist(), strict=True)) if len(rows) else {}
    return {
        "run": str(folder.path),
        "model": folder.about["model"],
        "unseen": folder.unseen(rank, rows=rows),
        "ended": ended(events),
        "rows": len(rows),
        "damaged": rows.damaged,
        "damaged_events": folder.damaged_events(rank),
        "step": int(rows.step[-1]) if len(rows) else None,
        "time": float(rows.time[-1]) if len(rows) else None,
        "row": last,
        "alarms": _documents([Alarm.from_json(event) for event in told], told),
    }


def view(folder: Run, rank: int, width: int) -> RenderableType:
    """Return one page: what is known of the run, a table of its blocks as wide as there is room for, and the alarms."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows, events = folder.rows(rank=rank), folder.events(rank)
    unseen = [Text(visible(sentence), style="bold yellow") for sentence in folder.unseen(rank, rows=rows)]
    if not len(rows):
        return Group(*unseen, Text(f"{visible(str(folder.path))}: no row yet."))
    last = dict(zip(folder.columns(), rows.values[-1].tolist(), strict=True))
    names = [name for name in COLUMNS if any(key.endswith(f".{name}") for key in last)]
    places = [f"block.{i}" for i in range(int(folder.about["depth"]))]
    places = ["embed", *places] if names else []
    cells = [[_number(last.get(f"{place}.{name}", math.nan)) for name in names] for place in places[:ROWS]]
    wide = _widths([COLUMNS[name] for name in names], cells)
    room = width - max(map(len, places), default=0)
    fit = max(sum(end <= room for end in accumulate(2 + each for each in wide)), 1)  # two spaces apart
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 2))
    table.add_column("")
    for name, each in zip(names[:fit], wide, strict=False):
        table.add_column(COLUMNS[name], justify="right", width=each)
    for place, row in zip(places, cells, strict=False):
        table.add_row(place, *row[:fit])
    parts: list[Any] = [*unseen, Text(_headline(folder, rows, last, events), style="bold"), table]
    if fit < len(names):
        left_out = ", ".join(COLUMNS[name] for name in names[fit:])
        parts.append(
            Text(f"No room for {left_out}: make the window wider, or read the run with edgewise.read.")
        )
    if len(places) > ROWS:
        parts.append(Text(f"... and {len(places) - ROWS} blocks more"))
    alarms = [event.get("sentence", "") for event in events if event["kind"] == "alarm"]
    if len(alarms) > SHOWN:
        parts.append(Text(f"The last {SHOWN} of {len(alarms)} alarms; `edgewise alarms` shows all of them."))
    parts += [Text(visible(sentence, lines=True), style="red") for sentence in alarms[-SHOWN:]]
    return Group(*parts)


def _widths(titles: list[str], cells: list[list[str]]) -> list[int]:
    """Of columns in which no number is cut; titles are broken between words."""
    each = [[*title.split(), *(row[i] for row in cells)] for i, title in enumerate(titles)]
    return [max(map(len, words)) for words in each]


def _headline(folder: Run, rows: RunRows, last: dict[str, float], events: list[Document]) -> str:
    name, state = visible(folder.about["model"]), _state(events, rows)
    loss, ratio = (_number(last.get(name, math.nan)) for name in ("loss", "update_ratio"))
    alarms = sum(event["kind"] == "alarm" for event in events)
    damage = f" and {rows.damaged} damaged" if rows.damaged else ""
    return (
        f"{visible(str(folder.path))} ({name}, {state}): step {int(rows.step[-1])}, loss {loss}, "
        f"update ratio {ratio}, {len(rows)} row{'' if len(rows) == 1 else 's'}{damage}, "
        f"{alarms} alarm{'' if alarms == 1 else 's'}"
    )


def _state(events: list[Document], rows: RunRows) -> str:
    """Return whether a run without an end continues: one that was killed could not say so."""
    from edgewise.monitor.read_run import SILENT, ended

    if ended(events):
        return "off" if events[-1]["kind"] == "off" else "ended"
    seconds = time.time() - rows.time[-1]
    return (
        "going on"
        if seconds < SILENT
        else f"going on, or killed: no row for {timedelta(seconds=int(seconds))}"
    )


def _over(folder: Run, rank: int) -> bool:
    """Also where its process is gone: nothing will follow."""
    from edgewise.monitor.read_run import ended
    from edgewise.monitor.run_folder import owner_lives

    return ended(folder.events(rank)) or owner_lives(folder.path, rank) is False


def _number(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.3g}"


@click.command()
@run_argument
@json_option
@rank_option
@click.option("--again", is_flag=True, help="Ask today's detectors about the stored rows.")
def alarms(run: str, as_json: bool, rank: int, again: bool) -> int:
    """Print what was not seen of a watched run, then its alarms.

    Exit code 0 without any alarm, 1 for warnings, 2 where training is harmed, 3 without any alarm where too little was
    seen to say that there was none.
    """
    from edgewise.monitor.alarm import Alarm, folded
    from edgewise.monitor.read_run import Run
    from edgewise.monitor.replay import alarms_again

    folder = Run(run)
    about = folder.about  # rejects what is not a run
    events = [event for event in folder.events(rank) if event["kind"] == "alarm"]
    raised = alarms_again(run, rank=rank) if again else [Alarm.from_json(event) for event in events]
    rows = folder.rows(rank=rank)
    unseen = folder.unseen(rank, rows=rows, again=again)
    code = exit_codes.of_alarms([alarm.failing for alarm in raised], bool(unseen))
    with printing():
        if as_json:
            written = [{}] * len(raised) if again else events
            document = {
                "run": run,
                "model": about["model"],
                "rows": len(rows),
                "unseen": unseen,
                "damaged_rows": rows.damaged,
                "damaged_events": folder.damaged_events(rank),
                "exit_code": code,
                "alarms": _documents(raised, written),
            }
            click.echo(json.dumps(json_values(document)))
            return code
        if unseen:
            lines = [NOT_SEEN, *(f"  - {visible(sentence)}" for sentence in unseen)]
            click.echo("\n".join(lines) + "\n")
        whole = folded(raised)
        for alarm, others in whole:
            also = "".join(f"\n  Also:  {each.brief}" for each in others)
            click.echo(f"{visible(f'{alarm}{also}', lines=True)}\n")
        where = f"in {len(rows)} row{'' if len(rows) == 1 else 's'} of {visible(about['model'])}"
        if raised:
            more = f", which showed {len(raised)} times" if len(raised) > len(whole) else ""
            click.echo(f"{len(whole)} alarm{'' if len(whole) == 1 else 's'} {where}{more}.")
        elif unseen:
            click.echo(f"No alarm is known {where}, which were not enough to say that there was none.")
        else:
            click.echo(f"No alarm {where}.")
    return code


def _documents(raised: Sequence[Alarm], events: Sequence[Document]) -> list[Document]:
    """Return alarms for machines, each with those that show its cause again."""
    from edgewise.monitor.alarm import folded

    dossiers = {id(alarm): _dossier(event) for alarm, event in zip(raised, events, strict=True)}
    return [
        alarm.json() | dossiers[id(alarm)] | {"also": [each.json() | dossiers[id(each)] for each in others]}
        for alarm, others in folded(raised)
    ]


def _dossier(event: Document) -> Document:
    """Return where the step of an alarm was written down, and the command that repeats it; None without one."""
    path = event.get("dossier")
    command = None if path is None else f"edgewise replay {shlex.quote(str(path))} FILE.PY:FUNCTION"
    return {"dossier": path, "replay": command}


@click.command()
@click.argument("dossier", type=click.Path())
@click.argument("source", metavar="FILE.PY:FUNCTION")
@json_option
def replay(dossier: str, source: str, as_json: bool) -> int:
    """Repeat the step of an alarm as run, in float32, with another attention, and on the batch before.

    The function returns the model, or (model, criterion) if the model does not return its loss.
    """
    from edgewise.errors import BadInput
    from edgewise.models.source import read_source
    from edgewise.monitor.replay import replay as replay_step
    from edgewise.monitor.run_folder import about_alarm

    about_alarm(Path(dossier))  # raise for what is not a dossier before user code runs
    with prints_aside():
        factory = read_source(source).factory
        if factory is None:
            raise BadInput(
                f"{source!r} is not file.py:function. Write a function that returns the model of the run."
            )
        made = factory()
        model, criterion = made if isinstance(made, tuple) else (made, None)
        outcome = replay_step(dossier, model, criterion)
    with printing():
        if as_json:
            names = ("explanation", "survives", "why")
            statements = [dict(zip(names, row, strict=True)) for row in outcome.statements]
            click.echo(json.dumps(json_values(asdict(outcome) | {"statements": statements})))
        else:
            click.echo(visible(str(outcome), lines=True))
    return exit_codes.FINE


@click.command()
@run_argument
@click.option("--to", "path", required=True, type=click.Path(), help="A name that ends in .csv or .parquet.")
@click.option("--heads", is_flag=True, help="The numbers per head, which are stored on a slower clock.")
@click.option(
    "--rank", type=click.IntRange(0), default=None, help="Of one process only; of all unless given."
)
@json_option
def export(run: str, path: str, heads: bool, rank: int | None, as_json: bool) -> int:
    """Write the rows of a watched run to one file."""
    from edgewise.monitor.read_run import export as export_rows

    count = export_rows(run, path, heads=heads, rank=rank)
    with printing():
        if as_json:
            click.echo(json.dumps({"path": path, "rows": count}))
        else:
            click.echo(f"Wrote {count} row{'' if count == 1 else 's'} to {visible(path)}", err=True)
    return exit_codes.FINE
