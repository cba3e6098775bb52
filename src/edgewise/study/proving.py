"""prove: train a model as it is and with a plan, same data, tuned rates, several seeds; say whether it helps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise.errors import BadInput
from edgewise.progress import progress_bar
from edgewise.repair.critical_plan import critical_plan
from edgewise.repair.initialize import initialize_
from edgewise.repair.plan import Plan
from edgewise.study.lesson import Learner, first_output, lesson
from edgewise.study.proof import Arm, Proof, compare
from edgewise.study.train import Schedule, Tuned, train

Pair = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
Batches = Callable[[int], Iterable[Pair]]  # a seed to its batches
RATES = (3e-4, 1e-3, 3e-3)


def prove(
    factory: Callable[[], nn.Module], plan: Plan | str = "critical", batches: Batches | Sequence[Pair] | None = None, *,
    steps: int = 200, seeds: int = 3, rates: Sequence[float] = RATES, optimizer: str = "adamw", size: int = 32,
    loss: Loss | None = None, first_seed: int = 0, progress: Callable[[float], None] | None = None,
    trial: float = 0.25, second_look: float | None = None, schedule: Schedule | None = None, clip: float | None = None,
) -> Proof:  # fmt: skip
    """Train both arms on the same batches and compare their final losses, seed by seed.

    factory   makes the model; it is seeded before each call, so that both arms start from the same draw
    plan      a Plan of such a model, or a goal for which one is made from the first model
    batches   a function of the seed, or a list, of (inputs, labels); default: a built-in task that fits the model
    loss      of (model, inputs, labels); default: cross-entropy of the model's output
    rates     tried in each arm and seed by successive halving; the best goes on
    progress  called with the fraction done; without it a bar is shown on a terminal
    trial, second_look, schedule, clip  for both arms, as in `edgewise.study.train.train`
    """
    if steps < 2 or seeds < 1:
        raise BadInput(f"steps must be at least 2 and seeds at least 1, got steps = {steps}, seeds = {seeds}.")
    first = _seeded(factory, first_seed)
    learner, stream, chance, name = _task(first, batches, size, loss)
    plan = plan if isinstance(plan, Plan) else _plan(learner(first), stream, plan)
    tuned: dict[str, list[Tuned]] = {"as it is": [], plan.goal: []}
    runs = [(seed, arm) for seed in range(first_seed, first_seed + seeds) for arm in tuned]
    with progress_bar(progress, "prove") as tell:
        for done, (seed, arm) in enumerate(runs):
            start = partial(_start, factory, learner, seed, plan if arm == plan.goal else None)
            run = train(
                start, partial(stream, seed), optimizer=optimizer, rates=rates, steps=steps, trial=trial,
                second_look=second_look, schedule=schedule, clip=clip,
            )  # fmt: skip
            tuned[arm].append(run)
            tell((done + 1) / len(runs))
    arms = [_arm(arm, runs) for arm, runs in tuned.items()]
    chance = chance if chance is not None else max(losses[0] for arm in arms for losses in arm.losses)
    return Proof(arms[0], arms[1], compare(arms[0].finals, arms[1].finals), chance, steps, str(plan), name)


class _Own(nn.Module):
    """The user's model and loss as (inputs, labels) to (loss,)."""

    def __init__(self, core: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.core, self.loss = core, loss

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor]:
        return (self.loss(self.core, inputs, labels),)


def _task(
    first: nn.Module, batches: Batches | Sequence[Pair] | None, size: int, loss: Loss | None
) -> tuple[Callable[[nn.Module], nn.Module], Batches, float | None, str]:
    """How a model becomes a learner, the batches of a seed, the loss of a guess where known, and the task's name."""
    if batches is None:
        fit = lesson(first)
        return fit.wrap, fit.batches(size), fit.task.chance, fit.task.name
    own = loss or _default_loss
    stream = batches if callable(batches) else partial(_cycled, list(batches))
    return (lambda core: _Own(core, own)), stream, None, "given batches"


def _cycled(batches: Sequence[Pair], seed: int) -> Iterable[Pair]:
    """The list again and again, begun at the seed's place."""
    if not batches:
        raise BadInput("batches is empty: expected at least one (inputs, labels).")
    start = seed % len(batches)
    return cycle([*batches[start:], *batches[:start]])


def _default_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the model's output, tokens and samples alike; -100 marks labels that do not count."""
    logits = first_output(model(inputs))
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def _seeded(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()


def _plan(learner: nn.Module, stream: Batches, goal: str) -> Plan:
    """The plan of the core, on what the task gives it."""
    inputs = next(iter(stream(0)))[0]
    core = getattr(learner, "core", learner)
    with torch.no_grad():
        batch: Any = learner.core_input(inputs) if isinstance(learner, Learner) else inputs
    return critical_plan(core, batch, goal=goal)


def _start(
    factory: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module], seed: int, plan: Plan | None
) -> nn.Module:
    """The seed's model, wrapped, with the plan written into it; entrance and readout do not depend on the arm."""
    core = _seeded(factory, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(10_000 + seed)
        model = wrap(core)
    if plan is not None:
        initialize_(core, plan, generator=seed)
    return model.train()


def _arm(name: str, runs: Sequence[Tuned]) -> Arm:
    """A run that diverged learned nothing: its final loss is its first."""
    finals = [run.best.losses[0] if math.isinf(final := run.best.final()) else final for run in runs]
    best = [run.best for run in runs]
    return Arm(name, tuple(tuple(run.losses) for run in best), tuple(run.rate for run in best), tuple(finals))
