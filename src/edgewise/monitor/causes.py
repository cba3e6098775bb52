"""What moved first decides the cause, and what did not move is ruled out.

logits or entropy first        attention
stream or updates first        the learning rate
separation first               rank collapse
gradient and loss, at once     the batch
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgewise.monitor.alarm import Alarm, AlarmKind, Detection, Moved
from edgewise.monitor.detectors import (
    DETECTORS,
    GROWTH,
    LASTING,
    LEVELS,
    SUDDEN,
    TENFOLD,
    Detector,
    LossAlone,
    LoudLoss,
    loss_rise,
    steps_grew,
)
from edgewise.monitor.series import JUMP, History

STATES = (AlarmKind.RANK_COLLAPSE,)  # which last, and need not move
# which one batch may bring about
EVENTS = (AlarmKind.BAD_BATCH, AlarmKind.LOSS_SPIKE, AlarmKind.NOT_A_NUMBER)
REACH = 160  # steps for which a rise of the loss is put down to the jump that it began with
CLEAR = 0.5  # of the t-value of an alarm: a suspect with less is ruled out
AGAIN = 40  # rows after which a kind that was withheld is tried once more
QUIET = 200  # rows in which a kind of alarm is not repeated
CAUSES = {
    "largest logit": "attention: its logits moved before anything else",
    "attention entropy": "attention: its entropy moved before anything else",
    "softmax gain": "attention: its softmax closed before anything else moved",
    "mean square of the stream": "the learning rate: the stream moved before anything else",
    "update ratio": "the learning rate: the size of the steps moved before anything else",
    "update ratio of attention": "the learning rate: the steps of attention moved before anything else",
    "update ratio of the MLP": "the learning rate: the steps of the MLP moved before anything else",
    "token separation": "merging tokens: their separation moved before anything else",
    "gradient norm": "the gradient: it moved before anything else",
    "gradient of the stream": "the gradient: it moved before anything else",
    "contribution of the weakest head": "one head: its contribution moved before anything else",
}
# when worse
FALLS = {"token separation", "attention entropy", "softmax gain", "contribution of the weakest head"}
GRADIENTS = {"gradient norm", "gradient of the stream"}
SUSPECTS = {
    "attention": ("largest_logit", "entropy"),
    "the learning rate": ("norm", "update_ratio"),
    "merging tokens": ("separation",),
    "a vanishing gradient": ("gradient_growth",),
}


class Diagnosis:
    """Rows in, alarms out; each kind once in 200 rows."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._last: dict[AlarmKind, int] = {}
        self._causes: set[str] = set()  # that were named
        self._loss = LossAlone(history)
        self._alone: int | None = None  # the step of the last jump of the loss before which nothing had moved

    def see(self, step: int, heads: np.ndarray) -> list[Alarm]:
        """The alarms of a row that `history` has just taken in; heads (blocks, statistics, H) names the worst head."""
        self._loss.forget()
        detectors = SUDDEN if self.history.quiet else DETECTORS
        with np.errstate(invalid="ignore", divide="ignore"):
            detections = [detector(self.history) for detector in detectors]
            levels = [found for level in LEVELS if (found := level(self.history)) is not None]
        if not any(detections):
            return self.of_facts(levels, step)
        moved = [each for each in self.history.moved() if _counts(each)]
        detections = [
            detection and self._put_down(detection, detector, step)
            for detection, detector in zip(detections, detectors, strict=True)
        ]
        named = [_renamed(detection, step, self.history) for detection in detections if detection is not None]
        alarms = [
            self._alarm(detection, step, moved, heads) for detection in named if self._fresh(detection.kind)
        ]
        return alarms + self.of_facts(levels, step)

    def hear(self, step: int, loss: float) -> list[Alarm]:
        """Judge a loss alone: at once if it is not finite, else if no row was paid for within ten steps."""
        return self._alone_alarm(step, self._loss.hear(step, loss))

    def of_facts(self, detections: Sequence[Detection], step: int) -> list[Alarm]:
        """Return the alarms of facts that need no trend; each cause once, and each symptom once in 200 rows."""
        alarms = []
        for each in detections:
            if each.cause and {each.cause, each.topic} & self._causes:
                continue
            if not each.cause and not self._fresh(each.kind):
                continue
            self._causes |= {each.cause, each.topic} - {""}
            self._last[each.kind] = self.history.count
            place = self.history.places[each.series] if each.series is not None else ""
            alarms.append(
                Alarm(
                    each.kind,
                    step,
                    place,
                    None,
                    step,
                    each.sentence,
                    rows=self.history.rows,
                    series=self.history.series,
                    cause=each.cause,
                    could_be=each.could_be,
                    advice=each.advice,
                    module=each.module,
                )
            )
        return alarms

    def postpone(self, kind: AlarmKind, rows: int = AGAIN) -> None:
        """An alarm was withheld: its kind may be raised again in a while."""
        self._last[kind] = self.history.count - QUIET + rows

    def _alone_alarm(self, step: int, loud: LoudLoss | None) -> list[Alarm]:
        if loud is None or not self._fresh(loud.detection.kind):
            return []
        cause = "only the loss is known: no row was taken since."
        return [Alarm(loud.detection.kind, step, "", None, loud.since, loud.detection.sentence, cause)]

    def _put_down(self, detection: Detection, detector: Detector, step: int) -> Detection:
        """A rise of the loss to the jump that it began with, if nothing had moved before that."""
        if detector is not loss_rise or self._alone is None or step - self._alone > REACH:
            return detection
        same = (
            f" It rose at step {self._alone}, before which nothing had moved: check the data from there on."
        )
        return Detection(
            AlarmKind.LOSS_SPIKE, detection.sentence + same, series=int(self.history.at("loss")[0])
        )

    def _fresh(self, kind: AlarmKind) -> bool:
        now, last = self.history.count, self._last.get(kind)
        if last is not None and now - last < QUIET:
            return False
        self._last[kind] = now
        return True

    def _alarm(self, detection: Detection, step: int, moved: Sequence[Moved], heads: np.ndarray) -> Alarm:
        history, i = self.history, detection.series
        place = history.places[i] if i is not None else ""
        since = (
            int(history.since[i])
            if i is not None and history.since[i] >= 0
            else _lasting(detection.kind, step, history)
        )
        # it would have another name if what drifts before it mattered
        if detection.kind is AlarmKind.BAD_BATCH:
            moved = [each for each in moved if each.since > step - history.gap]
        if detection.kind in (AlarmKind.BAD_BATCH, AlarmKind.LOSS_SPIKE):
            before = since if detection.kind is AlarmKind.LOSS_SPIKE else step
            self._alone = None if any(each.since < before for each in moved) else before
        return Alarm(
            detection.kind,
            step,
            place,
            _head(detection.kind, place, heads),
            since,
            detection.sentence + _where(detection.kind, history),
            _cause(detection.kind, moved, since, step),
            tuple(str(each) for each in moved),
            tuple(_ruled_out(history, detection.kind)),
            history.rows,
            history.series,
        )


