"""What moved first decides the cause, and what did not move is ruled out.

    logits or entropy first        attention
    stream or updates first        the learning rate
    separation first               rank collapse
    gradient and loss, at once     the batch
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgewise.monitor.alarm import Alarm, AlarmKind, Moved
from edgewise.monitor.bands import JUMP, Bands
from edgewise.monitor.detectors import DETECTORS, GROWTH, LASTING, SUDDEN, TENFOLD
from edgewise.monitor.evidence import steps_grew
from edgewise.monitor.hit import Hit

STATES = (AlarmKind.RANK_COLLAPSE, AlarmKind.LEFT_PREDICTION)  # which last, and need not move
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
SUSPECTS = {
    "attention": ("largest_logit", "entropy"), "the learning rate": ("norm", "update_ratio"),
    "merging tokens": ("separation",), "a vanishing gradient": ("gradient_growth",),
}  # fmt: skip


class Detection:
    """Rows in, alarms out; each kind once in 200 rows."""

    def __init__(self, bands: Bands) -> None:
        self.bands = bands
        self._last: dict[AlarmKind, int] = {}

    def see(self, step: int, heads: np.ndarray) -> list[Alarm]:
        """The alarms of a row that `bands` has just taken in; heads (blocks, statistics, H) names the worst head."""
        with np.errstate(invalid="ignore", divide="ignore"):
            hits = [detector(self.bands) for detector in (SUDDEN if self.bands.quiet else DETECTORS)]
        if not any(hits):
            return []
        moved = self.bands.moved()
        named = [_renamed(hit, step, self.bands) for hit in hits if hit is not None]
        return [self._alarm(hit, step, moved, heads) for hit in named if self._fresh(hit.kind)]

    def _fresh(self, kind: AlarmKind) -> bool:
        now, last = self.bands.count, self._last.get(kind)
        if last is not None and now - last < QUIET:
            return False
        self._last[kind] = now
        return True

    def _alarm(self, hit: Hit, step: int, moved: Sequence[Moved], heads: np.ndarray) -> Alarm:
        bands, i = self.bands, hit.series
        place = bands.places[i] if i is not None else ""
        since = int(bands.since[i]) if i is not None and bands.since[i] >= 0 else _lasting(hit.kind, step, bands)
        if hit.kind is AlarmKind.BAD_BATCH:  # it would have another name if what drifts before it mattered
            moved = [each for each in moved if each.since > step - bands.gap]
        return Alarm(
            hit.kind, step, place, _head(hit.kind, place, heads), since, hit.sentence + _where(hit.kind, bands),
            _cause(moved, step) if moved or hit.kind not in STATES else f"nothing moves: it is so since step {since}.",
            tuple(str(each) for each in moved), tuple(_ruled_out(bands, hit.kind)), bands.rows, bands.series,
        )  # fmt: skip


def _renamed(hit: Hit, step: int, bands: Bands) -> Hit:
    """What moved first decides: a jump after something else moved is not the batch's fault, logits that grow after the
    steps did are not attention's."""
    if hit.kind is AlarmKind.BAD_BATCH and _moving(bands, step):
        return Hit(AlarmKind.LOSS_SPIKE, hit.series, hit.sentence)
    if hit.kind in (AlarmKind.LOGIT_GROWTH, AlarmKind.ENTROPY_COLLAPSE) and _after_steps(hit, bands):
        return Hit(AlarmKind.UPDATE_TOO_LARGE, hit.series, f"Steps grew first. {hit.sentence}")
    return hit


def _moving(bands: Bands, step: int) -> bool:
    """Whether something other than the loss left its past before this step, and is still on its way."""
    with np.errstate(invalid="ignore"):
        trend = (bands.worse * bands.t > bands.threshold) & (bands.worse * bands.change > GROWTH)
        away = trend | (bands.worse * bands.jump > JUMP)
    away[bands.at("loss")] = False
    return bool((away & (bands.since >= 0) & (bands.since < step)).any())


