"""What the callbacks of both trainers share: the options, the check at the first step, whether to stop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from edgewise.errors import BadInput
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.watch import Watch
from edgewise.preflight.check_report import CheckReport
from edgewise.preflight.during import watch
from edgewise.preflight.script import Checking
from edgewise.rehearsal.rate import Rate


class WatchingCallback:
    """Options of a callback, and the watch and the check that it holds."""

    missing: ClassVar[str | None] = None  # the package that is needed, and how to install it

    def __init__(
        self,
        to: str | Path | None = None,
        *,
        budget: float = 0.02,
        everything: bool = False,
        stop: bool = False,
        quiet: bool = False,
        on_alarm: Callable[[Alarm], None] | None = None,
        rate: Rate | None = None,
        check: bool = False,
    ) -> None:
        if self.missing is not None:
            raise BadInput(f"{type(self).__name__} needs {self.missing}")
        super().__init__()
        self.options: dict[str, Any] = dict(budget=budget, everything=everything, quiet=quiet, rate=rate)
        self.to, self.stop, self.on_alarm = to, stop, on_alarm
        self.handle: Watch | None = None
        self.checking = Checking("error" if stop else "never", self._show, raises=False) if check else None

    def _show(self, report: CheckReport) -> None:
        if not self.options["quiet"]:
            print(report, file=sys.stderr)

    def start(self, begin: Callable[[], None]) -> None:
        """Begin to watch, or check first: the steps of a check are not part of the training."""
        if self.checking is None:
            begin()
        else:
            self.checking.__enter__()

    def watch(self, model: Any, to: str | Path, step: int, checkpoints: Path, scaler: Any = None) -> None:
        """Watch the model from this step on."""
        self.handle = watch(
            model,
            to=to,
            first_step=step,
            on_alarm=self.on_alarm,
            scaler=scaler,
            checkpoints=checkpoints,
            **self.options,
        )

    def after_step(self, begin: Callable[[], None]) -> bool:
        """Begin to watch once the check has its report; return whether the training is to stop."""
        if self.handle is None and self.checking is not None and self.checking.report is not None:
            begin()
        harmed = self.handle is not None and any(alarm.failing for alarm in self.handle.alarms)
        return self.stop and (harmed or (self.checking is not None and self.checking.stops))

    def end(self) -> None:
        """Close the check and the watch."""
        if self.checking is not None:
            self.checking.__exit__()
        if self.handle is not None:
            self.handle.close()
