"""`edgewise alarms RUN`: what went wrong in a watched run; the exit code says whether anything did."""

from __future__ import annotations

import json

import click

from edgewise.cli import exit_codes
from edgewise.cli.output import printing, visible

CUT = (
    "The last event of this run is incomplete: it is still being written, or the process was stopped while it wrote. "
    "It may have been an alarm; --again asks the detectors about the stored rows."
)

NO_EVENTS = (
    "This run has no file of events of that process, so its alarms are not known; --again asks the detectors about the "
    "stored rows."
)
DAMAGED = "{} of its rows {} damaged on the disk and left out."


@click.command()
@click.argument("run", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list and nothing else.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Of which process.")
@click.option("--again", is_flag=True, help="Ask today's detectors about the stored rows.")
def alarms(run: str, as_json: bool, rank: int, again: bool) -> int:
    """Print the alarms of a watched run; exit code 0 without any, 1 for warnings, 2 where training is harmed."""
    from edgewise.monitor.again import alarms_again
    from edgewise.monitor.alarm import Alarm
    from edgewise.monitor.reading import Run

    folder = Run(run)
    about = folder.about  # refuses what is not a run
    events = [event for event in folder.events(rank) if event["kind"] == "alarm"]
    raised = alarms_again(run, rank=rank) if again else [Alarm.from_json(event) for event in events]
    table, cut = folder.rows(rank=rank), not again and folder.cut_off(rank)  # before anything is said
    rows, unknown = len(table), not again and not any(folder.path.glob(f"events-rank{rank}-*.jsonl"))
    with printing():
        if as_json:
            click.echo(json.dumps([alarm.json() for alarm in raised]))
        else:
            for alarm in raised:
                click.echo(f"{visible(str(alarm), lines=True)}\n")
            count = "No alarm" if not raised else f"{len(raised)} alarm{'' if len(raised) == 1 else 's'}"
            count = "No alarm is known" if unknown else count
            click.echo(f"{count} in {rows} row{'' if rows == 1 else 's'} of {visible(about['model'])}.")
        if cut:
            click.echo(CUT, err=True)
        if unknown:
            click.echo(NO_EVENTS, err=True)
        if table.damaged:
            click.echo(DAMAGED.format(table.damaged, "is" if table.damaged == 1 else "are"), err=True)
    return exit_codes.of_alarms([*(alarm.failing for alarm in raised), *([False] if cut or unknown else [])])
