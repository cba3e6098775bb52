"""`learning_rate`: find the rate by a few steps at a few rates on copies of the model."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch
from torch import nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.interrupts import Interrupts, deferred
from edgewise.landscape.evaluation import Batch, Loss, own_loss
from edgewise.models.model_map import ModelMap
from edgewise.models.state import random_streams
from edgewise.progress import Tell, progress_bar
from edgewise.rehearsal.baseline import UNKNOWN
from edgewise.rehearsal.ladder import (
    FACTOR,
    LONG_RATES,
    LONGER,
    LOOKED_AT,
    NOISE,
    WIDTH,
    WIDTH_SGD,
    Rung,
    between,
    describe_cost,
    duration,
    most_steps,
    next_rung,
    score,
    too_few,
    vertex,
)
from edgewise.rehearsal.optimizers import (
    OptimizerSource,
    Rates,
    describe_optimizer,
    is_sgd,
    largest_curvature,
    sgd_limit,
)
from edgewise.rehearsal.rate import Moment, Rate, Rehearsal, format_rate, with_reasons
from edgewise.rehearsal.short_training import (
    NO_GRADIENT,
    ModelCopies,
    TrainingSettings,
    first_batches,
    rehearse,
    relative,
    split_batches,
    training_step,
)
from edgewise.rehearsal.validation import Validation

# Chosen on ten networks (`DEVELOPMENT` in experiments/learning_rate/population.py), before the blind ones were trained.
# Times the square root of the rate that moves the stream by its own size: the start of the ladder.
STREAM = 0.11
CURVATURE = 0.15  # of the rate at which curvature makes SGD unstable: where its ladder starts
SHADE = 0.8  # of the best rate of a rehearsal: a whole training wants less than its first steps
# Chosen on the networks of experiments/learning_rate/horizon.py, before those of second_population.py were trained.
# Power of (loss / first loss) that shades a longer rehearsal: what is nearly learned wants less.
NEAR_THE_END = 0.75
LEAST = 0.1  # of the best rate of a rehearsal, in any case
SAFE = 0.7  # of the edge: never advised above this
RANGE = 2.0  # the advice is a factor
AGREE = 1.25  # so close to the limit of stability, a rehearsal is too short to tell stable from not
NUDGE = 1e-5  # rate of the one step that measures how far a unit of rate moves the stream


def learning_rate(
    model: nn.Module | ModelMap,
    batches: Iterable[Batch],
    loss: Loss | None = None,
    *,
    optimizer: OptimizerSource | None = None,
    warmup: int = 0,
    steps: int = 20,
    rates: int = 6,
    seed: int = 0,
    accumulate: int = 1,
    clip: float | None = None,
    autocast: torch.dtype | None = None,
    longer: bool = True,
    progress: Tell | bool | None = None,
) -> Rate:
    """Return the rate at which this model learns best in its first steps, tried on copies; the model is not touched.

    model       as it is trained: also compiled, inside DistributedDataParallel, or sharded by fully_shard; or the
                `ModelMap` of a model that is in none of these, so that it is not mapped again
    batches     a list, a DataLoader or another re-iterable object; of an iterator the first batches are read
    loss        a function of (model, batch) that returns one number; default: the loss that the model returns
    optimizer   a class of torch.optim, a function of the model that makes one, or an optimizer whose settings are
                taken; parameter groups keep the ratios of their rates. Default: AdamW(betas=(0.9, 0.95))
    warmup      steps of a linear warm-up
    steps       of one rehearsal
    rates       rehearsals at most; `steps * rates` is what it can cost, and one gradient
    seed        of dropout and other random numbers inside the model
    accumulate  batches whose gradients make one step
    clip        the largest norm of a gradient, as in training
    autocast    torch.bfloat16 or torch.float16 where training runs in half precision
    longer      rehearse again with three times the steps, four rates at most, if the first rehearsal hardly lowers
                the loss or the loss is still speeding up at its end: then a few steps say little about the rate
    progress    a function of the fraction done; True or False for a bar or none; None for one on a terminal

    No rate is named (`best` is None, `reason` says why) if none leaves the loss of the best constant answer.
    Model, optimizer, random streams, modes, gradients and the batches' own generators are as before afterwards. Ctrl-C
    ends it with what was learned so far, once a rate is finished. Processes that train together agree on the rate.

    >>> layer = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    >>> data = [torch.randn(8, 4, generator=torch.Generator().manual_seed(k)) for k in range(26)]
    >>> answer = learning_rate(layer, data, lambda m, x: (m(x) - x.sum(1, keepdim=True)).square().mean())
    >>> answer.low < answer.best < answer.high
    True
    """
    where = model if isinstance(model, ModelMap) else None
    module = model.model if isinstance(model, ModelMap) else model
    _refuse(module, warmup, steps, rates, accumulate, clip, autocast)
    with deferred() as interrupts, random_streams():
        copies = ModelCopies(module, optimizer)
        rows = first_batches(batches, steps * accumulate * (LONGER if longer else 1))
        plans = [
            TrainingSettings(
                loss or own_loss,
                split_batches(batches, rows, count, accumulate),
                count,
                warmup,
                accumulate,
                clip,
                autocast,
                seed,
                copies.group,
            )
            for count in (steps, LONGER * steps)
        ]
        return _Search(copies, plans[0], rates, interrupts, plans[1] if longer else None, where).run(progress)


class _Search:
    """The rehearsals of one call."""

    def __init__(
        self,
        copies: ModelCopies,
        plan: TrainingSettings,
        most: int,
        interrupts: Interrupts,
        long_plan: TrainingSettings | None = None,
        where: ModelMap | None = None,
    ) -> None:
        self.copies, self.plan, self.most, self.interrupts = copies, plan, most, interrupts
        self.long_plan, self.extended = long_plan, False
        self.validation = Validation(plan.loss, plan.batches.fresh, plan.over_processes, where)
        self.rehearsals: dict[float, Rehearsal] = {}  # by rung
        self.passes, self.passes_before, self.began = 0, 0, time.perf_counter()
        self.notes = list(plan.batches.notes)
        self.curvature: float | None = None
        self.limit: float | None = None

    def run(self, progress: Tell | bool | None) -> Rate:
        self.centre = self._prepare()
        cost = describe_cost(self.plan.steps, self.most, self.long_plan is not None)
        title = f"rehearsing, {cost}, about {self._about()}"
        interrupted = False
        with progress_bar(progress, title) as tell:
            self.tell = tell
            try:
                self._climb()
                if self.long_plan is not None and self._short:
                    self._extend(self.long_plan)
            except KeyboardInterrupt:
                if not self.rehearsals:
                    raise
                self.interrupts.exception, interrupted = None, True
        return self._answer(interrupted)

    def _climb(self) -> None:
        """Rehearse until the best rate is inside and the edge is known, or these steps turn out to be too few."""
        while (rung := next_rung(self._known(), self.most)) is not None:
            self._rehearse(rung, self.centre * FACTOR**rung)
            if self.long_plan is not None and not self.extended and self._short:
                return

    @property
    def _short(self) -> bool:
        """Return whether the first rehearsal that did not raise the loss was too short to compare rates by."""
        first = list(self.rehearsals.values())[:LOOKED_AT]
        steady = not self.plan.warmup  # else the loss speeds up because the rate does
        rows = [too_few(self.start.loss, r.at(self.plan.half).loss, r.loss, steady) for r in first]
        return not self.extended and next((row for row in rows if row is not None), False)

    def _extend(self, plan: TrainingSettings) -> None:
        """Begin again with more steps; what was learned is kept until the first of the longer ones is finished."""
        before, self.extended = (self.plan, self.most, self.rehearsals), True
        self.passes_before, self.plan, self.most, self.rehearsals = (
            self.passes,
            plan,
            min(self.most, LONG_RATES),
            {},
        )
        try:
            self._climb()
        except KeyboardInterrupt:
            if not self.rehearsals:
                self.plan, self.most, self.rehearsals = before
            raise
        self.notes += [note for note in plan.batches.notes if note not in self.notes]
        self.notes.append(
            f"after {before[0].steps} steps the loss had hardly fallen or was still speeding up, so rates were "
            f"compared after {plan.steps}"
        )

    def _about(self) -> str:
        longest = most_steps(self.plan.steps, self.most, True) / (self.most * self.plan.steps)
        more = f" ({duration(longest * self.estimate)})" if self.long_plan is not None else ""
        return duration(self.estimate) + more

    def _prepare(self) -> float:
        """Read the start, time a step, and say at which rate the ladder starts."""
        with self.copies.open() as (model, optimizer):
            rates = Rates(optimizer)
            self.ratios, self.optimizer = rates.ratios, describe_optimizer(optimizer)
            self.width = WIDTH_SGD if is_sgd(optimizer) else WIDTH
            self.start = self.validation.measure(model)
            if not math.isfinite(self.start.loss):
                raise BadInput(
                    f"the loss of the untrained model is {self.start.loss} on fresh batches: no rate can be read from "
                    "that. Look for NaN in the batches or the weights."
                )
            if self.start.loss == 0:
                raise BadInput(
                    "the loss of the untrained model is 0 on fresh batches: nothing is left to learn, and no "
                    "rate can be compared with another. Check the labels and what the loss counts."
                )
            self.guess = self.validation.guess(model)
            unit, sgd = self._unit(model, optimizer, rates), is_sgd(optimizer)
        if self.validation.note:
            self.notes.append(
                f"{self.validation.note}: streams are those of the output, and tokens were not inspected"
            )
        if sgd:
            try:
                if self.copies.group is not None:
                    raise BadInput("the model is spread over processes")
                with self.copies.open() as (model, optimizer):
                    batch = self.plan.batches.train[0]
                    self.curvature = largest_curvature(model, self.plan.loss, batch, optimizer, self.ratios)
                    self.limit = sgd_limit(optimizer, self.curvature)
                return CURVATURE * self.limit
            except (BadInput, RuntimeError, NotImplementedError) as error:
                self.notes.append(f"the curvature was not measured: {error}")
                return CURVATURE * unit if unit else 0.01
        return STREAM * math.sqrt(unit) if unit else 2e-3

    def _unit(self, model: nn.Module, optimizer: torch.optim.Optimizer, rates: Rates) -> float | None:
        """Return the rate at which one step moves the stream by its own size, by a small step; None if none moves."""
        clock = time.perf_counter()
        training_step(model, None, self.plan, 0)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if not gradients:
            raise BadInput(NO_GRADIENT)
        nudge = NUDGE
        if is_sgd(optimizer):
            norm = math.sqrt(sum(float(in_double(g.detach()).square().sum()) for g in gradients))
            size = math.sqrt(sum(float(in_double(p.detach()).square().sum()) for p in model.parameters()))
            nudge = 1e-4 * (size or 1.0) / norm if norm > 0 else NUDGE
        rates.set(nudge)
        optimizer.step()
        seconds = time.perf_counter() - clock
        self.estimate = seconds * self.most * self.plan.steps * 1.1
        after = self.validation.measure(model, 1).stream
        start = self.start.stream
        moved = self.plan.over_processes(relative(after, start))
        return nudge / moved if moved > 0 and math.isfinite(moved) else None

    def _rehearse(self, rung: float, rate: float) -> None:
        with self.copies.open() as (model, optimizer):
            rehearsal = rehearse(model, optimizer, rate, self.plan, self.validation, self.start, self._step)
        self.rehearsals[rung] = rehearsal

    def _step(self) -> None:
        self.passes += 1
        self.tell(self.passes / (self.passes_before + self.most * self.plan.steps))
        self._check()

    def _check(self) -> None:
        """Deliver Ctrl-C; if several processes train together, all of them stop at the same step."""
        if self.plan.group is None:
            return self.interrupts.check()
        stopped = 0.0
        try:
            self.interrupts.check()
        except KeyboardInterrupt:
            stopped = 1.0
        if self.plan.over_processes(stopped) > 0:
            raise KeyboardInterrupt

    def _score(self, rehearsal: Rehearsal) -> float:
        return score(rehearsal.rate, rehearsal.level, self.start.loss, self.centre, self.width)

    def _judged(self) -> list[Rehearsal]:
        """Return the rehearsals by rate, each with the reason why its rate is too large, if it is."""
        rows = sorted(self.rehearsals.values(), key=lambda r: r.rate)
        finite = [r for r in rows if math.isfinite(r.level)]
        best = min(finite, key=self._score) if finite else None
        return with_reasons(rows, best, self._moment())

    def _known(self) -> dict[float, Rung]:
        return {
            rung: Rung(self._score(r), r.reason is not None)
            for rung, r in zip(sorted(self.rehearsals), self._judged(), strict=True)
        }

    def _moment(self) -> Moment:
        return Moment(0, self.start.loss, 0.0, self.start.separation, self.start.output)

    def _answer(self, interrupted: bool) -> Rate:
        rehearsals = self._judged()
        reason = self._nothing_learned(rehearsals)
        best, edge = (None, None) if reason else self._advice(rehearsals)
        if self.guess.why:
            self.notes.append(UNKNOWN.format(self.guess.why))
        return Rate(
            best,
            best and best / RANGE,
            best and best * RANGE,
            edge,
            tuple(rehearsals),
            self._moment(),
            self.optimizer,
            self.ratios,
            self.plan.warmup,
            self.plan.steps,
            self.curvature,
            self.limit,
            self.passes,
            time.perf_counter() - self.began,
            self.estimate,
            interrupted,
            tuple(self.notes),
            self.guess.loss,
            reason,
        )

    def _nothing_learned(self, rehearsals: list[Rehearsal]) -> str | None:
        """Return why no rate is named: every one hurts, or none leaves the loss of guessing; None if one learns."""
        lowest = min((r.loss for r in rehearsals), default=math.inf)
        span = f"{format_rate(rehearsals[0].rate)} to {format_rate(rehearsals[-1].rate)}"
        if not lowest < self.start.loss + 2 * NOISE * abs(self.start.loss):
            return f"no rate from {span} lowered the loss on fresh batches"
        if self.guess.beaten(lowest):
            return None
        level = f"the loss of {self.guess.words} ({self.guess.loss:.3g})"
        if self.guess.on_the_way(lowest, self.start.loss):
            self.notes.append(
                f"no rate is below {level} yet, so these steps do not show that it learns from its input"
            )
            return None
        after = f"{lowest:.3g} after {self.plan.steps} steps"
        if self.guess.near(lowest):
            return f"every rate from {span} stays at {level}: at best {after}"
        return f"no rate from {span} gets below {level}: at best {after}"

    def _advice(self, rehearsals: list[Rehearsal]) -> tuple[float | None, float | None]:
        """(advised rate, edge): the shaded lowest point of the scores, below the edge."""
        lowest = min(r.loss for r in rehearsals)
        noise = 2 * NOISE * abs(self.start.loss)
        if lowest > self.start.loss - noise:
            self.notes.append(
                f"{self.plan.steps} steps hardly changed the loss ({self.start.loss:.3g} to {lowest:.3g}), so the "
                "rate rests on how far a step moves the network; more steps would tell more"
            )
        rates, scores = [r.rate for r in rehearsals], [self._score(r) for r in rehearsals]
        centre = vertex(rates, scores)
        assert centre is not None
        bracket = between(rates, [r.reason is not None for r in rehearsals], rates[scores.index(min(scores))])
        edge = None if bracket is None else _edge(bracket, self.limit)
        best = self._shade(min(r.level for r in rehearsals)) * centre
        return (best if edge is None else min(best, SAFE * edge)), edge

    def _shade(self, level: float) -> float:
        """Return how much less than the best rate of the rehearsals a whole training wants."""
        if not self.extended or not self.start.loss > 0:
            return SHADE
        return max(LEAST, min(SHADE, max(level / self.start.loss, 0.0) ** NEAR_THE_END))


def _edge(bracket: tuple[float, float], limit: float | None) -> float:
    """Between the last rate that learned and the first that did not: by curvature if the two agree, else midway."""
    low, high = bracket
    return limit if limit is not None and low <= limit <= AGREE * high else math.sqrt(low * high)


def _refuse(
    model: object,
    warmup: object,
    steps: object,
    rates: object,
    accumulate: object,
    clip: object,
    autocast: object,
) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"learning_rate takes a torch.nn.Module, got a {type(model).__name__}.")
    for name, value, least in (
        ("warmup", warmup, 0),
        ("steps", steps, 2),
        ("rates", rates, 3),
        ("accumulate", accumulate, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadInput(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if clip is not None and not (isinstance(clip, (int, float)) and clip > 0):
        raise BadInput(f"clip must be a norm above zero, got {clip!r}.")
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise BadInput(f"autocast must be torch.bfloat16, torch.float16 or None, got {autocast!r}.")


__all__ = ["learning_rate"]
