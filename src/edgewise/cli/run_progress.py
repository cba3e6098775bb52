"""How far a run is and how long it will take, for a person at a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class RunProgress:
    """A bar on the error stream with counts and the time left; nothing when that is not a terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._progress: Progress | None = None

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def tell(self, done: int, total: int) -> None:
        """`done` of `total` cases are answered."""
        if self._progress is None:
            if not sys.stderr.isatty():
                return
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