def _renamed(detection: Detection, step: int, history: History) -> Detection:
    """What moved first decides: a jump after something else moved is not the batch's fault, logits that grow after the
    steps did are not attention's."""
    if detection.kind is AlarmKind.BAD_BATCH and _moving(history, step):
        return Detection(AlarmKind.LOSS_SPIKE, detection.sentence, series=detection.series)
    if detection.kind in (AlarmKind.LOGIT_GROWTH, AlarmKind.ENTROPY_COLLAPSE):
        if _after_steps(detection, history):
            return Detection(
                AlarmKind.UPDATE_TOO_LARGE, f"Steps grew first. {detection.sentence}", series=detection.series
            )
        if not len(history.losses) and _after_stream(detection, history):
            words = "The stream grew first, and there is no loss that would say whether that was learning."
            return Detection(
                AlarmKind.UPDATE_TOO_LARGE, f"{words} {detection.sentence}", series=detection.series
            )
    return detection


def _moving(history: History, step: int) -> bool:
    """Return whether something other than the loss left its past before this step, and is still on its way."""
    with np.errstate(invalid="ignore"):
        trend = (history.worse * history.t > history.threshold) & (history.worse * history.change > GROWTH)
        away = trend | (history.worse * history.jump > JUMP)
    away[history.at("loss")] = False
    return bool((away & (history.since >= 0) & (history.since < step)).any())


def _after_steps(detection: Detection, history: History) -> bool:
    """Whether the size of the steps began to grow before the series of a detection began to move, and still does.

    Where rows are far apart the two are told apart to a tenth of the window, and steps that grew at all are named.
    """
    if detection.series is None:
        return False
    steps = history.past()[0]
    slack = int(steps[-1] - steps[0]) // 10 if history.sparse else 0
    for i in (*history.at("update_ratio"), *(history.at("update_ratio.mlp") if history.sparse else ())):
        if 0 <= history.since[i] < history.since[detection.series] + slack and history.change[i] > GROWTH:
            return True
    return history.sparse and steps_grew(history)


