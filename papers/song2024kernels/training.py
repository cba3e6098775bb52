"""Two-stage training: stage one with one kernel, then the same weights go on with each kernel, on the same data.

stage one: `steps` with kernel a;    stage two: `more` steps with a (kept) and with b (swapped)        [Song 2024]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.study import rounded
from edgewise.study.tasks import Task
from edgewise.study.train import TrainingRun, seeded, thinned, train, trapezoid

from .encoder import Encoder, use

Pair = tuple[Tensor, Tensor]
Batches = Callable[[int], Iterator[Pair]]  # of a seed
Case = dict[str, Any]
CHUNK = 50  # examples at a time where nothing is trained
POOL = 16  # batches that are drawn together and sorted by length


def two_stages(case: Case, task: Task, first: Batches, second: Batches) -> dict[str, Any]:
    """Curves and ends of both stages; a curve is [step, loss, accuracy] on the first `glance` held-out examples.

    case: kernel, others (of stage two), seed, rate, steps, more, every, glance, held_out, state ("fresh" or "kept").
    """
    return trained_stages(case, task, first, second)[0]


def trained_stages(
    case: Case, task: Task, first: Batches, second: Batches
) -> tuple[dict[str, Any], dict[str, Encoder]]:
    """The same, and the network after stage two by its kernel."""
    model = seeded(Encoder, case["seed"], task.inputs, task.tokens, task.outputs, task.vectors)()
    run, curve = _stage(use(model, case["kernel"]), case, task, case["steps"], first(case["seed"]), None)
    found = {"curve": curve, "train": thinned(run.losses, 30), "stage_two": {}, "diverged": run.diverged}
    models = {}
    for kernel in case["others"]:
        model = use(deepcopy(run.model), kernel)
        begin = evaluated(model, task.held_out(case["held_out"]))
        state = run.optimizer.state_dict() if case["state"] == "kept" else None
        after, curve = _stage(model, case, task, case["more"], second(case["seed"] + 10**6), state)
        end = evaluated(after.model, task.held_out(case["held_out"]))
        found["stage_two"][kernel] = {"begin": rounded(begin, 5), "end": rounded(end, 5), "curve": curve}
        models[kernel] = after.model
    return found, models


def _stage(
    model: nn.Module,
    case: Case,
    task: Task,
    steps: int,
    batches: Iterator[Pair],
    state: dict[str, Any] | None,
) -> tuple[TrainingRun, list[list[float]]]:
    """Warm-up and linear decay as published; with the optimizer's state of the stage before, or a fresh one."""

    def optimizer(made: nn.Module, rate: float) -> torch.optim.Optimizer:
        found = torch.optim.AdamW(made.parameters(), rate, weight_decay=0.01, fused=True)
        if state is not None:
            found.load_state_dict(deepcopy(state))
        return found

    def look(step: int) -> None:
        if step % case["every"] == 0 or step == steps:
            curve.append([step, *rounded(evaluated(model, glance), 5)])

    glance = task.held_out(case["glance"])
    curve = [[0, *rounded(evaluated(model, glance), 5)]]
    outcome = train(
        lambda: model,
        lambda: batches,
        optimizer=optimizer,
        rates=(case["rate"],),
        steps=steps,
        schedule=trapezoid,
        clip=1.0,
        progress=look,
    )
    return outcome.best, curve


@torch.no_grad()
def evaluated(model: nn.Module, pair: Pair) -> list[float]:
    """Mean loss and accuracy."""
    loss = right = 0.0
    inputs, labels = pair
    order = lengths(inputs).argsort()
    for rows in order.split(CHUNK):
        mean, logits = model(shortened(inputs[rows]), labels[rows])
        loss += float(mean) * len(rows)
        right += float((logits.argmax(-1) == labels[rows]).sum())
    return [loss / len(order), right / len(order)]


def by_length(task: Task, size: int, seed: int) -> Iterator[Pair]:
    """Batches of reviews of like length, cut to their longest: less padding is computed, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    for inputs, labels in task.batches(POOL * size, seed):
        parts = lengths(inputs).argsort().split(size)
        for part in torch.randperm(POOL, generator=generator):
            rows = parts[int(part)]
            yield shortened(inputs[rows]), labels[rows]


def lengths(inputs: Tensor) -> Tensor:
    """Tokens that are not padding; vectors have no padding."""
    return (inputs != 0).sum(-1) if inputs.ndim == 2 else torch.full((len(inputs),), inputs.shape[1])


def shortened(inputs: Tensor) -> Tensor:
    return inputs[:, : int(lengths(inputs).max())]
