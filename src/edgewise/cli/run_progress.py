"""How far a run is and how long it will take, for a person at a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edgewise.cli.patience import Patience

if TYPE_CHECKING:
    from rich.progress import Progress


class RunProgress:
    """A bar on the error stream with counts and the time left; nothing when that is not a terminal.

    Before the first answer there is nothing to count: the store is read and workers start.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._progress: Progress | None = None
        self._before = Patience()

    def __enter__(self) -> RunProgress:
        self._before.__enter__()
        self._before.say("reading what is stored, starting workers")
        return self

    def __exit__(self, *_: object) -> None:
        self._before.__exit__()
        if self._progress is not None:
            self._progress.stop()

    def tell(self, done: int, total: int) -> None:
        """`done` of `total` cases are answered."""
        if self._progress is None:
            if not sys.stderr.isatty():
                return
            self._before.__exit__()
            self._progress = _bar(self._title, total)
        self._progress.update(self._progress.task_ids[0], completed=done)


def _bar(title: str, total: int) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
    progress = Progress("{task.description}", *columns, console=Console(stderr=True), transient=True)
    progress.add_task(title, total=total)
    progress.start()
    return progress
