"""`learning_rate`: find the rate by a few steps at a few rates on copies of the model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

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
    BRACKET,
    FACTOR,
    NOISE,
    WIDTH,
    WIDTH_SGD,
    Rung,
    between,
    describe_cost,
    duration,
    edge_between,
    next_rung,
    score,
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
from edgewise.rehearsal.rate import (
    RANGE,
    Moment,
    Rate,
    Rehearsal,
    departed,
    format_rate,
    tokens_alike,
    with_reasons,
)
from edgewise.rehearsal.short_training import (
    NO_GRADIENT,
    KeptRehearsals,
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
# Of the best rate of a rehearsal: a whole training at a constant rate wants less than its first steps.
# Chosen on nine networks (`DEVELOPMENT` in experiments/learning_rate/scheduled_population.py).
SHADE = {"constant": 0.625, "linear": 1.25, "cosine": 1.25}
FAST, LEAST = (
    3.0,
    0.25,
)  # power of the share that is left to learn, and the least that comes of it: what is learned
# within a rehearsal wants less
SAFE = 0.7  # of the edge: never advised above this
NEIGHBOR = 1.2  # rungs up to which the ladder starts from the user's own rate
POST_DEPTH = 6  # blocks with the norm on the sum, from which on a ladder starts lower, in proportion
NUDGE = 1e-5  # rate of the one step that measures how far a unit of rate moves the stream


def learning_rate(
    model: nn.Module | ModelMap,
    batches: Iterable[Batch],
    loss: Loss | None = None,
    *,
    optimizer: OptimizerSource | None = None,
    warmup: int = 0,
    schedule: str | None = None,
    own: float | None = None,
    steps: int = 10,
    rates: int = 6,
    seed: int = 0,
    accumulate: int = 1,
    clip: float | None = None,
    autocast: torch.dtype | None = None,
    resume: str | Path | None = None,
    progress: Tell | bool | None = None,
) -> Rate:
    """Return the rate at which this model learns best in its first steps, tried on copies; the model is not touched.

    model       as it is trained: also compiled, inside DistributedDataParallel, or sharded by fully_shard; or the
                `ModelMap` of a model that is in none of these, so that it is not mapped again
    batches     a list, a DataLoader or another re-iterable object; of an iterator the first batches are read
    loss        a function of (model, batch) that returns one number; default: the loss that the model returns
    optimizer   a class of torch.optim, a function of the model that makes one, or an optimizer whose settings are
                taken; parameter groups keep the ratios of their rates. Default: AdamW(betas=(0.9, 0.95))
    warmup      steps of a linear warm-up; one that is longer than a rehearsal is left out
    schedule    what the rate does afterwards: "constant", "linear" or "cosine"; None if that is not decided
    own         the user's own rate, which is rehearsed first; by default that of an optimizer that is given
    steps       of one rehearsal; one that stays at the loss of guessing is continued
    rates       rehearsals; `steps * rates` training steps is what all of it can cost, and one gradient
    seed        of dropout and other random numbers inside the model
    accumulate  batches whose gradients make one step
    clip        the largest norm of a gradient, as in training
    autocast    torch.bfloat16 or torch.float16 where training runs in half precision
    resume      a file that keeps every finished rehearsal; those that it has are not trained again
    progress    a function of the fraction done; True or False for a bar or none; None for one on a terminal

    No rate is named (`best` is None, `reason` says why) if none leaves the loss of the best constant answer, or if
    these steps hardly changed the loss.
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
    _refuse(module, warmup, steps, rates, accumulate, clip, autocast, schedule, own)
    with deferred() as interrupts, random_streams():
        copies = ModelCopies(module, optimizer)
        longest = steps * max(1, rates - BRACKET + 1)  # of one rehearsal, if it is continued
        rows = first_batches(batches, longest * accumulate)
        split = split_batches(batches, rows, longest, accumulate)
        plan = TrainingSettings(
            loss or own_loss,
            split,
            steps,
            warmup if warmup <= steps else 0,
            accumulate,
            clip,
            autocast,
            seed,
            copies.group,
        )
        search = _Search(copies, plan, rates, interrupts, where, None if resume is None else Path(resume))
        search.schedule, search.own = schedule, own
        if warmup > steps:
            search.notes.append(f"{warmup} steps of warm-up are longer than a rehearsal and were left out")
        return search.run(progress)


def ladder_start(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Loss | None = None,
    *,
    optimizer: OptimizerSource | None = None,
    seed: int = 0,
    accumulate: int = 1,
    clip: float | None = None,
    autocast: torch.dtype | None = None,
) -> float:
    """Return the rate at which the ladder of this model starts: one gradient and one small step, no training."""
    with deferred() as interrupts, random_streams():
        copies = ModelCopies(model, optimizer)
        split = split_batches(batches, first_batches(batches, accumulate), 1, accumulate)
        settings = (loss or own_loss, split, 1, 0, accumulate, clip, autocast, seed, copies.group)
        return _Search(copies, TrainingSettings(*settings), BRACKET, interrupts)._prepare()


