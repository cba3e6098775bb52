"""A Lightning callback in the place of its learning rate finder: rehearse before training, then set the rate."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.rehearsal.learning_rate import learning_rate
from edgewise.rehearsal.rate import Rate
from edgewise.rehearsal.supply import FRESH

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError as error:
        raise BadInput("the callback needs Lightning, which is not installed. Install lightning.") from error

ATTRIBUTES = ("lr", "learning_rate")


class RehearseLearningRate(Callback):  # type: ignore[misc, unused-ignore]
    """`Trainer(callbacks=[RehearseLearningRate()])`: before the first step the rate is rehearsed on copies, then set.

    steps, rates, seed  as in `edgewise.learning_rate`
    update              set the rates of the optimizer, and the attribute `lr` or `learning_rate` of the module

    After `fit` has begun, `callback.rate` is the `Rate`. Accumulation and clipping are the Trainer's. Manual
    optimization and several optimizers are refused.
    """

    def __init__(self, *, steps: int = 20, rates: int = 6, seed: int = 0, update: bool = True) -> None:
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
        rows = list(islice(iter(trainer.train_dataloader), self.steps * accumulate + FRESH))
        by_norm = trainer.gradient_clip_algorithm in (None, "norm")
        self.rate = learning_rate(
            pl_module,
            rows,
            _loss,
            optimizer=optimizer,
            steps=self.steps,
            rates=self.rates,
            seed=self.seed,
            accumulate=accumulate,
            clip=(trainer.gradient_clip_val or None) if by_norm else None,
        )
        if self.update and self.rate.best is not None:
            _set(trainer, optimizer, pl_module, self.rate)


def _loss(module: nn.Module, batch: Any) -> Tensor:
    """What `training_step` returns; logging does nothing there, because a copy has no Trainer."""
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
