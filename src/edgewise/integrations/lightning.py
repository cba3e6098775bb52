"""A callback for Lightning: `Trainer(callbacks=[edgewise.LightningCallback()])`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.watch import Watch, watch

Base: Any = object  # where Lightning is not installed, the class is there and refuses to be made
for _package in ("lightning.pytorch", "pytorch_lightning"):
    try:
        Base = import_module(f"{_package}.callbacks").Callback
        break
    except ImportError:
        continue


class LightningCallback(Base):
    """Watches the module from the first step to the last; rows go to DEFAULT_ROOT_DIR/edgewise unless `to` says so.

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
            raise BadInput("LightningCallback needs lightning, which is not installed. Install it with pip.")
        super().__init__()
        self.options: dict[str, Any] = {
            "budget": budget,
            "everything": everything,
            "quiet": quiet,
            "rate": rate,
        }
        self.to, self.stop, self.on_alarm = to, stop, on_alarm
        self.handle: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        home = Path(trainer.default_root_dir)
        goal = home / "edgewise" if self.to is None else self.to
        self.handle = watch(
            pl_module,
            to=goal,
            first_step=int(trainer.global_step),
            on_alarm=self.on_alarm,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            checkpoints=home,
            **self.options,
        )

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:  # noqa: ARG002
        if self.handle is not None:
            self.handle._guarded(self._report, trainer, loss)

    def _report(self, trainer: Any, loss: Any) -> None:
        assert self.handle is not None
        self.handle.log(loss=loss * trainer.accumulate_grad_batches)  # the trainer has divided it

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:  # noqa: ARG002
        if self.stop and self.handle is not None and any(alarm.failing for alarm in self.handle.alarms):
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self.handle is not None:
            self.handle.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        if self.handle is not None:
            self.handle.close()
