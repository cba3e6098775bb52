"""The learning rate for a Hugging Face Trainer, from its own arguments, data and loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.probe.isolation import random_streams
from edgewise.progress import Tell
from edgewise.rehearsal.learning_rate import learning_rate
from edgewise.rehearsal.rate import Rate


def for_trainer(
    trainer: Any, *, steps: int = 20, rates: int = 6, seed: int = 0, progress: Tell | bool | None = None
) -> Rate:
    """The rate for `TrainingArguments.learning_rate`, rehearsed as this Trainer would train.

    trainer   a transformers.Trainer before `train()`; it is not changed. Optimizer, accumulation, clipping and half
              precision are read from its arguments, batches from its loader, the loss from its `compute_loss`
    steps     of one rehearsal
    rates     rehearsals at most
    seed      of dropout
    progress  as in `edgewise.learning_rate`

    Warm-up shorter than a rehearsal is rehearsed; a longer one is left out, because its first steps say nothing about
    the rate at its end, and a note says so.
    """
    arguments = getattr(trainer, "args", None)
    if arguments is None or not hasattr(trainer, "get_train_dataloader"):
        raise BadInput(f"for_trainer takes a transformers.Trainer, got a {type(trainer).__name__}.")
    if trainer.train_dataset is None:
        raise BadInput("this Trainer has no train_dataset, so there is nothing to rehearse on.")
    warmup, note = _warmup(arguments, steps)
    with random_streams():
        loader = trainer.get_train_dataloader()
        rate = learning_rate(
            trainer.model,
            loader,
            lambda model, batch: _loss(trainer, model, batch),
            steps=steps,
            rates=rates,
            seed=seed,
            optimizer=lambda model: _optimizer(trainer, model),
            warmup=warmup,
            progress=progress,
            accumulate=arguments.gradient_accumulation_steps,
            clip=arguments.max_grad_norm or None,
            autocast=torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else None,
        )
    return replace(rate, notes=(*rate.notes, note)) if note else rate


def _loss(trainer: Any, model: nn.Module, batch: Any) -> Tensor:
    value: Tensor = trainer.compute_loss(model, trainer._prepare_inputs(copy.copy(batch)))
    return value


def _optimizer(trainer: Any, model: nn.Module) -> torch.optim.Optimizer:
    """What the Trainer would make, for the copy: its own optimizer stays as it is."""
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


def _warmup(arguments: Any, steps: int) -> tuple[int, str]:
    wanted = float(arguments.warmup_steps)
    if wanted < 1:
        total = arguments.max_steps
        wanted = wanted * total if total > 0 else wanted * 10**6  # a share of epochs: long
    if wanted <= steps:
        return int(wanted), ""
    return 0, f"the warm-up is longer than the {steps} steps of a rehearsal and was left out"
