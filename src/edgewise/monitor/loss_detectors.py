"""Failures that the loss shows: a batch, a spike, a number that is not finite. One function each, as in `detectors`."""

from __future__ import annotations

import math

import numpy as np

from edgewise.arrays import Array
from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.bands import JUMP, Bands
from edgewise.monitor.evidence import evidence, steps_grew
from edgewise.monitor.hit import FADING, HALVED, STAYS, Hit, median_of
from edgewise.monitor.trend import FEWEST, FLOOR, WINDOW

LOUDER = math.log(1.2)  # of the loss, against its recent median
PASSING = 10  # steps in which a jump of the loss that came between two rows is looked for
PASSED = 10.0  # times the scatter of the loss, where the row of a bad batch is missing
CLOSED = math.log(0.1)  # of the attention entropy at the start
LEARNED = math.log(
    8.0
)  # of a small loss, whose logarithm scatters, if that brings it back to half of the first one


def strange_input(bands: Bands) -> Hit | None:
    """What enters the first block jumps, and the loss is up in the same row: weights do not jump, batches do."""
    loss, norm = bands.at("loss"), bands.at("norm")[:1]
    if not len(loss) or not len(norm) or not abs(bands.jump[norm[0]]) > JUMP:
        return None
    change = abs(_rise(bands, int(norm[0])))
    if not (change > -HALVED and _rise(bands, int(loss[0])) > LOUDER):
        return None
    return Hit(
        AlarmKind.BAD_BATCH,
        int(loss[0]),
        f"The mean square of what enters the first block changed by a factor {math.exp(change):.3g} in one step "
        f"({abs(bands.jump[norm[0]]):.0f} times its scatter), and the loss is {math.exp(bands.now[loss[0]]):.3g}, "
        f"{math.exp(_rise(bands, int(loss[0]))):.3g} times its recent median.",
    )


def bad_batch(bands: Bands) -> Hit | None:
    """Loss and gradient jump in the same row; whether anything moved before is for the order to say."""
    loss = bands.at("loss")
    unlearned = bool(len(loss)) and _unlearned(bands, int(loss[0]))
    if (
        not len(loss)
        or not (unlearned or bands.jump[loss[0]] > JUMP)
        or not _rise(bands, int(loss[0])) > LOUDER
    ):
        return None
    jumps = np.nan_to_num([bands.jump[i] for i in (*bands.at("gradient_norm"), *bands.at("gradient"))])
    jumped = bool((jumps > JUMP).any())
    if not (jumped or unlearned):
        return None
    gradient = f", and the gradient jumped with it ({jumps.max():.0f} times its scatter)" if jumped else ""
    return Hit(
        AlarmKind.BAD_BATCH,
        int(loss[0]),
        f"The loss is {math.exp(bands.now[loss[0]]):.3g}, {math.exp(_rise(bands, int(loss[0]))):.3g} times its recent "
        f"median{gradient}.",
    )


def _unlearned(bands: Bands, loss: int) -> bool:
    """Whether a small loss, whose logarithm scatters, is back at half of the first one by one step."""
    if bands.rows <= FEWEST:
        return False
    before, now = bands.past()[1][-2:, loss]
    at_once = now > bands.losses.first + HALVED and now > before + LEARNED / 2
    return bool(at_once) and _rise(bands, loss) > LEARNED


def passed_batch(bands: Bands) -> Hit | None:
    """A loss since the last row jumped, and is back; no row was taken there, so that the loss alone says it."""
    at, past = bands.at("loss"), bands.losses.last(WINDOW)
    between = min(bands.losses.since(bands.gap), PASSING)
    if between < 2 or not len(at) or len(past) < FEWEST + between:
        return None
    before, lately = past[:-between], past[-between:]
    (middle, spread), i = _usual(before), int(np.argmax(lately))
    rise = lately[i] - middle
    loud = rise > max(PASSED * spread, -FADING) or (
        rise > LEARNED and lately[i] > bands.losses.first + HALVED
    )
    if not (loud and np.median(lately[i + 1 :] if i + 1 < between else lately[i:]) - middle < rise / 2):
        return None
    return Hit(
        AlarmKind.BAD_BATCH,
        int(at[0]),
        f"At step {bands.losses.steps[i - between]} the loss was {math.exp(lately[i]):.3g}, {math.exp(rise):.3g} times "
        f"its recent median, and is {math.exp(lately[-1]):.3g} again. That step was not sampled: its loss alone says "
        "so, and its batch is not in the dossier (everything=True would keep it).",
    )


