"""Rate: the advised rate with its range, the largest that learns, and why larger ones fail."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from edgewise.errors import BadInput
from edgewise.files import json_values
from edgewise.nouns.architecture import Shown
from edgewise.rehearsal.ladder import HORIZON, NOISE, Guess

VERSION = 1
RANGE = 2.0  # the advice is a factor
LAST, TRAINING_SHARE = 8, 0.25
ALLOWS = "with warm-up and a cosine or linear decay about twice as much is as good or better"
NOT_FINITE = "the loss was not finite"
ALIKE = "the tokens became alike"
OUTPUTS = "the outputs grew"
ROSE = "the loss rose"
BEHIND = "it learned far less than a smaller rate"
SEPARATION = 0.02  # below this share of the separation at the start tokens count as alike
DEAD = 1e-2  # separation at every rate and at the start below which only the frequencies of labels can be learned
GROWTH = 30.0  # outputs this many times those at the start and at the best rate
RISE = 0.25  # of the loss at the start
SHARE = 0.75  # of the fall of the loss at the best rate


@dataclass(frozen=True)
class Moment:
    """A network after some steps: fresh loss, last stream, tokens, outputs."""

    step: int
    loss: float  # on batches that it does not train on
    moved: float  # |stream - stream at the start| / |stream at the start|
    separation: float | None  # mean of 1 - cosine between tokens of the last stream; None if it was not read
    output: float  # root mean square of the outputs


NOTHING = Moment(0, math.inf, math.inf, None, math.inf)  # of a run that was never inspected


@dataclass(frozen=True)
class Rehearsal:
    """Some steps at one rate on a copy: losses, what was seen on the way, and what left first if anything did."""

    rate: float
    losses: tuple[float, ...]  # of each training batch before its step
    moments: tuple[Moment, ...]
    step_change: float | None  # |change of the last stream in the last step| / |stream|
    reason: str | None = None  # why this rate is too large; None if it is not
    left_at: int | None = None  # the step at which that was seen
    compared: int | None = None  # the step at which rates are compared, if this one went on beyond it

    @property
    def loss(self) -> float:
        """The fresh loss where rates are compared; infinite if the run left the range of numbers."""
        value = self.at(len(self.losses) if self.compared is None else self.compared).loss
        return value if math.isfinite(value) and self.end < math.inf else math.inf

    @property
    def end(self) -> float:
        """The fresh loss at the end; infinite if the run left the range of numbers."""
        value = self.moments[-1].loss if self.moments else math.inf
        return value if math.isfinite(value) else math.inf

    @property
    def level(self) -> float:
        """The number that rates are compared by: the fresh loss at the end, with a quarter of the last training losses.

        Those belong to weights a few steps back, but there are more of them, so the noise is less.
        """
        last = self.losses[: self.compared][-LAST:]
        value = (
            (1 - TRAINING_SHARE) * self.loss + TRAINING_SHARE * sum(last) / len(last) if last else math.inf
        )
        return value if math.isfinite(value) else math.inf

    def at(self, step: int) -> Moment:
        """Return the last look up to a step; the first one if there was none yet."""
        return (
            next((m for m in reversed(self.moments) if m.step <= step), self.moments[0])
            if self.moments
            else NOTHING
        )

    @property
    def separation(self) -> float | None:
        return self.moments[-1].separation if self.moments else None


@dataclass(frozen=True)
class Rate(Shown):
    """The answer of `edgewise.learning_rate`; rates are those of the first parameter group."""

    best: float | None  # None if no rate learned
    low: float | None
    high: float | None
    edge: float | None  # the largest rate that still learns; None if no rate that was tried was too large
    rehearsals: tuple[Rehearsal, ...]  # by rate
    start: Moment
    optimizer: str
    ratios: tuple[float, ...] = (1.0,)  # of the parameter groups' rates to the first
    warmup: int = 0
    steps: int = 20
    passes: int = 0  # training steps that were run, on copies
    seconds: float = 0.0
    estimate: float = 0.0  # seconds, as said beforehand
    interrupted: bool = False
    notes: tuple[str, ...] = field(default=())
    guess: float | None = None  # loss of the best constant answer on fresh batches; None if it was not found
    reason: str | None = None  # why no rate is named
    floor: float | None = None  # loss of the labels themselves as the answer; None if it was not found
    schedule: str | None = (
        None  # what the rate does after the warm-up: constant, linear, cosine; None if not said
    )
    own: Rehearsal | None = None  # the user's own rate
    confirmed: bool = False  # the largest rate that learned did so on other batches too

    @property
    def learned(self) -> bool | None:
        """True if a rehearsal left the loss of the best constant answer; None if that is not known."""
        if self.guess is None:
            return None
        guess = Guess(self.guess, floor=self.floor)
        return guess.beaten(min((r.end for r in self.rehearsals), default=math.inf))

    @property
    def tried(self) -> tuple[float, ...]:
        """All rates, in order."""
        return tuple(rehearsal.rate for rehearsal in self.rehearsals)

    @property
    def group_rates(self) -> tuple[float, ...] | None:
        """The advised rate of every parameter group."""
        return None if self.best is None else tuple(self.best * ratio for ratio in self.ratios)

    @property
    def at_edge(self) -> Rehearsal | None:
        """The rehearsal at the largest rate that still learned: what a running training can be compared with."""
        learned = [rehearsal for rehearsal in self.rehearsals if rehearsal.reason is None]
        return learned[-1] if learned else None

    @property
    def beyond(self) -> Rehearsal | None:
        """The rehearsal at the smallest rate that was too large; None if none was."""
        learned = self.at_edge
        above = [
            r for r in self.rehearsals if r.reason is not None and (learned is None or r.rate > learned.rate)
        ]
        return above[0] if above else None

    def to_json(self) -> str:
        """Return one JSON document; numbers that are not finite are null."""
        return json.dumps(json_values({"version": VERSION} | asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Rate:
        """Return the inverse of `to_json`; a loss that was not finite comes back as infinite."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise BadInput(f"this is not the JSON of a Rate: {error}") from error
        if not isinstance(values, Mapping) or values.get("version") != VERSION:
            raise BadInput(f"expected the JSON of a Rate, version {VERSION}, as `Rate.to_json` writes it.")
        names = {f.name for f in fields(cls)}
        content = {name: value for name, value in values.items() if name in names}
        content["start"] = _moment(content["start"])
        content["rehearsals"] = tuple(rehearsal_of(r) for r in content["rehearsals"])
        content["own"] = content.get("own") and rehearsal_of(content["own"])
        content |= {name: tuple(content[name]) for name in ("ratios", "notes")}
        return cls(**content)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)}" for name in ("best", "low", "high", "edge"))
        return f"<Rate {values}, {len(self.rehearsals)} rehearsals; print it>"

    def __str__(self) -> str:
        """Return what to use, how far it can be trusted, where the edge is and why, and what it cost."""
        notes = [f"{note[:1].upper()}{note[1:]}." for note in self.notes]
        return " ".join([*own(self), _advice(self), *edge(self), cost(self), *notes])


