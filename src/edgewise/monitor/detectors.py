"""One function per failure: from the series of a run to an alarm, or None; also what the loss alone shows, and levels.

A level alone never alarms: each asks for a trend or a jump against the run's own past, and most for a consequence too
(the loss no longer falls, the softmax lets less through), because a network that learns moves as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.monitor.alarm import AlarmKind, Detection
from edgewise.monitor.series import FEWEST, FLOOR, JUMP, LARGEST, LONG, LOOKS, WINDOW, History

HALVED, FADING = math.log(0.5), math.log(0.75)
STAYS = 3  # rows for which a sudden change must persist


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
SHUT = math.log(0.1)  # of the attention entropy at the start
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
    if (fallen < SHUT).any():
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
    """The loss, the stream or a gradient was finite and is not a finite number any more.

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


GROWTH = math.log(1.5)  # within 40 steps
TENFOLD = math.log(10.0)
AHEAD = 100  # steps within which an overflow is foretold
# steps in which a logit doubles that grows too fast; learning takes longer where rows are far apart
DOUBLES, SURE_OF_ITSELF, LEARNS = 200, 100, 0.8  # and in one whose loss is below so much of its first
SHARP = math.log(16.0)  # a logit of 16 leaves a ten-millionth to the other keys
LASTING = 30  # steps
FIRST, THROWN = 5, math.log(1e4)  # losses whose mean counts before there is a past; of the mean square
WORSE = 1.5  # times the first loss
# of an alarm's t-value, in what moves first
NEAR, EARLY = (0.6, ("norm", "largest_logit", "update_ratio", "headroom"))
BEYOND = 3.0  # times the change of the stream at the edge: at twice, healthy runs alarm (experiments/alarms/edge.py)
CLOSED = math.log(4.0)  # times the largest logit at the start, where attention has closed
APART = math.log(0.1)  # separation below which tokens count as alike, if they were not so at the start


SEPARATED = math.log(1e-6)  # tokens that differ by less than a thousandth of their length are one token
REACHES = -28.0  # nats of the squared gradient from the last block to the first: a factor of 10^6
STARVED = -18.0  # nats of the squared gradients: a ten-thousandth
ONE_HOT, OF_BLOCKS = 0.5, 0.75  # of the rows, in so many of the blocks
AGREE = 3  # rows


def logit_growth(history: History) -> Detection | None:
    """Logits that grow exponentially and are large, while entropy falls or the loss stalls."""
    at = history.at("largest_logit")
    t, change = history.trend("largest_logit")
    # a network that learns becomes sure of itself, slowly
    doubles = SURE_OF_ITSELF if history.losses.level() < LEARNS * math.exp(history.losses.first) else DOUBLES
    fast = (change > -HALVED) & (history.slope[at] > -HALVED / doubles)
    growing = (t > history.threshold) & fast & (history.now[at] > SHARP)
    if not growing.any():
        return None
    fading = history.trend("entropy")[0] < -0.5 * history.threshold
    fading &= history.slope[history.at("entropy")] < FADING / WINDOW  # a quarter within 40 steps
    # learning slows down, an instability does not
    growing &= (fading | history.stalled) & ~history.slowing(at)
    i = _strongest(growing, t)
    if i is None:
        return None
    rate = history.slope[at[i]]
    return Detection(
        AlarmKind.LOGIT_GROWTH,
        f"The largest logit is {math.exp(history.now[at[i]]):.3g} and grows by {math.expm1(rate):.2%} a step "
        f"(t = {t[i]:.0f}): it doubles every {math.log(2) / rate:.0f} steps.",
        series=int(at[i]),
    )


def entropy_collapse(history: History) -> Detection | None:
    """Entropy that halves within the window, with less gradient through the softmax, or drops at once and stays there.

    Three rows decide: the few sequences of a row may all be easy ones.
    """
    at = history.at("entropy")
    t, change = history.trend("entropy")
    falling, dropped = (t < -history.threshold) & (change < HALVED), history.jump[at] < -JUMP
    if not (falling.any() or dropped.any()):
        return None
    gain = np.nan_to_num(history.trend("softmax_gain")[1], nan=0.0) < math.log(0.7)
    falling, dropped = falling & gain & history.stalled, dropped & _dropped(history, at)
    i = _strongest(falling | dropped, -np.nan_to_num(change))
    if i is None:
        return None
    fall, since = (
        (change[i], f"{history.rows} rows ago")
        if falling[i]
        else (history.now[at[i]] - median_of(history, at)[i], "just before")
    )
    return Detection(
        AlarmKind.ENTROPY_COLLAPSE,
        f"Its attention entropy is {math.exp(history.now[at[i]]):.3g} nats, "
        f"{math.exp(fall):.2g} of what it was {since}.",
        series=int(at[i]),
    )


