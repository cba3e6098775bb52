"""Something to look at while waiting, shown only to a person and only when the wait is long."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_SECONDS = 2.0


class Patience:
    """A moving bar on the error stream after two seconds; nothing at all when that is not a terminal.

    The bar names the step and counts seconds; it fills where the step knows how much is done.
    """

    def __init__(self, quiet_seconds: float = QUIET_SECONDS) -> None:
        self.step = "starting"
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._timer = threading.Timer(quiet_seconds, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Patience:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._progress is not None:
                self._progress.stop()

    def say(self, step: str) -> None:
        """Name what is going on now."""
        with self._lock:
            self.step = step
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, description=step, total=None)

    def fill(self, fraction: float) -> None:
        """Show how much of the step is done."""
        with self._lock:
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, total=1.0, completed=fraction)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._timer.finished.is_set():  # cancelled while rich was being imported
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(self.step, total=None)
            self._progress.start()