def _moment(values: Mapping[str, Any]) -> Moment:
    numbers = {n: math.inf if values[n] is None else values[n] for n in ("loss", "moved", "output")}
    return Moment(**{**values, **numbers})


def rehearsal_of(values: Mapping[str, Any]) -> Rehearsal:
    """Return the inverse of `asdict` and `json_values`."""
    losses = tuple(math.inf if loss is None else loss for loss in values["losses"])
    return Rehearsal(**{**values, "losses": losses, "moments": tuple(_moment(m) for m in values["moments"])})


def format_rate(rate: float) -> str:
    """Return two digits: 1.6e-3 for rates below a hundredth, 0.16 above."""
    if rate >= 0.01:
        return f"{rate:.2g}"
    mantissa, exponent = f"{rate:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _advice(rate: Rate) -> str:
    warmup = f"with {rate.warmup} steps of warm-up" if rate.warmup else "without warm-up"
    setting = f"{rate.optimizer} {warmup}"
    if rate.best is None or rate.low is None or rate.high is None:
        low, high = (format_rate(value) for value in (rate.tried[0], rate.tried[-1]))
        return (
            f"{setting}: {rate.reason or f'no rate from {low} to {high} lowered the loss on fresh batches'}."
        )
    return f"{setting}: use {format_rate(rate.best)} ({format_rate(rate.low)} to {format_rate(rate.high)})."


def edge(rate: Rate) -> list[str]:
    """Return where rates become too large, and why; no sentence if no rate learned."""
    beyond = rate.beyond
    if rate.best is None:
        return []
    decays = [f"For a constant rate; {ALLOWS}."] if rate.schedule in (None, "constant") else []
    if beyond is None:
        return [f"No rate up to {format_rate(rate.tried[-1])} was too large.", *decays]
    doubt = "" if rate.confirmed else ", not confirmed on other batches"
    treat = "" if rate.edge is None else f"; treat {format_rate(rate.edge)} as the edge{doubt}"
    cold = " without the warm-up" if rate.edge is not None and rate.edge >= beyond.rate else ""
    return [f"At {format_rate(beyond.rate)}{cold} {_why(rate, beyond)}{treat}{cold and ' with it'}.", *decays]


def own(rate: Rate) -> list[str]:
    """Return how the user's own rate compares with the advice; no sentence without both."""
    if rate.own is None or rate.best is None:
        return []
    ratio, yours = rate.best / rate.own.rate, f"Yours is {format_rate(rate.own.rate)}"
    if 1 / RANGE <= ratio <= RANGE and rate.own.reason is None:
        return [f"{yours}, within a factor of {RANGE:g} of the advice."]
    times = f"{max(ratio, 1 / ratio):.2g}" if max(ratio, 1 / ratio) < 10 else f"{max(ratio, 1 / ratio):#.1g}"
    times = f"{float(times):,.15g}"
    steps, fall = len(rate.own.losses), rate.start.loss - rate.own.end
    seen = (
        f"{rate.own.reason} within {rate.own.left_at} steps"
        if rate.own.reason is not None
        else f"{steps} steps took {max(fall, 0.0):.2g} off a loss of {rate.start.loss:.3g}"
    )
    side = "above" if ratio < 1 else "below"
    return [f"{yours}, about {times} times {side} what this network takes: {seen}."]


