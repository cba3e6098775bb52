"""Failures that the loss shows: a batch, a spike, a number that is not finite. One function each, as in `detectors`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.series import FEWEST, FLOOR, JUMP, LARGEST, WINDOW, History

HALVED, FADING = math.log(0.5), math.log(0.75)
STAYS = 3  # rows for which a sudden change must persist


@dataclass(frozen=True)
class Detection:
    """What a detector saw: where among the series, and the sentence with its numbers."""

    kind: AlarmKind
    sentence: str
    cause: str = ""  # if it is certain
    advice: str = ""
    series: int | None = None
    could_be: tuple[str, ...] = ()
    module: str = ""
    topic: str = ""  # of a cause: one alarm for each, whoever finds it


Detector = Callable[[History], Detection | None]


def median_of(history: History, at: NDArray[np.int64]) -> Array:
    """Of the rows before this one, at most 20 of them."""
    if history.count < 2:
        return history.now[at]
    with np.errstate(invalid="ignore"):
        return np.asarray(np.median(history.past()[1][:-1][:, at][-FEWEST:], axis=0))


CHANCE, SCATTER = 0.01, 4.0
LATE = 3  # rows that are compared with those before them
MOVED = math.log(1.5)  # what changed by less is not a cause


def evidence(history: History) -> Array:
    """Measure how far each series has moved the wrong way, (series,); 0 with fewer than twice three rows."""
    past = history.past()[1]
    if len(past) < 2 * LATE:
        return np.zeros(history.series)
    late, early = past[-LATE:], past[:-LATE]
    with np.errstate(invalid="ignore"):
        before = np.median(early, axis=0)
        change = history.worse * (np.median(late, axis=0) - before)
        scatter = 1.4826 * np.median(np.abs(early - before), axis=0)
        step = change / np.maximum(scatter, FLOOR) / SCATTER
        moved = np.fmax(step, history.worse * history.t / _hint(history.series, history.rows))
        return np.where(change > MOVED, np.nan_to_num(moved), 0.0)


def steps_grew(history: History) -> bool:
    """Return whether the steps of the optimizer are larger than they were, against the weights."""
    return bool((evidence(history)[history.at("update_ratio")] > 1).any())


@cache
def _hint(series: int, rows: int) -> float:
    from scipy.special import stdtrit

    return -float(stdtrit(rows - 2, CHANCE / max(series, 1)))


LOUDER = math.log(1.2)  # of the loss, against its recent median
MATTERS = 0.1  # of the first loss: a jump by less, of a network that has learned, harms nothing
TOGETHER = 5.0  # times their scatter, by which loss and gradient jump at once and the loss doubles
PASSING = 10  # steps in which a jump of the loss that came between two rows is looked for
PASSED = 10.0  # times the scatter of the loss, if the row of a bad batch is missing
CLOSED = math.log(0.1)  # of the attention entropy at the start
# of a small loss, whose logarithm scatters, if that brings it back to half of the first one
LEARNED = math.log(8.0)


def bad_batch(history: History) -> Detection | None:
    """Loss and gradient jump in the same row; whether anything moved before is for the order to say."""
    loss = history.at("loss")
    unlearned = bool(len(loss)) and _unlearned(history, int(loss[0]))
    if not len(loss) or not _rise(history, int(loss[0])) > LOUDER:
        return None
    jumps = np.nan_to_num([history.jump[i] for i in (*history.at("gradient_norm"), *history.at("gradient"))])
    together = history.jump[loss[0]] > TOGETHER and _rise(history, int(loss[0])) > -HALVED
    if not (unlearned or together or history.jump[loss[0]] > JUMP):
        return None
    jumped = bool((jumps > (TOGETHER if together else JUMP)).any())
    if not (jumped or unlearned):
        return None
    gradient = f", and the gradient jumped with it ({jumps.max():.0f} times its scatter)" if jumped else ""
    return Detection(
        AlarmKind.BAD_BATCH,
        f"The loss is {math.exp(history.now[loss[0]]):.3g}, {math.exp(_rise(history, int(loss[0]))):.3g} times its "
        f"recent median{gradient}.",
        series=int(loss[0]),
    )


def _unlearned(history: History, loss: int) -> bool:
    """Return whether a small loss, whose logarithm scatters, is back at half of the first one by one step."""
    if history.rows <= FEWEST:
        return False
    before, now = history.past()[1][-2:, loss]
    at_once = now > history.losses.first + HALVED and now > before + LEARNED / 2
    return bool(at_once) and _rise(history, loss) > LEARNED


def passed_batch(history: History) -> Detection | None:
    """A loss since the last row jumped, and is back; no row was taken there, so that the loss alone says it."""
    at, past = history.at("loss"), history.losses.last(WINDOW)
    between = min(history.losses.since(history.gap), PASSING)
    if between < 2 or not len(at) or len(past) < FEWEST + between:
        return None
    before, lately = past[:-between], past[-between:]
    (middle, spread), i = _usual(before), int(np.argmax(lately))
    rise = lately[i] - middle
    loud = rise > max(PASSED * spread, -FADING) or (
        rise > LEARNED and lately[i] > history.losses.first + HALVED
    )
    if not (loud and np.median(lately[i + 1 :] if i + 1 < between else lately[i:]) - middle < rise / 2):
        return None
    return Detection(
        AlarmKind.BAD_BATCH,
        f"At step {history.losses.steps[i - between]} the loss was {math.exp(lately[i]):.3g}, {math.exp(rise):.3g} "
        f"times its recent median, and is {math.exp(lately[-1]):.3g} again. That step was not sampled: its loss "
        "alone says so, and its batch is not in the dossier (everything=True would keep it).",
        series=int(at[0]),
    )


def loss_spike(history: History) -> Detection | None:
    """A loss that is far above its recent past in three rows in a row."""
    at = history.at("loss")
    if not len(at) or len(history.losses) < FEWEST + STAYS:
        return None
    past = history.losses.last(WINDOW)
    before, late = past[:-STAYS], past[-STAYS:]
    if not late.min() > before[-FEWEST:].min() + LOUDER:
        return None
    middle, spread = _usual(before)
    away = late - middle
    matters = math.exp(min(late.min(), LARGEST)) - math.exp(middle) > MATTERS * history.losses.scale
    if not ((away > max(JUMP * spread, LOUDER)).all() and matters):
        return None
    return Detection(
        AlarmKind.LOSS_SPIKE,
        f"The loss is {math.exp(late[-1]):.3g}, {math.exp(away[-1]):.3g} times what it was before step "
        f"{history.losses.steps[-STAYS]}, and has stayed there since.",
        series=int(at[0]),
    )


def loss_rise(history: History) -> Detection | None:
    """The mean loss of 20 steps is well above its lowest; what has moved, or is far from where it began, is the cause.

    A loss that scatters may rise twentyfold without one that is far above the scatter of those before it.
    """
    rise = history.losses.risen()
    if not rise or not len(history.at("loss")):
        return None
    kind, i = _behind(history)
    return Detection(
        kind,
        f"The loss rises: its mean over the last {FEWEST} steps is above its lowest by {rise:.2g} times the first "
        "loss, more than it scatters.",
        series=i,
    )


SUSPECTS = {
    AlarmKind.UPDATE_TOO_LARGE: ("update_ratio", "update_ratio.attention", "update_ratio.mlp", "norm"),
    AlarmKind.LOGIT_GROWTH: ("largest_logit", "entropy"),
}


def _behind(history: History) -> tuple[AlarmKind, int]:
    """What a rise of the loss is put down to, and the series that says so: steps before attention, else the loss."""
    fallen = history.since_start("entropy")
    if (fallen < CLOSED).any():
        return AlarmKind.LOGIT_GROWTH, int(history.at("largest_logit")[np.nanargmin(fallen)])
    moved = evidence(history)
    best = [
        (moved[i], kind, int(i))
        for kind, names in SUSPECTS.items()
        for name in names
        for i in history.at(name)
    ]
    if steps_grew(history):
        best = [each for each in best if each[1] is AlarmKind.UPDATE_TOO_LARGE]
    score, kind, i = max(best, key=lambda each: each[0], default=(0.0, AlarmKind.LOSS_SPIKE, 0))
    return (kind, i) if score > 1 else (AlarmKind.LOSS_SPIKE, int(history.at("loss")[0]))


def not_a_number(history: History) -> Detection | None:
    """The loss, the stream or a gradient, where it was finite, is not a finite number any more.

    A block that was skipped (layer drop) has none either, and so have weights that got no gradient: while the loss is
    finite, gradients count where all blocks were seen, and of the stream only what is infinite.
    """
    if history.first is None or history.count < 2 or np.isfinite(history.now).all():
        return None
    endless = history.now == math.inf
    broken = (np.isnan(history.now) | endless) & np.isfinite(history.first)
    loss, norm, gradient = (history.at(name) for name in ("loss", "norm", "gradient"))
    heard = bool(len(loss)) and math.isfinite(history.loss)
    broken[loss] &= not heard  # its logarithm is not, if it is negative
    seen = gradient if np.isfinite(history.now[norm]).all() else gradient[:0]
    counts = (
        *loss,
        *(norm if not heard else norm[endless[norm]]),
        *(history.at("gradient_norm") if not heard else seen),
    )
    i = next((i for i in counts if broken[i]), None)
    if i is None:
        return None
    name, where = history.quantities[i].name.replace("_", " "), history.places[i] or "the run"
    return Detection(AlarmKind.NOT_A_NUMBER, f"The {name} of {where} is not finite.", series=int(i))


def _usual(logs: Array) -> tuple[float, float]:
    """The median of the last 20 losses, and how much one scatters against the one before."""
    spread = 1.4826 * float(np.median(np.abs(np.diff(logs))))
    return float(np.median(logs[-FEWEST:])), max(spread, FLOOR)


def _rise(history: History, i: int) -> float:
    return float(history.now[i] - median_of(history, np.array([i]))[0])


WAIT = 10  # steps in which a row is waited for


@dataclass(frozen=True)
class LoudLoss:
    """A loss that is up at a step that was not sampled, or one that is not finite."""

    step: int
    since: int
    floor: float  # its logarithm, below which it has come back
    detection: Detection


class LossAlone:
    """Remembers a loud loss until a row is taken, or ten steps have gone by."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._loud: LoudLoss | None = None

    def forget(self) -> None:
        """A row was taken, and decides."""
        self._loud = None

    def hear(self, step: int, loss: float) -> LoudLoss | None:
        """A loss that is not finite, or what has been loud for ten steps and still is."""
        losses = self.history.losses
        if not math.isfinite(loss):
            self._loud = None
            return _broken(
                self.history, step, f"The loss is {loss} at step {step}, which is not a finite number."
            )
        if self._loud is None and len(losses) and losses.restless:
            self._loud = _loud(self.history, step)
        loud = self._loud
        if loud is None or step - loud.step < WAIT:
            return None
        self._loud = None
        return loud if losses.last(STAYS).min() > loud.floor else None


def _broken(history: History, step: int, sentence: str, since: int | None = None) -> LoudLoss:
    detection = Detection(AlarmKind.NOT_A_NUMBER, sentence, series=int(history.at("loss")[0]))
    return LoudLoss(step, step if since is None else since, math.inf, detection)


def _loud(history: History, step: int) -> LoudLoss | None:
    spike = loss_spike(history)
    if spike is None:
        return None
    past = history.losses.last(FEWEST + STAYS)
    floor = float(np.median(past[:-STAYS]) + past[-STAYS:].min()) / 2
    return LoudLoss(step, history.losses.steps[-STAYS], floor, spike)
