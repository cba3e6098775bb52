"""The progress bar: on the error stream, for a person at a terminal, and only when the wait is long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

Tell = Callable[[float], None]  # takes the fraction that is done
QUIET_SECONDS = 2.0


class ProgressBar:
    """Names the current step and counts seconds; fills if the step knows how much of it is done.

    quiet_seconds  how long nothing is shown, because most waits are short; with 0 the bar is there at once
    visible        True or False decides; None shows the bar where standard error is a terminal
    """

    def __init__(
        self, step: str = "starting", quiet_seconds: float = QUIET_SECONDS, visible: bool | None = None
    ) -> None:
        self._state: dict[str, Any] = {
            "description": step,
            "total": None,
            "completed": 0,
            "count": "",
            "left": "",
        }
        self._quiet_seconds, self._visible = quiet_seconds, visible
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._timer = threading.Timer(quiet_seconds, self._show)
        self._timer.daemon = True

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty() if self._visible is None else self._visible:
            self._timer.start() if self._quiet_seconds > 0 else self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._progress is not None:
                self._progress.stop()

    def say(self, step: str) -> None:
        """Name the step that begins now; how long it takes is not known yet."""
        self._update(description=step, total=None, completed=0, count="", left="")

    def fill(self, fraction: float) -> None:
        """Show which fraction of the step is done."""
        self._update(total=1.0, completed=fraction, count="", left="left")

    def count(self, step: str, done: int, total: int) -> None:
        """Show that `done` of the `total` parts of a step are done."""
        self._update(description=step, total=total, completed=done, count=f"{done}/{total}", left="left")

    def _update(self, **state: Any) -> None:
        with self._lock:
            self._state |= state
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], **self._state)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        with self._lock:
            if self._timer.finished.is_set():  # the wait ended while rich was being imported
                return
            description, count, left = (TextColumn(f"{{task.{name}}}") for name in _TEXTS)
            columns = (description, BarColumn(), count, TimeElapsedColumn(), left, TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.add_task(**self._state)
            self._progress.start()


_TEXTS = ("description", "fields[count]", "fields[left]")


@contextmanager
def progress_bar(progress: Tell | bool | None, title: str) -> Iterator[Tell]:
    """Yield a function that takes the fraction done: the caller's own, or that of a bar.

    progress  a function; True for a bar at once; False for none; None for a bar on a terminal after two seconds
    """
    if callable(progress):
        yield progress
        return
    with ProgressBar(title, 0.0 if progress else QUIET_SECONDS, progress) as bar:
        yield bar.fill
