"""`edgewise watch RUN`: the last row of a watched run as a table, drawn again while the run grows."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.output import printing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgewise.monitor.reading import Run

COLUMNS = {
    "norm": "norm", "separation": "separation", "gradient_growth": "log gradient", "entropy": "entropy",
    "largest_logit": "largest logit", "logit_growth": "its growth", "softmax_gain": "gain",
    "update_ratio.attention": "update, attention", "update_ratio.mlp": "update, MLP", "headroom": "headroom",
}  # fmt: skip
NARROW, ROWS = 120, 40  # columns of a page that is not a terminal; blocks shown at most


@click.command()
@click.argument("run", type=click.Path())
@click.option("--once", is_flag=True, help="Print the table once and end, also while the run goes on.")
@click.option("--every", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two looks.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Of which process.")
def watch(run: str, once: bool, every: float, rank: int) -> int:
    """Show the last row of a watched run, block by block, and its alarms, while it grows."""
    from rich.console import Console
    from rich.live import Live

    from edgewise.monitor.reading import Run

    folder, console = Run(run), Console()
    if not console.is_terminal:
        console = Console(width=NARROW)
    if once or not console.is_terminal or _over(folder, rank):
        with printing():
            console.print(view(folder, rank))
        return exit_codes.FINE
    with Live(view(folder, rank), console=console, auto_refresh=False) as live:
        while not _over(folder, rank):
            time.sleep(every)
            live.update(view(folder, rank), refresh=True)
    return exit_codes.FINE


def view(folder: Run, rank: int) -> RenderableType:
    """One page: what is known of the run, a table of its blocks, and the alarms."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows, events = folder.rows(rank=rank), folder.events(rank)
    if not len(rows):
        return Text(f"{folder.path}: no row yet.")
    last = dict(zip(folder.columns(), rows.values[-1].tolist(), strict=True))
    names = [name for name in COLUMNS if any(key.endswith(f".{name}") for key in last)]
    table = Table(box=None, pad_edge=False)
    for title in ("", *(COLUMNS[name] for name in names)):
        table.add_column(title, justify="left" if not title else "right")
    places = [f"block.{i}" for i in range(int(folder.about["depth"]))]
    places = ["embed", *places] if names else []
    for place in places[:ROWS]:
        table.add_row(place, *(_number(last.get(f"{place}.{name}", math.nan)) for name in names))
    parts: list[Any] = [Text(_headline(folder, rows, last, events), style="bold"), table]
    if len(places) > ROWS:
        parts.append(Text(f"... and {len(places) - ROWS} blocks more"))
    parts += [Text(event.get("sentence", ""), style="red") for event in events if event["kind"] == "alarm"][-3:]
    return Group(*parts)


def _headline(folder: Run, rows: Any, last: dict[str, float], events: list[dict[str, Any]]) -> str:
    state = "ended" if any(e["kind"] in ("stop", "off") for e in events) else "going on"
    loss, ratio = (_number(last.get(name, math.nan)) for name in ("loss", "update_ratio"))
    alarms = sum(event["kind"] == "alarm" for event in events)
    return (
        f"{folder.path} ({folder.about['model']}, {state}): step {int(rows.step[-1])}, loss {loss}, "
        f"update ratio {ratio}, {len(rows)} rows, {alarms} alarm{'' if alarms == 1 else 's'}"
    )


def _over(folder: Run, rank: int) -> bool:
    events = folder.events(rank)
    starts = [i for i, event in enumerate(events) if event["kind"] == "start"]
    return any(event["kind"] in ("stop", "off") for event in events[starts[-1] if starts else 0 :])


def _number(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.3g}"