def attention_closed(history: History) -> Detection | None:
    """Entropy a tenth of what it was at the start, or less, for 30 steps in which the loss did not fall.

    Logits that grow in the first steps have done so before there are rows for a trend.
    """
    at, logits = history.at("entropy"), history.at("largest_logit")
    fallen, grown = history.since_start("entropy"), history.since_start("largest_logit")
    if not (fallen < -TENFOLD).any() or not history.stalled or _learned(history):
        return None
    lasts = history.lasting(LASTING)
    lasting = (history.past()[1][-lasts:, at] < history.now[at] - fallen - TENFOLD).all(0) & (grown > CLOSED)
    i = _strongest(np.asarray(lasting), -np.nan_to_num(fallen)) if lasts else None
    if i is None:
        return None
    return Detection(
        AlarmKind.LOGIT_GROWTH,
        f"The largest logit is {math.exp(history.now[logits[i]]):.3g}, {math.exp(grown[i]):.3g} times what it was at "
        f"the start, and its attention entropy {math.exp(history.now[at[i]]):.2g} nats, "
        f"{math.exp(fallen[i]):.2g} of that; the loss does not fall.",
        series=int(logits[i]),
    )


def _dropped(history: History, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether the last three rows are all below 0.3 of the median of the twenty before them."""
    if history.rows < FEWEST + STAYS:
        return np.zeros(len(at), bool)
    past = history.past()[1][-FEWEST - STAYS :, at]
    return np.asarray((past[FEWEST:] - np.median(past[:FEWEST], axis=0) < math.log(0.3)).all(0))


def rank_collapse(history: History) -> Detection | None:
    """Tokens a tenth as far apart as at the start or less, for 30 rows in which the loss did not fall.

    Healthy networks pass through such a state while they learn which tokens are frequent, and leave it again; one that
    has learned may stay there.
    """
    at = history.at("separation")
    fallen = history.since_start("separation")
    if not (fallen < -TENFOLD).any() or not history.stalled or _learned(history):
        return None
    lasts = history.lasting(LASTING)
    if not lasts:
        return None
    lasting = history.past()[1][-lasts:, at] < np.minimum(APART, history.now[at] - fallen - TENFOLD)
    i = _strongest(np.asarray(lasting.all(0)), -np.nan_to_num(fallen))
    if i is None:
        return None
    return Detection(
        AlarmKind.RANK_COLLAPSE,
        f"The separation of its tokens is {math.exp(history.now[at[i]]):.2g}, "
        f"{math.exp(fallen[i]):.2g} of what it was at the start, and the loss does not fall.",
        series=int(at[i]),
    )


def exploding_gradient(history: History) -> Detection | None:
    """A tenfold gradient by a trend: the jump of a moment is a bad batch or a spike."""
    at = history.at("gradient")
    t, change = history.trend("gradient")
    i = _strongest((t > history.threshold) & (change > TENFOLD) & history.stalled, t)
    if i is None:
        return None
    return Detection(
        AlarmKind.EXPLODING_GRADIENT,
        f"The gradient of the stream grew by a factor {math.exp(change[i]):.3g} within {history.rows} rows "
        f"(t = {t[i]:.0f}), and the loss does not fall.",
        series=int(at[i]),
    )


def update_too_large(history: History) -> Detection | None:
    """The stream grows, though the loss does not fall: steps move the network without improving it."""
    at = history.at("norm")
    t, change = history.trend("norm")
    if len(history.losses) < LONG:  # a first plateau of the loss is not yet a stall
        return None
    growing = (t > history.threshold) & (change > GROWTH * history.stretch)
    i = _strongest(growing & history.stalled & _loss_watched(history), t)
    if i is None:
        return None
    ratio = history.at("update_ratio")
    size = math.exp(history.now[ratio[0]]) if len(ratio) else math.nan
    return Detection(
        AlarmKind.UPDATE_TOO_LARGE,
        f"The mean square of the stream grew by a factor {math.exp(change[i]):.3g} within {history.rows} rows "
        f"(t = {t[i]:.0f}) while the loss did not fall; a step changes the weights by {size:.2%}.",
        series=int(at[i]),
    )


def thrown_off(history: History) -> Detection | None:
    """In the first rows, before there is a past: the stream is a hundred times larger, the loss half as much more."""
    at, losses = history.at("norm"), history.losses.last(FIRST)
    if not 1 < history.count < FEWEST or len(losses) < FIRST or not len(at) or not _loss_watched(history):
        return None
    grown = history.since_start("norm")
    if not (np.nanmax(grown) > THROWN and np.mean(np.exp(losses)) >= WORSE * math.exp(history.losses.first)):
        return None
    i = int(np.nanargmax(grown))
    return Detection(
        AlarmKind.UPDATE_TOO_LARGE,
        f"The mean square of the stream is {math.exp(grown[i]):.2g} times that of the first row, and the loss is "
        f"{np.mean(np.exp(losses)):.3g} where it began with {math.exp(history.losses.first):.3g}.",
        series=int(at[i]),
    )


def beyond_the_edge(history: History) -> Detection | None:
    """Steps that move the last stream further than those at the largest rate that learned in the rehearsal."""
    if len(history.beyond) < LOOKS or min(history.beyond) < BEYOND:
        return None
    return Detection(
        AlarmKind.UPDATE_TOO_LARGE,
        f"A step moves the last stream {history.beyond[-1]:.2g} times as far as at the edge of the rehearsal, and at "
        f"least {min(history.beyond):.2g} times in the last {LOOKS} looks.",
    )


def overflow_ahead(history: History) -> Detection | None:
    """Headroom that will be used up within 100 steps at its present rate."""
    at = history.at("headroom")
    t, _ = history.trend("headroom")
    slope = history.slope[at]
    soon = (t < -history.threshold) & (history.now[at] < -AHEAD * slope)
    if not soon.any():
        return None
    left = np.where(soon, -history.now[at] / slope, np.inf)
    i = int(np.argmin(left))
    return Detection(
        AlarmKind.OVERFLOW_AHEAD,
        f"{history.now[at[i]]:.1f} bits are left before the stream overflows, at this rate {left[i]:.0f} steps.",
        series=int(at[i]),
    )


def dead_head(history: History) -> Detection | None:
    """The weakest head's contribution drops tenfold, to less than a twentieth of the mean."""
    at = history.at("head_share_min")
    weak = (history.now[at] < math.log(0.05)) & (history.count > FIRST)
    if not weak.any():
        return None
    fallen = history.now[at] - median_of(history, at)
    i = _strongest(weak & (fallen < -TENFOLD), -np.nan_to_num(fallen))
    if i is None:
        return None
    return Detection(
        AlarmKind.DEAD_HEAD,
        f"Its weakest head gives {math.exp(history.now[at[i]]):.2g} of the mean of its layer, before "
        f"{math.exp(median_of(history, at)[i]):.2g}.",
        series=int(at[i]),
    )


def separation_gone(history: History) -> Detection | None:
    """Tokens behind the last block that are one token, in three rows."""
    at = history.at("separation")
    rows = history.past()[1][-AGREE:]
    if not len(at) or len(rows) < AGREE or not (rows[:, at[-1]] < SEPARATED).all():
        return None
    gone = (rows[:, at] < SEPARATED).all(0)
    first = int(at[int(np.argmax(gone))])
    return Detection(
        AlarmKind.RANK_COLLAPSE,
        f"The separation of tokens is {math.exp(history.now[at[-1]]):.1g} behind the last block: they differ by less "
        "than a thousandth of their length.",
        series=first,
    )


def gradient_gone(history: History) -> Detection | None:
    """A gradient that is a millionth at the first site of what it is at the last one, in three rows."""
    at = history.at("gradient_growth")
    rows = history.past()[1][-AGREE:]
    if not len(at) or len(rows) < AGREE or not (rows[:, at[0]] < REACHES).all():
        return None
    return Detection(
        AlarmKind.VANISHING_GRADIENT,
        f"The gradient at the embedding is {math.exp(history.now[at[0]] / 2):.1g} of that at the last block.",
        series=int(at[0]),
    )


def attention_one_hot(history: History) -> Detection | None:
    """Most rows of most blocks put all but a hundredth on one key, in three rows, and the loss is not yet low."""
    losses, rows = history.losses, np.array(history.saturated)
    if len(rows) < AGREE or not rows.size or history.count < 2 * AGREE:
        return None
    closed = (rows[-AGREE:] > ONE_HOT).all(0)
    learned = len(losses) and losses.logs[-1] < losses.first + math.log(0.5)
    if closed.mean() < OF_BLOCKS or learned:
        return None
    logits = history.at("largest_logit")
    began = bool((history.saturated_first > ONE_HOT).mean() >= OF_BLOCKS)
    return Detection(
        AlarmKind.ATTENTION_ONE_HOT,
        f"In {closed.mean():.0%} of the blocks more than half of the attention rows leave less than a hundredth to all "
        f"keys but one; the largest logit is {math.exp(np.nanmax(history.now[logits])):.3g}.",
        "attention logits are far too large for this many keys, from the start" if began else "",
        "Check that scores are divided by sqrt(d), and the size and the rate of query and key weights.",
        series=int(logits[int(np.argmax(closed))]) if len(logits) else None,
    )


def attention_starved(history: History) -> Detection | None:
    """Queries and keys of most blocks without a gradient while values have one, in twenty rows: scores have no say."""
    known = history.starved
    if len(known) < FEWEST or not len(known[-1]) or (known[-1] < STARVED).mean() < OF_BLOCKS:
        return None
    starved = (np.array(known) < STARVED).all(0)
    if starved.mean() < OF_BLOCKS:
        return None
    logits = history.at("largest_logit")
    block = int(np.argmax(starved))
    entropy, gain = (float(history.now[history.at(name)[block]]) for name in ("entropy", "softmax_gain"))
    what = (
        f"In {starved.mean():.0%} of the blocks the gradient of queries and keys is below {math.exp(STARVED / 2):.0e} "
        f"of that of values and outputs, in {FEWEST} rows."
    )
    if math.isnan(entropy) and gain == -math.inf:
        return Detection(
            AlarmKind.ATTENTION_ONE_HOT,
            what,
            "attention sees one place only: a mask or window leaves each query a single key, and scores have no say",
            "Print the mask of one row, and which value of it means that a key is seen.",
            int(logits[block]),
        )
    rivals = (
        "only padding is attended to (an inverted mask): print the mask of one row",
        "what enters attention is tiny, or alike for all tokens (a norm without effect): compare two tokens there",
        "scores are so large that the softmax is closed: compare the largest logit with 20",
    )
    return Detection(AlarmKind.MISTAKE, what, series=int(logits[block]), could_be=rivals)


LEVELS = (separation_gone, gradient_gone, attention_one_hot, attention_starved)


# In this order: what harms already, then what is ahead; the first cause is found by who moved first.
DETECTORS: tuple[Detector, ...] = (
    not_a_number,
    thrown_off,
    rank_collapse,
    loss_spike,
    bad_batch,
    passed_batch,
    loss_rise,
    attention_closed,
    logit_growth,
    entropy_collapse,
    exploding_gradient,
    overflow_ahead,
    beyond_the_edge,
    update_too_large,
    dead_head,
)


# What is a state and not a movement is asked also while nothing moves.
SUDDEN: tuple[Detector, ...] = (
    thrown_off,
    rank_collapse,
    loss_spike,
    bad_batch,
    passed_batch,
    loss_rise,
    attention_closed,
    beyond_the_edge,
    dead_head,
)


def near(history: History) -> bool:
    """Tell if an alarm may be close: what moves first when something goes wrong has most of the t-value of one."""
    if not history.trends:
        return False
    at = np.concatenate([history.at(name) for name in EARLY])
    with np.errstate(invalid="ignore"):
        return bool((history.worse[at] * history.t[at] > NEAR * history.threshold).any()) and history.stalled


def _strongest(where: NDArray[np.bool_], score: Array) -> int | None:
    return int(np.argmax(np.where(where, np.nan_to_num(score), -np.inf))) if where.any() else None


def _learned(history: History) -> bool:
    """Whether the loss is less than half of what it began with: a network that has learned may be where it likes."""
    at, losses = history.at("loss"), history.losses.last(FEWEST)
    if not len(at) or not len(losses) or history.first is None:
        return False
    return bool(np.mean(losses) < history.first[at[0]] + HALVED)


def _loss_watched(history: History) -> bool:
    at = history.at("loss")
    return bool(len(at) and np.isfinite(history.now[at[0]]))
