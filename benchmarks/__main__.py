"""Run the named benchmarks (all of them unless named), print their tables, write them to benchmarks/results."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import BENCHMARKS
from benchmarks.machine import Machine
from benchmarks.report import Report

RESULTS = Path(__file__).parent / "results"
EPILOG = "Benchmarks: " + "; ".join(f"{name}, {what}" for name, what in BENCHMARKS.items()) + "."


@click.command(epilog=EPILOG)
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--quick", is_flag=True, help="Smaller work to see that all runs; nothing is written.")
def main(names: tuple[str, ...], quick: bool) -> None:
    """Measure accuracy and speed, side by side in one run, on one core."""
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    for name in names or BENCHMARKS:
        report = run(name, quick, console)
        console.print(report.rich())
        if not quick:
            report.write(RESULTS)
            console.print(f"written: benchmarks/results/{name}.md and .json\n")


def run(name: str, quick: bool, console: Console) -> Report:
    """One benchmark under a progress bar, with the machine's state before and after."""
    before = Machine.now()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=1.0)

        def tell(fraction: float, doing: str = "") -> None:
            progress.update(task, completed=fraction, description=f"{name}: {doing}" if doing else name)

        tables, goals, notes = import_module(f"benchmarks.{name}").run(quick, tell)
    return Report(name, BENCHMARKS[name], tables, goals, notes, before, Machine.now())


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