def loss_spike(bands: Bands) -> Hit | None:
    """A loss that is far above its recent past in three rows in a row."""
    at = bands.at("loss")
    if not len(at) or len(bands.losses) < FEWEST + STAYS:
        return None
    past = bands.losses.last(WINDOW)
    before, late = past[:-STAYS], past[-STAYS:]
    if not late.min() > before[-FEWEST:].min() + LOUDER:
        return None
    middle, spread = _usual(before)
    away = late - middle
    if not (away > max(JUMP * spread, LOUDER)).all():
        return None
    return Hit(
        AlarmKind.LOSS_SPIKE,
        int(at[0]),
        f"The loss is {math.exp(late[-1]):.3g}, {math.exp(away[-1]):.3g} times what it was before step "
        f"{bands.losses.steps[-STAYS]}, and has stayed there since.",
    )


def loss_rise(bands: Bands) -> Hit | None:
    """The mean loss of 20 steps is well above its lowest; what has moved, or is far from where it began, is the cause.

    A loss that scatters may rise twentyfold without one that is far above the scatter of those before it.
    """
    rise = bands.losses.risen()
    if not rise or not len(bands.at("loss")):
        return None
    kind, i = _behind(bands)
    return Hit(
        kind,
        i,
        f"The mean loss of the last {FEWEST} steps is above its lowest by {rise:.2g} times the first loss, "
        f"more than it scatters.",
    )


SUSPECTS = {
    AlarmKind.UPDATE_TOO_LARGE: ("update_ratio", "update_ratio.attention", "update_ratio.mlp", "norm"),
    AlarmKind.LOGIT_GROWTH: ("largest_logit", "entropy"),
}


def _behind(bands: Bands) -> tuple[AlarmKind, int]:
    """What a rise of the loss is put down to, and the series that says so: steps before attention, else the loss."""
    fallen = bands.since_start("entropy")
    if (fallen < CLOSED).any():
        return AlarmKind.LOGIT_GROWTH, int(bands.at("largest_logit")[np.nanargmin(fallen)])
    moved = evidence(bands)
    best = [
        (moved[i], kind, int(i)) for kind, names in SUSPECTS.items() for name in names for i in bands.at(name)
    ]
    if steps_grew(bands):
        best = [each for each in best if each[1] is AlarmKind.UPDATE_TOO_LARGE]
    score, kind, i = max(best, key=lambda each: each[0], default=(0.0, AlarmKind.LOSS_SPIKE, 0))
    return (kind, i) if score > 1 else (AlarmKind.LOSS_SPIKE, int(bands.at("loss")[0]))


def not_a_number(bands: Bands) -> Hit | None:
    """The loss, the stream or a gradient, where it was finite, is not a finite number any more.

    A block that was skipped (layer drop) has none either, and so have weights that got no gradient: while the loss is
    finite, gradients count where all blocks were seen, and of the stream only what is infinite.
    """
    if bands.first is None or bands.count < 2 or np.isfinite(bands.now).all():
        return None
    endless = bands.now == math.inf
    broken = (np.isnan(bands.now) | endless) & np.isfinite(bands.first)
    loss, norm, gradient = (bands.at(name) for name in ("loss", "norm", "gradient"))
    heard = bool(len(loss)) and math.isfinite(bands.loss)
    broken[loss] &= not heard  # its logarithm is not, where it is negative
    seen = gradient if np.isfinite(bands.now[norm]).all() else gradient[:0]
    counts = (
        *loss,
        *(norm if not heard else norm[endless[norm]]),
        *(bands.at("gradient_norm") if not heard else seen),
    )
    i = next((i for i in counts if broken[i]), None)
    if i is None:
        return None
    name, where = bands.quantities[i].name.replace("_", " "), bands.places[i] or "the run"
    return Hit(AlarmKind.NOT_A_NUMBER, int(i), f"The {name} of {where} is not finite.")


def _usual(logs: Array) -> tuple[float, float]:
    """The median of the last 20 losses, and how much one scatters against the one before."""
    spread = 1.4826 * float(np.median(np.abs(np.diff(logs))))
    return float(np.median(logs[-FEWEST:])), max(spread, FLOOR)


def _rise(bands: Bands, i: int) -> float:
    return float(bands.now[i] - median_of(bands, np.array([i]))[0])
