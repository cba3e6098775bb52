"""Simulate the whole grid and keep it.

python -m tests.agreement.record                                              what is missing or changed
python -m tests.agreement.record --again                                      everything (half an hour)
python -m tests.agreement.record --width 2048 --to wide.jsonl --only sharp    a closer look
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import torch
from rich.progress import track

from .cases import GRID, Case
from .recording import RECORDED, append, fingerprint, load, simulated


def wanted(only: str, width: int | None, seeds: int | None) -> list[Case]:
    """The cases whose name contains `only`, at another width or number of seeds when given."""
    chosen = [case for case in GRID if only in case.name]
    if width is not None:
        chosen = [replace(case, knobs={**case.knobs, "width": width}) for case in chosen]
    return chosen if seeds is None else [replace(case, seeds=seeds) for case in chosen]


@click.command()
@click.option("--only", default="", help="Only cases whose name contains this.")
@click.option("--width", type=int, help="Another width than the grid's.")
@click.option("--seeds", type=int, help="Another number of seeds than the grid's.")
@click.option("--again", is_flag=True, help="Also what is already recorded.")
@click.option("--to", type=click.Path(path_type=Path), default=RECORDED, help="Where to append.")
def main(only: str, width: int | None, seeds: int | None, again: bool, to: Path) -> None:
    """Simulate the grid of tests/agreement/cases.py and append each case to the recording."""
    torch.set_num_threads(1)
    done = {} if again else load(to)
    known = {name: record["fingerprint"] for name, record in done.items()}
    left = [case for case in wanted(only, width, seeds) if known.get(case.name) != fingerprint(case)]
    for case in track(left, description="simulating"):
        append(simulated(case), to)


if __name__ == "__main__":
    main()
