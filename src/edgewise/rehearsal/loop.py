"""One rehearsal: a few real training steps at one rate, with looks at the network in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from edgewise.errors import BadInput
from edgewise.rehearsal.gauge import Gauge, Loss, View, checked
from edgewise.rehearsal.optimizers import Rates
from edgewise.rehearsal.rate import Moment, Rehearsal
from edgewise.rehearsal.supply import Supply

HALF_SCALE = 2.0**12
NO_GRADIENT = (
    "the loss does not depend on any trainable parameter of the model. Compute it with the model that loss(model, "
    "batch) is given, which is a copy, and outside torch.no_grad."
)


@dataclass(frozen=True)
class Plan:
    """How the user trains, and for how many steps it is rehearsed."""

    loss: Loss
    supply: Supply
    steps: int
    warmup: int = 0
    accumulate: int = 1
    clip: float | None = None
    autocast: torch.dtype | None = None
    seed: int = 0
    group: Any = None  # the processes that train together

    @property
    def scale(self) -> float:
        """What the loss is multiplied by on the way back: gradients in float16 would vanish otherwise."""
        return HALF_SCALE if self.autocast == torch.float16 else 1.0

    def rate(self, rate: float, step: int) -> float:
        """The rate of one step: a linear warm-up, then constant."""
        return rate * min(1.0, (step + 1) / self.warmup) if self.warmup else rate

    @property
    def half(self) -> int:
        return self.steps // 2

    def looks(self) -> frozenset[int]:
        """After which steps the network is looked at: 1, 2, 4, 8, ..., half of them, the last but one and the last."""
        doubling = {2**k for k in range(20) if 2**k < self.steps}
        return frozenset(doubling | {self.half, self.steps - 1, self.steps} - {0})

    def over_processes(self, value: float) -> float:
        """The mean over the processes that train together, so that all of them decide alike."""
        if self.group is None:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return float(total) / dist.get_world_size(self.group)


def rehearse(
    model: nn.Module,
    optimizer: Optimizer,
    rate: float,
    plan: Plan,
    gauge: Gauge,
    start: View,
    tell: Callable[[], None],
) -> Rehearsal:
    """The steps at one rate; it ends early where the loss is not finite. `tell` is called after every step."""
    torch.manual_seed(plan.seed)  # dropout is the same for every rate
    rates, losses, moments = Rates(optimizer), [], []
    stream, change = start.stream, None
    for step in range(plan.steps):
        rates.set(plan.rate(rate, step))
        losses.append(training_step(model, optimizer, plan, step))
        tell()
        if not math.isfinite(losses[-1]):
            break
        if step + 1 in plan.looks():
            view = gauge.look(model, None if step + 1 in (plan.half, plan.steps) else 1)
            change = plan.over_processes(relative(view.stream, stream))
            moved = plan.over_processes(relative(view.stream, start.stream))
            moments.append(Moment(step + 1, view.loss, moved, view.separation, view.output))
            stream = view.stream
    complete = len(losses) == plan.steps and plan.steps > 1
    return Rehearsal(rate, tuple(losses), tuple(moments), change if complete else None)


def training_step(model: nn.Module, optimizer: Optimizer | None, plan: Plan, step: int) -> float:
    """One step of the optimizer on the mean gradient of its batches; returns the loss before it, over all processes.

    Where the loss is not finite on any process, none of them steps.
    """
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    batches, total = plan.supply.at(step, plan.accumulate), 0.0
    for batch in batches:
        total += backward(model, plan, batch)
    mean = plan.over_processes(total)
    if optimizer is not None and math.isfinite(mean):
        _unscale(model, plan)
        if plan.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
    return mean


def _unscale(model: nn.Module, plan: Plan) -> None:
    for parameter in model.parameters() if plan.scale != 1.0 else ():
        if parameter.grad is not None:
            parameter.grad /= plan.scale


def backward(model: nn.Module, plan: Plan, batch: Any) -> float:
    """Add the gradient of one batch's share of the loss, times `plan.scale`; returns that share."""
    device = next(model.parameters()).device.type
    half = nullcontext() if plan.autocast is None else torch.autocast(device, dtype=plan.autocast)
    with torch.enable_grad(), half:
        value = checked(plan.loss(model, batch)) / plan.accumulate
    if not value.requires_grad:
        raise BadInput(NO_GRADIENT)
    (value * plan.scale).backward()
    return float(value.detach())


def relative(one: Tensor, other: Tensor) -> float:
    """|one - other| / |other|; NaN where they cannot be compared."""
    if one.shape != other.shape:
        return math.nan
    length = torch.linalg.vector_norm(other.double())
    return float(torch.linalg.vector_norm((one - other).double()) / length) if length > 0 else math.nan