class _Search:
    """The rehearsals of one call."""

    def __init__(
        self,
        copies: ModelCopies,
        plan: TrainingSettings,
        most: int,
        interrupts: Interrupts,
        where: ModelMap | None = None,
        resume: Path | None = None,
    ) -> None:
        self.copies, self.plan, self.most, self.interrupts = copies, plan, most, interrupts
        self.schedule: str | None = None
        self.own: float | None = None
        self.own_rehearsal: Rehearsal | None = None
        # On other batches the largest rate that learned did so again, or failed and the curvature does not count.
        self.confirmed = self.disproved = False
        self.resume = resume
        self.validation = Validation(plan.loss, plan.batches.fresh, plan.over_processes, where)
        self.rehearsals: dict[float, Rehearsal] = {}  # by rung
        self.passes, self.began = 0, time.perf_counter()
        self.notes = list(plan.batches.notes)
        self.curvature: float | None = None
        self.limit: float | None = None

    def run(self, progress: Tell | bool | None) -> Rate:
        self.centre = self.first = self._prepare()
        self.kept = KeptRehearsals(
            self.resume, self.plan.identity(self.optimizer, self.most, self.start.loss)
        )
        title = f"rehearsing, {describe_cost(self.plan.steps, self.most)}, about {duration(self.estimate)}"
        interrupted = False
        with progress_bar(progress, title) as tell:
            self.tell = tell
            try:
                self._start_from_own()
                self._climb()
                self._confirm()
            except KeyboardInterrupt:
                if not self.rehearsals:
                    raise
                self.interrupts.exception, interrupted = None, True
        return self._answer(interrupted)

    @property
    def left(self) -> int:
        """Training steps that may still be run."""
        return self.most * self.plan.steps - self.passes

    def _start_from_own(self) -> None:
        """Put the user's own rate on the ladder, or rehearse it beside the ladder if it is far away."""
        if self.own is None:
            return
        if abs(math.log(self.own / self.centre)) <= NEIGHBOR * math.log(FACTOR):
            self.first = self.own
        else:
            self.own_rehearsal = self._rehearsed(self.own, self.plan)

    def _climb(self) -> None:
        """Rehearse until the best rate is inside and the edge is known; one rehearsal is left to confirm it."""
        steps = self.plan.steps
        while True:
            known = self._known()
            confirming = len(known) >= BRACKET and any(rung.too_large for rung in known.values())
            rung = next_rung(known, len(known) + max(self.left // steps - confirming, 0))
            if rung is None:
                return
            self.rehearsals[rung] = self._rehearsed(self.first * FACTOR**rung, self.plan, self._continued)

    def _continued(self, rehearsal: Rehearsal) -> bool:
        """Return whether a rehearsal is continued: the first one once, all while none has left the loss of guessing.

        If that one does not fall any more, it stays on the plateau; the rate below it may leave it sooner.
        """
        steps, done = self.plan.steps, len(rehearsal.losses)
        reserved = steps * max(0, BRACKET - 1 - len(self.rehearsals))
        if self.left - reserved < steps - steps // 2 or departed(rehearsal, self._moment(), self.scale):
            return False
        falls = rehearsal.at(done - steps).loss - rehearsal.end > NOISE * self.scale
        if not self.rehearsals and (done < 2 * steps or not falls):
            return done < 2 * steps
        return not any(map(self._learned, (rehearsal, *self.rehearsals.values())))

    def _learned(self, rehearsal: Rehearsal) -> bool:
        """Return whether it left the loss of guessing; where that is unknown, whether it changed the loss at all."""
        if self.guess.loss is not None:
            return self.guess.beaten(rehearsal.end)
        return rehearsal.end < self.start.loss - 2 * NOISE * self.scale

    def _confirm(self) -> None:
        """Rehearse the largest rate that learned on other batches; if that fails, the next one below it."""
        while self.left >= self.plan.steps:
            rows = self._judged()
            first = next((r.rate for r in rows if r.reason is not None), 0.0)
            below = [rung for rung in self.rehearsals if self.rehearsals[rung].rate < first]
            if not below or not any(self._learned(r) for r in rows):
                return
            rung = max(below)
            again = self._rehearsed(self.rehearsals[rung].rate, self.plan.on_other_batches())
            before, self.rehearsals = self.rehearsals, {**self.rehearsals, rung: again}
            self.disproved = next(r for r in self._judged() if r.rate == again.rate).reason is not None
            if not self.disproved:
                self.rehearsals, self.confirmed = before, True
                return

    def _rehearsed(
        self,
        rate: float,
        plan: TrainingSettings,
        continued: Callable[[Rehearsal], bool] = lambda _: False,
    ) -> Rehearsal:
        """Return the rehearsal at one rate, from the file of finished ones if it is there."""
        kept = self.kept.get(rate, plan.seed)
        if kept is not None:
            self.passes += len(kept.losses)
            return kept
        with self.copies.open() as (model, optimizer):
            arguments = (rate, plan, self.validation, self.start, self._step, continued)
            return self.kept.put(rehearse(model, optimizer, *arguments), plan.seed)

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
            self.scale = self.guess.scale or abs(self.start.loss)
            if self.own is None and self.copies.instance is not None:
                self.own = rates.first
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
        deep = max(1.0, self.validation.post_norm_blocks / POST_DEPTH)
        return (STREAM * math.sqrt(unit) if unit else 2e-3) / deep

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

    def _step(self) -> None:
        self.passes += 1
        self.tell(self.passes / (self.most * self.plan.steps))
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
        return score(rehearsal.rate, rehearsal.level, self.scale, self.centre, self.width)

    def _judged(self) -> list[Rehearsal]:
        """Return the rehearsals by rate, each with the reason why its rate is too large, if it is."""
        rows = sorted(self.rehearsals.values(), key=lambda r: r.rate)
        return with_reasons(rows, self._score, self._moment(), self.scale)

    def _known(self) -> dict[float, Rung]:
        return {
            rung: Rung(
                self._score(r),
                r.reason is not None,
                self._learned(r) or self.guess.on_the_way(r.end, self.start.loss),
            )
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
        own = self.own_rehearsal
        if own is not None:
            own = next(
                r
                for r in with_reasons([*rehearsals, own], self._score, self._moment(), self.scale)
                if r.rate == own.rate
            )
        elif self.own is not None:
            own = next((r for r in rehearsals if r.rate == self.own), None)
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
            self.guess.floor,
            self.schedule,
            own,
            self.confirmed,
        )

    def _nothing_learned(self, rehearsals: list[Rehearsal]) -> str | None:
        """Return why no rate is named: none changes the loss, or leaves that of guessing; None if one learns."""
        lowest = min((r.end for r in rehearsals), default=math.inf)
        span = f"{format_rate(rehearsals[0].rate)} to {format_rate(rehearsals[-1].rate)}"
        noise, after = (
            2 * NOISE * self.scale,
            f"{lowest:.3g} after {max(len(r.losses) for r in rehearsals)} steps",
        )
        if not lowest < self.start.loss + noise:
            return f"no rate from {span} lowered the loss on fresh batches"
        if self.guess.loss is None:
            small = lowest > self.start.loss - noise
            return f"no rate from {span} changed the loss by much: at best {after}" if small else None
        if self.guess.beaten(lowest):
            return None
        level = f"the loss of {self.guess.words} ({self.guess.loss:.3g})"
        if tokens_alike(self._moment(), rehearsals):
            return f"tokens are alike at every rate from {span}, so it can learn no more than {level}: at best {after}"
        if self.guess.on_the_way(lowest, self.start.loss):
            self.notes.append(
                f"no rate is below {level} yet, so these steps do not show that it learns from its input"
            )
            return None
        if self.guess.near(lowest):
            return f"every rate from {span} stays at {level}: at best {after}"
        return f"no rate from {span} gets below {level}: at best {after}"

    def _advice(self, rehearsals: list[Rehearsal]) -> tuple[float | None, float | None]:
        """(advised rate, edge): the shaded lowest point of the scores, below the edge."""
        usable = [r for r in rehearsals if math.isfinite(r.level)]
        diverged = min(
            (r.rate for r in rehearsals if departed(r, self._moment(), self.scale)), default=math.inf
        )
        usable = [r for r in usable if r.rate < diverged] or usable
        rates, scores = [r.rate for r in usable], [self._score(r) for r in usable]
        centre = vertex(rates, scores)
        assert centre is not None
        best = rates[scores.index(min(scores))]
        bracket = between([r.rate for r in rehearsals], [r.reason is not None for r in rehearsals], best)
        edge = None if bracket is None else edge_between(bracket, None if self.disproved else self.limit)
        lowest = min(r.end for r in rehearsals)
        share = (
            0.0 if self.guess.loss is None else min(max((self.guess.loss - lowest) / self.scale, 0.0), 1.0)
        )
        shade = SHADE[self.schedule or "constant"] * max((1 - share) ** FAST, LEAST)
        return min(shade * centre, SAFE * (math.inf if edge is None else edge)), edge


def _refuse(
    model: object,
    warmup: object,
    steps: object,
    rates: object,
    accumulate: object,
    clip: object,
    autocast: object,
    schedule: object,
    own: object,
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
    if own is not None and not (isinstance(own, (int, float)) and 0 < own < math.inf):
        raise BadInput(f"own must be a learning rate above zero, got {own!r}.")
    if schedule is not None and schedule not in SHADE:
        raise BadInput(f"schedule must be one of {', '.join(SHADE)}, or None, got {schedule!r}.")
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise BadInput(f"autocast must be torch.bfloat16, torch.float16 or None, got {autocast!r}.")


__all__ = ["ladder_start", "learning_rate"]