def schedule_named(name: str = "constant") -> str | None:
    """Return constant, linear or cosine by the name of a scheduler; None if it is none of those."""
    kinds = {"cos": "cosine", "onecycle": "cosine", "lin": "linear", "poly": "linear", "const": "constant"}
    return next((kind for part, kind in kinds.items() if part in name.lower()), None)


def _why(rate: Rate, beyond: Rehearsal) -> str:
    reason = f"{beyond.reason} within {beyond.left_at} steps"
    before, after = rate.start.separation, beyond.separation
    if beyond.reason is not None and "alike" in beyond.reason and before is not None and after is not None:
        reason += f" (separation {before:.2g} to {after:.2g})"
    return reason


def cost(rate: Rate) -> str:
    """Return what the answer rests on, and what it is silent about."""
    ended = "; interrupted, so this rests on what was finished" if rate.interrupted else ""
    return (
        f"Read from {len(rate.rehearsals)} rehearsals of {rate.steps} or more steps on a copy ({rate.passes} steps, "
        f"{rate.seconds:.0f} s{ended}); valid for this batch size and optimizer, and silent about what comes later in "
        "training."
    )


def with_reasons(
    rehearsals: Sequence[Rehearsal], score: Callable[[Rehearsal], float], start: Moment, scale: float
) -> list[Rehearsal]:
    """Return every rehearsal with the reason why its rate is too large, if it is.

    No rate up to the best one is, and the best one is below every rate that diverged.
    """
    diverged = min((r.rate for r in rehearsals if departed(r, start, scale)), default=math.inf)
    finite = [r for r in rehearsals if math.isfinite(r.level) and r.rate < diverged]
    best = min(finite, key=score) if finite else None
    return [_judged(rehearsal, best, start, scale) for rehearsal in rehearsals]


def tokens_alike(start: Moment, rehearsals: Sequence[Rehearsal]) -> bool:
    """Return whether tokens are alike at the start and at every rate: only frequencies of labels can be learned."""
    values = [start.separation, *(r.separation for r in rehearsals if r.moments)]
    return all(value is not None and value < DEAD for value in values)


def departed(rehearsal: Rehearsal, start: Moment, scale: float) -> bool:
    """Return whether it diverged: the loss far above its start, not finite, or rising again as it was continued."""
    if any(name in (ROSE, NOT_FINITE) for _, name in _departures(rehearsal, None, start)):
        return True
    return rehearsal.end > rehearsal.loss + HORIZON * scale


def _judged(rehearsal: Rehearsal, best: Rehearsal | None, start: Moment, scale: float) -> Rehearsal:
    if best is not None and rehearsal.rate <= best.rate:
        return replace(rehearsal, reason=None, left_at=None)
    step, reason = next(_departures(rehearsal, best, start), (None, None))
    if reason is None and departed(rehearsal, start, scale):
        step, reason = len(rehearsal.losses), ROSE
    if reason is None and best is not None:
        most = start.loss - best.loss
        if most > NOISE * scale and start.loss - rehearsal.loss < SHARE * most:
            step, reason = len(rehearsal.losses), BEHIND
    return replace(rehearsal, reason=reason, left_at=step)


def _departures(rehearsal: Rehearsal, best: Rehearsal | None, start: Moment) -> Iterator[tuple[int, str]]:
    """(step, reason) in the order in which they were seen, of what was still so at the end."""
    lasting = set(_of_moment(rehearsal.moments[-1], best, start)) if rehearsal.moments else set()
    seen = [
        (m.step, 0, name) for m in rehearsal.moments for name in _of_moment(m, best, start) if name in lasting
    ]
    seen += [(k + 1, 1, NOT_FINITE) for k, value in enumerate(rehearsal.losses) if not math.isfinite(value)]
    if not math.isfinite(rehearsal.loss):
        seen.append((len(rehearsal.losses), 1, NOT_FINITE))
    yield from ((step, name) for step, _, name in sorted(seen))


def _of_moment(moment: Moment, best: Rehearsal | None, start: Moment) -> Iterator[str]:
    before, after = start.separation, moment.separation
    own = None if best is None else best.separation
    if before is not None and after is not None and after < SEPARATION * before <= (own or before):
        yield ALIKE
    outputs = max(start.output, best.moments[-1].output if best is not None and best.moments else 0.0)
    if math.isfinite(outputs) and moment.output > GROWTH * outputs:
        yield OUTPUTS
    if moment.loss > (1 + RISE) * start.loss:
        yield ROSE
