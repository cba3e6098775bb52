"""A callback for the Trainer of transformers: `trainer.add_callback(edgewise.HuggingFaceCallback())`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.watch import Watch, watch

Base: Any = object  # where transformers is not installed, the class is there and refuses to be made
if find_spec("transformers") is not None:
    Base = import_module("transformers.trainer_callback").TrainerCallback

OPEN: dict[Path, Watch] = {}  # by folder: watches of trainings that have not ended


class HuggingFaceCallback(Base):
    """Watches the model from the first step to the last; rows go to OUTPUT_DIR/edgewise unless `to` says otherwise.

    budget      what watching may cost, as a share of the training time
    to          the folder for rows and alarms
    everything  sample every step
    stop        end the training at an alarm that says it is harmed already
    quiet       say nothing on standard error
    on_alarm    called with every alarm
    rate        what edgewise.learning_rate returned for this training
    """

    def __init__(
        self,
        budget: float = 0.02,
        to: str | Path | None = None,
        *,
        everything: bool = False,
        stop: bool = False,
        quiet: bool = False,
        on_alarm: Callable[[Alarm], None] | None = None,
        rate: Any = None,
    ) -> None:
        if Base is object:
            raise BadInput(
                "HuggingFaceCallback needs transformers, which is not installed. Install edgewise[hf]."
            )
        self.options: dict[str, Any] = {
            "budget": budget,
            "everything": everything,
            "quiet": quiet,
            "rate": rate,
        }
        self.to, self.stop, self.on_alarm = to, stop, on_alarm
        self.handle: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:  # noqa: ARG002
        goal = self._goal(args)
        if goal in OPEN:  # a training that was interrupted does not say so
            OPEN[goal].close()
        self.handle = OPEN[goal] = watch(
            model,
            to=goal,
            first_step=int(state.global_step),
            on_alarm=self.on_alarm,
            checkpoints=Path(args.output_dir),
            **self.options,
        )

    def _goal(self, args: Any) -> Path:
        return Path(Path(args.output_dir) / "edgewise" if self.to is None else self.to).absolute()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        if self.stop and self.handle is not None and any(alarm.failing for alarm in self.handle.alarms):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        if self.handle is not None:
            self.handle.close()
            OPEN.pop(self._goal(args), None)
