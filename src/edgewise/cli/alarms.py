"""`edgewise alarms RUN`: what went wrong in a watched run; the exit code says whether anything did."""

from __future__ import annotations

import json

import click

from edgewise.cli import exit_codes
from edgewise.cli.output import plain, printing, visible

UNSEEN = "Not everything was seen:"


@click.command()
@click.argument("run", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Of which process.")
@click.option("--again", is_flag=True, help="Ask today's detectors about the stored rows.")
def alarms(run: str, as_json: bool, rank: int, again: bool) -> int:
    """Print what was not seen of a watched run, then its alarms.

    Exit code 0 without any alarm, 1 for warnings, 2 where training is harmed, 3 without any alarm where too little was
    seen to say that there was none.
    """
    from edgewise.monitor.alarm import Alarm
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
            click.echo(
                json.dumps(
                    plain(
                        {
                            "run": run,
                            "model": about["model"],
                            "rows": len(rows),
                            "unseen": unseen,
                            "damaged_rows": rows.damaged,
                            "damaged_events": folder.damaged_events(rank),
                            "alarms": [alarm.json() for alarm in raised],
                        }
                    )
                )
            )
            return code
        if unseen:
            lines = [UNSEEN, *(f"  - {visible(sentence)}" for sentence in unseen)]
            click.echo("\n".join(lines) + "\n")
        for alarm in raised:
            click.echo(f"{visible(str(alarm), lines=True)}\n")
        where = f"in {len(rows)} row{'' if len(rows) == 1 else 's'} of {visible(about['model'])}"
        if raised:
            click.echo(f"{len(raised)} alarm{'' if len(raised) == 1 else 's'} {where}.")
        elif unseen:
            click.echo(f"No alarm is known {where}, which were not enough to say that there was none.")
        else:
            click.echo(f"No alarm {where}.")
    return code
