"""Lightning callbacks: one watches a training, one rehearses the learning rate before it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.integrations.callback import WatchingCallback
from edgewise.rehearsal.learning_rate import learning_rate
from edgewise.rehearsal.rate import Rate, schedule_named
from edgewise.rehearsal.short_training import FRESH

Base: Any = object  # without Lightning the class exists, and raises when it is made
try:
    from lightning.pytorch import callbacks

    Base = callbacks.Callback
except ImportError:
    with suppress(ImportError):
        from pytorch_lightning import callbacks as older_callbacks

        Base = older_callbacks.Callback

ATTRIBUTES = ("lr", "learning_rate")


class LightningCallback(WatchingCallback, Base):
    """Watches the module from the first step to the last; rows go to DEFAULT_ROOT_DIR/edgewise unless `to` says so.

    to          the folder for rows and alarms
    budget      what watching may cost, as a share of the training time
    everything  sample every step
    stop        end the training at an alarm that says it is harmed already, or at an error of the check
    quiet       say nothing on standard error
    on_alarm    called with every alarm
    rate        what edgewise.learning_rate returned for this training
    check       check the training at its first optimizer step (`edgewise.check`), and show the report

    >>> LightningCallback("runs/a", stop=True).to
    'runs/a'
    """

    missing = None if Base is not object else "lightning, which is not installed. Install it with pip."

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.start(lambda: self._begin(trainer, pl_module))

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        home = Path(trainer.default_root_dir)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        goal = home / "edgewise" if self.to is None else self.to
        self.watch(pl_module, goal, int(trainer.global_step), home, scaler)

    def on_before_backward(self, trainer: Any, pl_module: object, loss: Tensor) -> None:  # noqa: ARG002
        if self.handle is not None:
            self.handle._guarded(self._report, trainer, loss)

    def _report(self, trainer: Any, loss: Tensor) -> None:
        assert self.handle is not None
        self.handle.log(loss=loss * trainer.accumulate_grad_batches)  # the trainer has divided it

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *others: object) -> None:  # noqa: ARG002
        if self.after_step(lambda: self._begin(trainer, pl_module)):
            trainer.should_stop = True

    def on_train_end(self, *_: object) -> None:
        self.end()

    on_exception = on_train_end


class RehearseLearningRate(Base):
    """`Trainer(callbacks=[RehearseLearningRate()])`: before the first step the rate is rehearsed on copies, then set.

    steps, rates, seed  as in `edgewise.learning_rate`
    update              set the rates of the optimizer, and the attribute `lr` or `learning_rate` of the module

    After `fit` has begun, `callback.rate` is the `Rate`. Accumulation, clipping, schedule and your own rate are those
    of the Trainer and its optimizer. Manual optimization and several optimizers raise `BadInput`.
    """

    def __init__(self, *, steps: int = 10, rates: int = 6, seed: int = 0, update: bool = True) -> None:
        if Base is object:
            raise BadInput(
                "RehearseLearningRate needs lightning, which is not installed. Install it with pip."
            )
        super().__init__()
        self.steps, self.rates, self.seed, self.update = steps, rates, seed, update
        self.rate: Rate | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Rehearse, unless a checkpoint is being resumed."""
        if trainer.global_step:
            return
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            raise BadInput(
                f"{len(trainer.optimizers)} optimizers, automatic_optimization={pl_module.automatic_optimization}: "
                "expected one optimizer that Lightning steps. Call edgewise.learning_rate yourself."
            )
        (optimizer,) = trainer.optimizers
        accumulate = int(trainer.accumulate_grad_batches)
        rows = list(islice(iter(trainer.train_dataloader), self.steps * self.rates * accumulate + FRESH))
        schedulers = [type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs]
        by_norm = trainer.gradient_clip_algorithm in (None, "norm")
        self.rate = learning_rate(
            pl_module,
            rows,
            _training_loss,
            optimizer=optimizer,
            steps=self.steps,
            rates=self.rates,
            seed=self.seed,
            accumulate=accumulate,
            clip=(trainer.gradient_clip_val or None) if by_norm else None,
            schedule=schedule_named(*schedulers[:1]),
        )
        if self.update and self.rate.best is not None:
            _set(trainer, optimizer, pl_module, self.rate)


def _training_loss(module: nn.Module, batch: object) -> Tensor:
    """Return what `training_step` returns; logging does nothing there, because a copy has no Trainer."""
    step: Any = module.training_step
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*self.log.*")
        output = step(batch, 0) if len(inspect.signature(step).parameters) > 1 else step(batch)
    loss: Tensor = output["loss"] if isinstance(output, Mapping) else output
    return loss


def _set(trainer: Any, optimizer: Any, module: Any, rate: Rate) -> None:
    """The advised rates, as the ones that schedulers multiply, and as the attribute of the module."""
    assert rate.group_rates is not None
    for group, value in zip(optimizer.param_groups, rate.group_rates, strict=True):
        before = group.get("initial_lr", group["lr"])
        group["lr"] *= value / before  # where a scheduler has begun, its factor stays
        group["initial_lr"] = value
    for config in trainer.lr_scheduler_configs:
        if hasattr(config.scheduler, "base_lrs"):
            config.scheduler.base_lrs = list(rate.group_rates)
    for name in ATTRIBUTES:
        if hasattr(module, name):
            setattr(module, name, rate.best)