def _after_steps(hit: Hit, bands: Bands) -> bool:
    """Whether the size of the steps began to grow before the series of a hit began to move, and still does.

    Where rows are far apart the two are told apart to a tenth of the window, and steps that grew at all are named.
    """
    if hit.series is None:
        return False
    steps = bands.past()[0]
    slack = int(steps[-1] - steps[0]) // 10 if bands.sparse else 0
    for i in (*bands.at("update_ratio"), *(bands.at("update_ratio.mlp") if bands.sparse else ())):
        if 0 <= bands.since[i] < bands.since[hit.series] + slack and bands.change[i] > GROWTH:
            return True
    return bands.sparse and steps_grew(bands)


def _lasting(kind: AlarmKind, step: int, bands: Bands) -> int:
    """Since when, where no series began to move: a state has lasted for some rows when it is an alarm."""
    lasts = bands.lasting(LASTING) if kind in STATES else 0
    return int(bands.past()[0][-lasts]) if lasts else step


def _where(kind: AlarmKind, bands: Bands) -> str:
    """Which number along the pass is the first that is not finite, in the row at hand."""
    if kind is not AlarmKind.NOT_A_NUMBER:
        return ""
    at, loss = bands.at("norm"), bands.at("loss")
    broken = [bands.places[i] for i in at if np.isnan(bands.now[i]) or bands.now[i] == np.inf]
    if broken and broken[0] == bands.places[at[0]]:
        return " What enters the first block is not finite already: look at the inputs and the embeddings."
    if broken:
        return f" The output of {broken[0]} is the first that is not finite; what enters it is."
    if len(at) and len(loss) and not np.isfinite(bands.now[loss[0]]):
        return " The stream is finite in all blocks: look at the head, the labels and how the loss is computed."
    return ""


def _cause(moved: Sequence[Moved], step: int) -> str:
    if not moved:
        return "nothing moved before it; the change came at once."
    first = moved[0]
    if first.since >= step:
        return "nothing moved before this step, which points to its batch."
    meaning = CAUSES.get(first.statistic, f"{first.statistic} moved before anything else")
    return f"{first}. That points to {meaning}."


def _head(kind: AlarmKind, place: str, heads: np.ndarray) -> int | None:
    """The head to look at: sharpest, with the largest logit, or weakest."""
    which = {AlarmKind.LOGIT_GROWTH: (2, np.nanargmax), AlarmKind.ENTROPY_COLLAPSE: (0, np.nanargmin),
             AlarmKind.DEAD_HEAD: (6, np.nanargmin)}.get(kind)  # fmt: skip
    if which is None or not place.startswith("block.") or not heads.size:
        return None
    values = heads[int(place.split(".")[1]), which[0]]
    return None if np.isnan(values).all() else int(which[1](values))


def _away(bands: Bands, at: np.ndarray) -> bool:
    """Whether any of these moves, or has come to rest ten times worse than it began."""
    fallen = bands.worse[at] * (bands.now[at] - (np.nan if bands.first is None else bands.first[at]))
    return bool((bands.since[at] >= 0).any() or (fallen > TENFOLD).any())


def _ruled_out(bands: Bands, kind: AlarmKind) -> list[str]:
    """Suspects whose series are all in their past, with the largest t-value as evidence."""
    own = {AlarmKind.LOGIT_GROWTH: "attention", AlarmKind.ENTROPY_COLLAPSE: "attention",
           AlarmKind.UPDATE_TOO_LARGE: "the learning rate", AlarmKind.RANK_COLLAPSE: "merging tokens",
           AlarmKind.VANISHING_GRADIENT: "a vanishing gradient"}.get(kind)  # fmt: skip
    out = []
    for suspect, names in SUSPECTS.items():
        at = np.concatenate([bands.at(name) for name in names])
        t = bands.worse[at] * bands.t[at]
        if suspect != own and len(at) and np.isfinite(t).any() and not _away(bands, at):
            most = round(float(np.nanmax(t)), 1) + 0.0  # not "-0.0"
            out.append(f"{suspect} (largest t = {most:.1f} of {bands.threshold:.1f} needed)")
    return out
