"""Training loop for comparisons: the same batches for every network, the rate by successive halving.

Networks so small that calls cost more than arithmetic are trained as one by `descend_stack`: every weight has the
members first, (K, ...), and no number leaves torch on the way. If a step is mostly arithmetic (thousands of words, or
a hundred thousand weights on a thousand tokens), it is slower than one after another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgewise.errors import BadInput

Batch = tuple[Tensor, Tensor]
Factory = Callable[[], nn.Module]
Schedule = Callable[[float], float]
Stack = dict[str, Tensor]  # weights by name, (K, ...)
Direction = Callable[[list[Tensor], dict[str, list[Tensor]], int], list[Tensor]]
Maker = Callable[[nn.Module, float], torch.optim.Optimizer]
TRAINS = 0.5  # a network trains when its final loss is below this share of the chance loss
LATE = 0.02  # a rate that was left is continued when it was better by this share of the first loss
LOWER = 0.3  # share of the chosen rate that a second look takes
DIVERGED = 3.0  # a loss above this many times the first one (or not a number) ends a run


def trapezoid(fraction: float, rise: float = 0.04, fall: float = 0.5) -> float:
    """Return the factor of a step: up over the first `rise`, flat, down to a twentieth over the last `fall`."""
    up = min(1.0, (fraction + 0.01) / (rise + 0.01))
    down = min(1.0, (1.0 - fraction) / fall)
    return up * max(down, 0.05)


OPTIMIZERS: dict[str, Maker] = {
    "sgd": lambda model, rate: torch.optim.SGD(model.parameters(), rate, momentum=0.9, fused=True),
    "adamw": lambda model, rate: torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01, fused=True),
}


@dataclass
class TrainingRun:
    """One network under one rate: its losses, and whether it left the range of numbers."""

    rate: float
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    first_gradient_norm: float | None = None
    diverged: bool = False

    def final(self, last: int = 10) -> float:
        """Return mean of the last losses; infinite when diverged."""
        return math.inf if self.diverged else sum(self.losses[-last:]) / len(self.losses[-last:])


@dataclass
class Tuned:
    """The best run, what every rate reached where it was left, and the seconds it took."""

    best: TrainingRun
    tried: list[tuple[float, int, float]]  # rate, steps, mean of its last losses
    seconds: float


def train(
    factory: Factory,
    batches: Callable[[], Iterable[Batch]],
    *,
    optimizer: str | Maker = "adamw",
    rates: Sequence[float] = (1e-3,),
    steps: int = 200,
    trial: float = 0.25,
    second_look: float | None = None,
    schedule: Schedule | None = None,
    clip: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tuned:
    """Train one network, its rate chosen among several by successive halving [Jamieson 2016].

    factory   makes the network with the same weights each time (it seeds itself); called as `model(inputs, labels)`
              it returns (loss, ...)
    batches   starts the same sequence of batches each time
    trial     share of the steps that every rate gets; the better half continues for as long again, until one is left.
              If that one ends above what another rate had reached when it was left, the other is continued too:
              a rate that wins early may break later
    second_look  a network that ends above this loss gets a third of its rate too, since what wins early is often too
              large later, and the smallest rate tried may not be small enough; default: no second look
    schedule  multiplies the rate at a fraction of the steps; default: constant
    clip      largest norm of the gradient; default: no clipping
    """
    maker = optimizer if callable(optimizer) else OPTIMIZERS.get(optimizer)
    if maker is None:
        names = ", ".join(OPTIMIZERS)
        raise BadInput(
            f"optimizer must be one of {names}, or a function of (model, rate); got {optimizer!r}."
        )
    _check_numbers(rates, steps, trial)
    started = time.perf_counter()
    runs = [_fresh(factory, maker, rate) for rate in rates]

    def advance(chosen: Sequence[TrainingRun], until: int) -> None:
        for run in chosen:
            _advance(run, batches, until, steps, schedule or (lambda _: 1.0), clip, progress)

    best = _halved(runs, advance, steps, trial)
    second = min(runs, key=TrainingRun.final)
    if second.final() < best.final() - LATE * best.losses[0]:
        advance([second], steps)
        best = min((best, second), key=TrainingRun.final)
    if second_look is not None and not best.final() < second_look:
        runs.append(_fresh(factory, maker, LOWER * best.rate))
        advance(runs[-1:], steps)
        best = min((best, runs[-1]), key=TrainingRun.final)
    return Tuned(
        best, [(run.rate, len(run.losses), run.final()) for run in runs], time.perf_counter() - started
    )


def _halved(
    runs: Sequence[TrainingRun],
    advance: Callable[[Sequence[TrainingRun], int], None],
    steps: int,
    trial: float,
) -> TrainingRun:
    """Return the rate that survives: all get a trial, the better half continues as long again, the last to the end."""
    alive = list(runs)
    until = steps if len(runs) == 1 else max(1, round(trial * steps))
    while True:
        advance(alive, until)
        if until >= steps:
            return min(alive, key=TrainingRun.final)
        alive = sorted(alive, key=TrainingRun.final)[: max(1, len(alive) // 2)]
        until = steps if len(alive) == 1 else min(steps, 2 * until)


def _check_numbers(rates: Sequence[float], steps: int, trial: float) -> None:
    positive = all(math.isfinite(rate) and rate > 0 for rate in rates)
    if not rates or not positive or len(set(rates)) != len(rates):
        raise BadInput(f"rates must be different positive numbers, got {rates!r}.")
    if steps < 1 or not 0 < trial <= 1:
        raise BadInput(f"steps must be at least 1 and trial in (0, 1], got steps = {steps}, trial = {trial}.")


def _fresh(factory: Factory, maker: Maker, rate: float) -> TrainingRun:
    model = factory()
    return TrainingRun(rate, model, maker(model, rate))


def _advance(
    run: TrainingRun,
    batches: Callable[[], Iterable[Batch]],
    until: int,
    steps: int,
    schedule: Schedule,
    clip: float | None,
    progress: Callable[[int], None] | None,
) -> None:
    """Continue one run to a number of steps; the batches it has had are skipped."""
    for inputs, labels in islice(batches(), len(run.losses), until):
        if run.diverged:
            return
        for group in run.optimizer.param_groups:
            group["lr"] = run.rate * schedule(len(run.losses) / steps)
        _step(run, inputs, labels, clip)
        if progress is not None:
            progress(len(run.losses))


def _step(run: TrainingRun, inputs: Tensor, labels: Tensor, clip: float | None) -> None:
    loss: Tensor = run.model(inputs, labels)[0]
    value = float(loss.detach())
    run.losses.append(value)
    if not value < DIVERGED * max(run.losses[0], 1.0):  # also when it is not a number
        run.diverged = True
        return
    run.optimizer.zero_grad()
    loss.backward()
    if run.first_gradient_norm is None or clip is not None:
        norm = float(nn.utils.clip_grad_norm_(run.model.parameters(), math.inf if clip is None else clip))
        run.first_gradient_norm = norm if run.first_gradient_norm is None else run.first_gradient_norm
    run.optimizer.step()


@torch.no_grad()
def evaluate(model: nn.Module, batch: Batch) -> float:
    """Return the loss on held-out examples, in evaluation mode."""
    training = model.training
    loss = float(model.eval()(*batch)[0])
    model.train(training)
    return loss


def thinned(losses: Sequence[float], count: int = 25) -> list[float]:
    """Return a curve short enough for a record: means over equal parts, four digits."""
    size = max(1, -(-len(losses) // count))
    parts = [losses[i : i + size] for i in range(0, len(losses), size)]
    return [float(f"{sum(part) / len(part):.4g}") for part in parts]


def seeded(factory: Callable[..., nn.Module], seed: int, *arguments: object, **options: object) -> Factory:
    """Return a factory that draws the same weights each time and leaves the global stream alone."""

    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return factory(*arguments, **options)

    return make


def descend_stack(
    loss: Callable[..., Tensor],
    weights: Mapping[str, Tensor],
    batch: Callable[[int], Sequence[Tensor]],
    *,
    optimizer: str | Direction,
    rates: Tensor,
    steps: int,
    schedule: Schedule | None = None,
    own: bool = True,
    look: Callable[[int, Stack], None] | None = None,
) -> tuple[Tensor, Stack]:
    """Train the members of a stack, each as if alone; return the losses before every step (steps, K), and the weights.

    loss       loss(weights, *batch) of one member, a number; of a module by torch.func.functional_call
    batch      of a step's number; `own`: every member has its own, (K, ...), or one is shared by all
    optimizer  sgd, momentum (0.9), adam, adamw (weight decay 0.01); or what a step takes off at a rate of one, as a
               function of the gradients, what it keeps between steps, and the number of the step from one
    rates      (K,), multiplied by `schedule` at a fraction of the steps; (K, S) if a member is S runs on the same
               data: weights are (K, S, ...), and loss gives (S,)
    look       called with the number of a step and the weights before it, and with `steps` at the end

    A member that diverges does not touch the others.
    """
    direction = optimizer if callable(optimizer) else DIRECTIONS.get(optimizer)
    if direction is None:
        raise BadInput(f"optimizer must be one of {', '.join(DIRECTIONS)}, or a function; got {optimizer!r}.")
    now = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    lead = rates.ndim
    if any(weight.shape[:lead] != rates.shape for weight in now.values()):
        shapes = [tuple(weight.shape) for weight in now.values()]
        raise BadInput(
            f"weights have shapes {shapes}: expected {tuple(rates.shape)} first, as the rates have."
        )
    names, losses = list(now), []
    memory: dict[str, list[Tensor]] = {}
    for step in range(steps):
        if look is not None:
            look(step, now)
        data = batch(step)
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for a stack, and go by member
            each = vmap(loss, (0, *(0 if own else None for _ in data)))(now, *data)
        losses.append(each.detach())
        slopes = list(torch.autograd.grad(each.sum(), list(now.values())))
        with torch.no_grad():
            factor = rates * (1.0 if schedule is None else schedule(step / steps))
            for name, move in zip(names, direction(slopes, memory, step + 1), strict=True):
                rate = factor.reshape(*factor.shape, *(1,) * (move.ndim - lead))
                if optimizer == "adamw":
                    now[name].mul_(1 - 0.01 * rate)
                now[name].sub_(rate * move)
    if look is not None:
        look(steps, now)
    return torch.stack(losses), {name: weight.detach() for name, weight in now.items()}


def _past(memory: dict[str, list[Tensor]], name: str, slopes: list[Tensor]) -> list[Tensor]:
    return memory.setdefault(name, [torch.zeros_like(g) for g in slopes])


def _momentum(slopes: list[Tensor], memory: dict[str, list[Tensor]], _: int) -> list[Tensor]:
    return [speed.mul_(0.9).add_(g) for speed, g in zip(_past(memory, "speed", slopes), slopes, strict=True)]


def _adam(slopes: list[Tensor], memory: dict[str, list[Tensor]], count: int) -> list[Tensor]:
    found = []
    for m, v, g in zip(_past(memory, "mean", slopes), _past(memory, "square", slopes), slopes, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        size = v.sqrt().div_(math.sqrt(1 - 0.999**count)).add_(1e-8)
        found.append((m / size).div_(1 - 0.9**count))
    return found


DIRECTIONS: dict[str, Direction] = {
    "sgd": lambda slopes, *_: slopes,
    "momentum": _momentum,
    "adam": _adam,
    "adamw": _adam,
}