def _after_stream(detection: Detection, history: History) -> bool:
    """Return whether the stream began to grow before the series of a detection began to move."""
    began = history.since[history.at("norm")]
    return detection.series is not None and bool(
        ((began >= 0) & (began < history.since[detection.series])).any()
    )


def _lasting(kind: AlarmKind, step: int, history: History) -> int:
    """Since when, if no series began to move: a state has lasted for some rows when it is an alarm."""
    lasts = history.lasting(LASTING) if kind in STATES else 0
    return int(history.past()[0][-lasts]) if lasts else step


def _where(kind: AlarmKind, history: History) -> str:
    """Return which number along the pass is the first that is not finite, in the row at hand."""
    if kind is not AlarmKind.NOT_A_NUMBER:
        return ""
    at, loss = history.at("norm"), history.at("loss")
    broken = [history.places[i] for i in at if np.isnan(history.now[i]) or history.now[i] == np.inf]
    if broken and broken[0] == history.places[at[0]]:
        return " What enters the first block is not finite already: check the inputs and the embeddings."
    if broken:
        return f" The output of {broken[0]} is the first that is not finite; what enters it is."
    if len(at) and len(loss) and not np.isfinite(history.now[loss[0]]):
        return " The stream is finite in all blocks: check the head, the labels and how the loss is computed."
    return ""


def _counts(moved: Moved) -> bool:
    """Return whether something went the way that is worse, and still goes, or has gone far."""
    worse = (moved.factor < 1) == (moved.statistic in FALLS)
    return worse and (abs(moved.score) >= 2 or abs(math.log(max(moved.factor, 1e-300))) > GROWTH)


def _cause(kind: AlarmKind, moved: Sequence[Moved], since: int, step: int) -> str:
    earlier = [each for each in moved if each.since < (since if kind in STATES else step)]
    if kind in STATES and not earlier:
        return f"nothing moved before: it is so since step {since}."
    if not moved:
        return "nothing moved before it; the change came at once."
    if not earlier:
        return f"nothing moved before this step{', which points to its batch' if kind in EVENTS else ''}."
    first, together = earlier[0], {each.statistic for each in earlier if each.since == earlier[0].since}
    if "loss" in together and together & GRADIENTS:
        return (
            f"{first}. Loss and gradient moved in one row with nothing before them, which points to the data."
        )
    meaning = CAUSES.get(first.statistic)
    return f"{first}{f'. That points to {meaning}' if meaning else ', before anything else'}."


def _head(kind: AlarmKind, place: str, heads: np.ndarray) -> int | None:
    """The head to check: sharpest, with the largest logit, or weakest."""
    which = {
        AlarmKind.LOGIT_GROWTH: (2, np.nanargmax),
        AlarmKind.ENTROPY_COLLAPSE: (0, np.nanargmin),
        AlarmKind.DEAD_HEAD: (6, np.nanargmin),
    }.get(kind)
    if which is None or not place.startswith("block.") or not heads.size:
        return None
    values = heads[int(place.split(".")[1]), which[0]]
    return None if np.isnan(values).all() else int(which[1](values))


def _away(history: History, at: np.ndarray) -> bool:
    """Return whether any of these moves, or has come to rest ten times worse than it began."""
    fallen = history.worse[at] * (history.now[at] - (np.nan if history.first is None else history.first[at]))
    return bool((history.since[at] >= 0).any() or (fallen > TENFOLD).any())


def _ruled_out(history: History, kind: AlarmKind) -> list[str]:
    """Suspects whose series are all in their past, with the largest t-value as evidence.

    What has more than half of the t-value of an alarm is not one, but it is not ruled out either.
    """
    own = {
        AlarmKind.LOGIT_GROWTH: "attention",
        AlarmKind.ENTROPY_COLLAPSE: "attention",
        AlarmKind.UPDATE_TOO_LARGE: "the learning rate",
        AlarmKind.RANK_COLLAPSE: "merging tokens",
        AlarmKind.VANISHING_GRADIENT: "a vanishing gradient",
    }.get(kind)
    out = []
    for suspect, names in SUSPECTS.items():
        at = np.concatenate([history.at(name) for name in names])
        t = history.worse[at] * history.t[at]
        most = round(float(np.nanmax(t, initial=-np.inf)), 1) + 0.0  # not "-0.0"
        if (
            suspect != own
            and np.isfinite(most)
            and most < CLEAR * history.threshold
            and not _away(history, at)
        ):
            out.append(f"{suspect} (largest t = {most:.1f} of {history.threshold:.1f} needed)")
    return out
