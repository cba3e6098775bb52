"""One function per failure: from the series of a run to an alarm, or None.

A level alone never alarms: each asks for a trend or a jump against the run's own past, and most for a consequence too
(the loss no longer falls, the softmax lets less through), because a network that learns moves as well.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.loss_detectors import (
    FADING,
    HALVED,
    STAYS,
    Detection,
    Detector,
    bad_batch,
    loss_rise,
    loss_spike,
    median_of,
    not_a_number,
    passed_batch,
)
from edgewise.monitor.series import FEWEST, JUMP, LONG, LOOKS, WINDOW, History

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
