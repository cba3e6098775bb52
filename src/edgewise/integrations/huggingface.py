"""Hugging Face Trainer: the callback that watches it, and the learning rate from its own arguments and data."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.integrations.callback import WatchingCallback
from edgewise.models.state import random_streams
from edgewise.monitor.watch import Watch
from edgewise.progress import Tell
from edgewise.rehearsal.learning_rate import learning_rate
from edgewise.rehearsal.rate import Rate, schedule_named

Base: Any = object  # without transformers the class exists, and raises when it is made
if find_spec("transformers") is not None:
    from transformers import trainer_callback

    Base = trainer_callback.TrainerCallback

OPEN: dict[Path, Watch] = {}  # by folder: watches of trainings that have not ended


class HuggingFaceCallback(WatchingCallback, Base):
    """Watches the model from the first step to the last; rows go to OUTPUT_DIR/edgewise unless `to` says otherwise.

    to          the folder for rows and alarms
    budget      what watching may cost, as a share of the training time
    everything  sample every step
    stop        end the training at an alarm that says it is harmed already, or at an error of the check
    quiet       say nothing on standard error
    on_alarm    called with every alarm
    rate        what edgewise.learning_rate returned for this training
    check       check the training at its first optimizer step (`edgewise.check`), and show the report

    >>> HuggingFaceCallback("runs/a", stop=True).to
    'runs/a'
    """

    missing = None if Base is not object else "transformers, which is not installed. Install edgewise[hf]."

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: object,  # noqa: ARG002
        model: nn.Module | None = None,
        **others: object,  # noqa: ARG002
    ) -> None:
        self.start(lambda: self._begin(args, state, model))

    def _begin(self, args: Any, state: Any, model: Any) -> None:
        goal = self._goal(args)
        if goal in OPEN:  # a training that was interrupted does not say so
            OPEN[goal].close()
        self.watch(model, goal, int(state.global_step), Path(args.output_dir))
        assert self.handle is not None
        OPEN[goal] = self.handle

    def _goal(self, args: Any) -> Path:
        return Path(Path(args.output_dir) / "edgewise" if self.to is None else self.to).absolute()

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **_: object
    ) -> None:
        if self.after_step(lambda: self._begin(args, state, model)):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: object, control: object, **others: object) -> None:  # noqa: ARG002
        self.end()
        if self.handle is not None:
            OPEN.pop(self._goal(args), None)


def learning_rate_for_trainer(
    trainer: Any, *, steps: int = 10, rates: int = 6, seed: int = 0, progress: Tell | bool | None = None
) -> Rate:
    """Return the rate for `TrainingArguments.learning_rate`, rehearsed as this Trainer would train.

    trainer   a transformers.Trainer before `train()`; it is not changed. Optimizer, rate, warm-up, schedule,
              accumulation, clipping and half precision are read from its arguments, batches from its loader, the loss
              from its `compute_loss`
    steps     of one rehearsal
    rates     as in `edgewise.learning_rate`
    seed      of dropout
    progress  as in `edgewise.learning_rate`
    """
    arguments = getattr(trainer, "args", None)
    if arguments is None or not hasattr(trainer, "get_train_dataloader"):
        raise BadInput(
            f"learning_rate_for_trainer takes a transformers.Trainer, got a {type(trainer).__name__}."
        )
    if trainer.train_dataset is None:
        raise BadInput("this Trainer has no train_dataset, so there is nothing to rehearse on.")
    with random_streams():
        loader = trainer.get_train_dataloader()
        return learning_rate(
            trainer.model,
            loader,
            lambda model, batch: trainer.compute_loss(model, trainer._prepare_inputs(copy.copy(batch))),
            steps=steps,
            rates=rates,
            seed=seed,
            optimizer=lambda model: _optimizer(trainer, model),
            warmup=_warmup(arguments, loader),
            schedule=schedule_named(str(arguments.lr_scheduler_type)),
            own=arguments.learning_rate or None,
            progress=progress,
            accumulate=arguments.gradient_accumulation_steps,
            clip=arguments.max_grad_norm or None,
            autocast=torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else None,
        )


def _optimizer(trainer: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Return what the Trainer would make, for the copy: its own optimizer stays as it is."""
    own = trainer.optimizer
    if own is not None:
        raise BadInput(
            "this Trainer was given an optimizer of its own. Call edgewise.learning_rate(model, batches, "
            "optimizer=...) with it, or let the Trainer make one."
        )
    try:
        made: torch.optim.Optimizer = trainer.create_optimizer(model)
        return made
    finally:
        trainer.optimizer = own


def _warmup(arguments: Any, loader: Any) -> int:
    """Return its steps; below one it is a share of all steps."""
    wanted = float(arguments.warmup_steps)
    if wanted >= 1 or wanted == 0:
        return int(wanted)
    steps = len(loader) / arguments.gradient_accumulation_steps if hasattr(loader, "__len__") else 10**6
    total = arguments.max_steps if arguments.max_steps > 0 else steps * arguments.num_train_epochs
    return round(wanted * total)
