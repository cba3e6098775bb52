"""`learning_rate`: find the rate by a few steps at a few rates on copies of the model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.interrupts import Interrupts, deferred
from edgewise.landscape.evaluation import Batch, Loss, own_loss
from edgewise.models.model_map import ModelMap
from edgewise.models.state import random_streams
from edgewise.optim.parallel import local
from edgewise.progress import Tell, progress_bar
from edgewise.rehearsal.baseline import UNKNOWN, agreement
from edgewise.rehearsal.ladder import (
    BRACKET,
    FACTOR,
    HORIZON,
    KNOWN,
    KNOWN_SGD,
    NOISE,
    WIDTH,
    WIDTH_SGD,
    Rung,
    between,
    describe_cost,
    duration,
    next_rung,
    score,
    vertex,
)
from edgewise.rehearsal.optimizers import (
    OptimizerSource,
    Rates,
    describe_optimizer,
    is_sgd,
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

# The center of the ladder of a transformer with labels is RATE * (labels of a step / 100)^NOISY * sqrt(push / (width *
# size of a step)), where push is STREAM * sqrt(the rate at which one step moves the last stream by its own size), of
# which at most LOUDEST / (width * size of a step) counts; of SGD RATE_SGD * (labels / 100)^NOISY_SGD / length of the
# gradient. The constants were chosen on the networks that experiments/learning_rate/README.md names.
RATE = {"constant": 0.21, "linear": 0.38, "cosine": 0.38}
STREAM, LOUDEST = 0.11, 0.5
NOISY, LABELS, FEWEST, MOST = (
    0.3,
    100,
    16,
    1600,
)  # labels beyond the last two were not measured, and count as those
RATE_SGD, NOISY_SGD = {"constant": 0.085, "linear": 0.6, "cosine": 0.6}, 0.75
MOVED_SGD = 0.5  # of the rate at which SGD moves the stream by its own size: the center without labels
WARM = 2.0  # times the edge of cold rehearsals, if the training has a warm-up that is longer than one
AGREEMENT = 3.0  # standard errors from which on gradients agree that something follows from the input
SAFE = 0.7  # of the edge: never advised above this
NEIGHBOR = 1.2  # rungs up to which the ladder starts from the user's own rate
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
            search.warms = True
            search.notes.append(
                f"{warmup} steps of warm-up are longer than a rehearsal and were left out; the edge is taken {WARM:g} "
                "times as high"
            )
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
        self.warms = False  # a warm-up that is longer than a rehearsal was left out
        self.own: float | None = None
        self.own_rehearsal: Rehearsal | None = None
        self.confirmed = False  # the largest rate that learned did so again on other batches
        self.resume = resume
        self.validation = Validation(plan.loss, plan.batches.fresh, plan.over_processes, where)
        self.rehearsals: dict[float, Rehearsal] = {}  # by rung
        self.passes, self.began = 0, time.perf_counter()
        self.notes = list(plan.batches.notes)

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
        gone = done % steps == 0 and departed(
            rehearsal, self._moment(), self.scale
        )  # a spike between may pass
        if self.left - reserved < steps - steps // 2 or gone:
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
            if next(r for r in self._judged() if r.rate == again.rate).reason is None:
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
            sgd = is_sgd(optimizer)
            self._nudge(model, optimizer, rates)
        if self.validation.note:
            self.notes.append(
                f"{self.validation.note}: streams are those of the output, and tokens were not inspected"
            )
        return self._middle(sgd)

    def _middle(self, sgd: bool) -> float:
        """Return the center of the ladder: where the best rate lies by what is known without a training step."""
        labels, width, push = self.guess.labels, self.validation.width, STREAM * math.sqrt(self.unit or 0.0)
        if labels is None or width is None or not (push > 0 and self.push > 0):
            self.width, self.counts = WIDTH_SGD if sgd else WIDTH, NOISE * self.scale
            return (MOVED_SGD * self.unit if self.unit else 0.01) if sgd else push or 2e-3
        self.width, self.counts = KNOWN_SGD if sgd else KNOWN, HORIZON * self.scale
        processes = 1 if self.copies.group is None else dist.get_world_size(self.copies.group)
        share = min(max(labels * self.plan.accumulate * processes, FEWEST), MOST) / LABELS
        if sgd:
            length = min(self.push, self.plan.clip or math.inf)
            return RATE_SGD[self.schedule or "constant"] * share**NOISY_SGD / length
        bound = 1 / (width * self.push)
        return (
            RATE[self.schedule or "constant"] * share**NOISY * math.sqrt(min(push, LOUDEST * bound) * bound)
        )

    def _nudge(self, model: nn.Module, optimizer: torch.optim.Optimizer, rates: Rates) -> None:
        """Take one small step, and keep what a unit of rate does.

        unit  the rate at which it moves the stream by its own size; None if it does not move
        push  the root mean square change of a weight that moves; for SGD the length of the change of all weights
        """
        clock = time.perf_counter()
        training_step(model, None, self.plan, 0)
        if all(p.grad is None for p in model.parameters()):
            raise BadInput(NO_GRADIENT)
        before, nudge = [local(p).detach().clone() for p in model.parameters()], NUDGE
        if is_sgd(optimizer):
            norm = math.sqrt(sum(_square(p.grad) for p in model.parameters() if p.grad is not None))
            size = math.sqrt(sum(map(_square, before)))
            nudge = 1e-4 * (size or 1.0) / norm if norm > 0 else NUDGE
        rates.set(nudge)
        optimizer.step()
        seconds = time.perf_counter() - clock
        self.estimate = seconds * self.most * self.plan.steps * 1.1
        changes = [local(p).detach() - b for p, b in zip(model.parameters(), before, strict=True)]
        count = 1 if is_sgd(optimizer) else max(1, sum(int(torch.count_nonzero(c)) for c in changes))
        self.push = self.plan.over_processes(math.sqrt(sum(map(_square, changes)) / count) / nudge)
        self.push /= self.plan.scale if is_sgd(optimizer) else 1.0
        after = self.validation.measure(model, 1).stream
        moved = self.plan.over_processes(relative(after, self.start.stream))
        self.unit = nudge / moved if moved > 0 and math.isfinite(moved) else None

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
        return score(rehearsal.rate, rehearsal.level, self.counts, self.centre, self.width)

    def _judged(self) -> list[Rehearsal]:
        """Return the rehearsals by rate, each with the reason why its rate is too large, if it is."""
        rows = sorted(self.rehearsals.values(), key=lambda r: r.rate)
        return with_reasons(rows, self._score, self._moment(), self.scale)

    def _known(self) -> dict[float, Rung]:
        return {
            rung: Rung(
                self._score(r),
                r.reason is not None,
                self._learned(r),
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
        if self._agree():
            self.notes.append(
                f"no rate gets below {level} in these steps, but gradients of different batches agree that there is "
                "something to learn: the rate is that of other networks like it, below what diverged here"
            )
            return None
        if self.guess.near(lowest):
            return f"every rate from {span} stays at {level}: at best {after}"
        return f"no rate from {span} gets below {level}: at best {after}"

    def _agree(self) -> bool:
        """Return whether gradients of different batches agree that something follows from the input."""
        if self.copies.group is not None:
            return False
        with self.copies.open() as (model, _):
            batches = [*self.plan.batches.train, *self.plan.batches.fresh][: self.most * self.plan.steps]
            return agreement(model, self.plan.loss, batches) > AGREEMENT

    def _advice(self, rehearsals: list[Rehearsal]) -> tuple[float | None, float | None]:
        """(advised rate, edge): the lowest point of the scores, below the edge."""
        usable = [r for r in rehearsals if math.isfinite(r.level)]
        diverged = min(
            (r.rate for r in rehearsals if departed(r, self._moment(), self.scale)), default=math.inf
        )
        usable = [r for r in usable if r.rate < diverged] or usable
        rates, scores = [r.rate for r in usable], [self._score(r) for r in usable]
        learned = any(map(self._learned, usable))
        centre = vertex(rates, scores) if learned else self.centre
        assert centre is not None
        best = rates[scores.index(min(scores))]
        bracket = between([r.rate for r in rehearsals], [r.reason is not None for r in rehearsals], best)
        edge = None if bracket is None else math.sqrt(bracket[0] * bracket[1])
        if edge is not None and self.warms:
            edge *= WARM
        return min(centre, SAFE * (math.inf if edge is None else edge), SAFE * diverged), edge


def _square(values: Tensor) -> float:
    return float(in_double(local(values).detach()).square().sum())


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
    if schedule is not None and schedule not in RATE:
        raise BadInput(f"schedule must be one of {', '.join(RATE)}, or None, got {schedule!r}.")
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise BadInput(f"autocast must be torch.bfloat16, torch.float16 or None, got {autocast!r}.")


__all__ = ["ladder_start", "learning_rate"]
