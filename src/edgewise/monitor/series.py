"""Which series are watched, and which of them have left their own past: by a trend, or by a jump.

A trend counts from a t-value that chance reaches once in 10^8 for all series together (Bonferroni); a jump from eight
times the usual scatter. When each began to move is remembered, because the order tells the cause.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.monitor.alarm import Moved
from edgewise.monitor.columns import Column

WINDOW = 40  # rows of a trend
FEWEST = 20  # rows before a trend or a jump can be told
LONG = 80  # rows of the loss, which scatters most, that decide whether it still falls
FLOOR = 0.02  # relative: a number that hardly ever moved does not jump by a little


def log_trend(steps: Array, logs: Array) -> tuple[Array, Array]:
    """Least squares of logs (W, C) against steps (W,): (slope, slope / its error); nan where a row is not finite.

    Neighboring rows are not independent: the error is widened by sqrt((1 + r) / (1 - r)), r the correlation of
    neighboring residuals [Quenouille 1952].
    """
    t = steps - _mean(steps)
    whole = math.isfinite(np.add.reduce(logs, None))
    usable = None if whole else np.isfinite(logs).all(0)  # asked of each only if one is not
    safe = logs if usable is None else np.where(usable, logs, 0.0)
    centred = safe - _mean(safe)
    length = t @ t
    slope = (t @ centred) / length
    residual = centred - t[:, None] * slope
    squares = np.add.reduce(residual**2)
    memory = np.add.reduce(residual[1:] * residual[:-1]) / np.maximum(squares, 1e-300)
    memory = np.minimum(np.maximum(memory, 0.0), 0.95)
    error = np.sqrt(squares / (max(len(t) - 2, 1) * length) * (1 + memory) / (1 - memory))
    value = slope / (error + 1e-12)
    return (
        (slope, value)
        if usable is None
        else (np.where(usable, slope, np.nan), np.where(usable, value, np.nan))
    )


def _mean(values: Array) -> Array:
    """Along the first dimension; numpy's own is a function in Python around the same."""
    return np.asarray(np.add.reduce(values) / len(values))


RESTLESS, LOUD = 4.0, 0.1  # times the scatter, and nats, above its past: what asks for a row
WEIGHT = 0.1  # of a loss in the running mean of its past
RISEN, SURE = 0.15, 6.0  # of the first loss, and standard errors, above the lowest mean of 20 losses
OPENING = 10  # losses that say where a run began
LARGEST = 300.0  # nats: what is beyond has no square
WELL = 0.8  # of the loss of knowing nothing: below it the network has learned at its rate


class Losses:
    """Logarithms of the last losses and their steps."""

    def __init__(self) -> None:
        self.steps: deque[int] = deque(maxlen=LONG)
        self.logs: deque[float] = deque(maxlen=LONG)
        self.first = math.nan
        self.chance = math.inf  # the loss of guessing, if it is known: a first one may be far above it
        self.restless = False  # whether the last one is far above its past
        self.rise = 0.0  # of the last one above its past, in units of their scatter
        self.opening: list[float] = []  # the first ones
        self._mean, self._scatter = math.nan, 0.0
        self._seen, self._lowest = 0, (math.inf, 0.0)  # mean and variance of the lowest 20 in a row
        self.open = False  # whether it may be below zero, or is one side of a game: it need not fall

    def see(self, step: int, log: float) -> None:
        """Take in the loss of a step, once."""
        if math.isnan(log) or (self.steps and self.steps[-1] >= step):
            return
        self.steps.append(step)
        self.logs.append(log)
        if len(self.logs) == 1:
            self.first = self._mean = log
        away = log - self._mean if math.isfinite(log) else math.inf
        self.restless = len(self.logs) > FEWEST // 2 and away > max(RESTLESS * self._scatter, LOUD)
        self.rise = away / max(self._scatter, FLOOR)
        if len(self.opening) < OPENING:
            self.opening.append(math.exp(min(log, LARGEST)))
        if math.isfinite(away):
            weight = WEIGHT / 4 if self.restless else WEIGHT
            self._mean += weight * away
            # of a normal one, from its mean deviation
            self._scatter += weight * (1.25 * abs(away) - self._scatter)
        self._seen += 1
        if self._seen % FEWEST == 0:
            self._lowest = min(self._lowest, self._level())

    def __len__(self) -> int:
        return len(self.logs)

    def last(self, count: int) -> Array:
        return np.array(self.logs, float)[-count:]

    def begin_again(self, step: int) -> None:
        """From that step on the data are others, as planned: what the loss was before says nothing of what it is."""
        kept = [(k, log) for k, log in zip(self.steps, self.logs, strict=True) if k >= step]
        self.steps, self.logs = (
            (deque(x, maxlen=LONG) for x in zip(*kept, strict=True))
            if kept
            else (deque(maxlen=LONG), deque(maxlen=LONG))
        )
        self._seen, self._lowest = len(kept), (math.inf, 0.0)

    def since(self, gap: int) -> int:
        """Count the losses of the last `gap` steps; 1 if only those of rows are seen."""
        return sum(step > self.steps[-1] - gap for step in self.steps)

    def level(self) -> float:
        """Return the mean of the last 20 losses; infinite with fewer."""
        return self._level()[0] if len(self.logs) >= FEWEST else math.inf

    def flat(self, part: float) -> bool:
        """Return whether the last 20 losses are not below that part of the first ones."""
        return self._seen >= LONG and self.level() > part * sum(self.opening) / len(self.opening)

    def before_rise(self) -> float:
        """Return the median loss of the steps before the last few."""
        before = self.last(LONG)[:-6]
        return float(np.exp(np.median(before))) if len(before) else math.inf

    def broke_at(self) -> int:
        """Return the step from which on the last losses are most clearly above those before; -1 if there is none."""
        logs = np.nan_to_num(self.last(LONG), posinf=LARGEST)
        if len(logs) < 2 * FEWEST:
            return -1
        k = np.arange(FEWEST // 2, len(logs) - 1)
        sums = np.cumsum(logs)
        rise = (sums[-1] - sums[k - 1]) / (len(logs) - k) - sums[k - 1] / k
        best = int(np.argmax(np.sqrt(k * (len(logs) - k)) * rise))
        return self.steps[int(k[best])] if rise[best] > 0 else -1

    @property
    def scale(self) -> float:
        """Return the loss of knowing nothing: the first, or that of guessing."""
        return min(math.exp(min(self.first, LARGEST)), self.chance)

    def risen(self) -> float:
        """Return the mean of the last 20 less the lowest, over that of knowing nothing; 0 if that may be chance."""
        if self._seen <= 2 * FEWEST:
            return 0.0
        (low, before), (now, variance) = self._lowest, self._level()
        first, error = self.scale, math.sqrt((before + variance) / FEWEST)
        return (now - low) / first if now - low > max(RISEN * first, SURE * error) else 0.0

    def _level(self) -> tuple[float, float]:
        """Mean and variance of the last 20 losses themselves; without numpy, which is slow on so few."""
        losses = [math.exp(min(log, LARGEST)) for log in islice(reversed(self.logs), FEWEST)]
        mean = sum(losses) / len(losses)
        return mean, sum((loss - mean) ** 2 for loss in losses) / len(losses)

    @property
    def harmed(self) -> bool:
        """Return whether the loss has risen, or has not beaten guessing; not of one that need not fall."""
        nothing = self.chance if self.chance < math.inf else math.exp(min(self.first, LARGEST))
        return not self.open and (bool(self.risen()) or not self.level() < WELL * nothing)

    def falls(self) -> bool | None:
        """Return whether the last 20 are below 20 of 60 earlier by two standard errors; None with fewer than 80."""
        if len(self.logs) < LONG:
            return None
        logs = self.last(LONG)
        ends = np.stack([logs[:FEWEST], logs[-FEWEST:]])
        (early, late), error = ends.mean(1), math.sqrt(ends.var(1).sum() / FEWEST)
        return bool(late < early - 2 * error)


CHANCE = 1e-8  # of one false trend among all series of a row
SPARSE = 1e-5  # the same at most where rows are further apart, so that neighbors are less alike and fewer
APART = 4  # the power of the steps between two rows, over two, with which the one goes over into the other
JUMP = 8.0  # times the scatter
LOOKS = 3  # at the stream, which are rare, that must agree
FEW = 14  # rows of a trend if they are further apart than two steps
STILL = 0.05  # nats: what changed by less is not worth a word
SHORT, RARE = 10, 2  # rows that what lasts must be seen in at least, or those of so many times the steps
REACH = 160  # steps that a window of fewer rows covers, where rows are rarer
CALM = 0.4  # of the threshold: below it a series is back in its past


@dataclass(frozen=True)
class Quantity:
    """A statistic of the rows that is watched: which way it goes when something goes wrong, and on which scale."""

    name: str
    scope: str
    worse: int  # 1 up, -1 down: the other way is how healthy runs go
    logarithm: bool = True


QUANTITIES = (
    Quantity("loss", "run", 1),
    Quantity("gradient_norm", "run", 1),
    Quantity("update_ratio", "run", 1),
    Quantity("norm", "site", 1),
    Quantity("separation", "site", -1),
    Quantity("gradient", "site", 1),
    Quantity("gradient_growth", "site", -1, False),
    Quantity("headroom", "site", -1, False),
    Quantity("largest_logit", "block", 1),
    Quantity("entropy", "block", -1),
    Quantity("softmax_gain", "block", -1),
    Quantity("head_share_min", "block", -1),
    Quantity("update_ratio.attention", "block", 1),
    Quantity("update_ratio.mlp", "block", 1),
)
SHOWN = {
    "largest_logit": "largest logit",
    "norm": "mean square of the stream",
    "separation": "token separation",
    "gradient_norm": "gradient norm",
    "update_ratio": "update ratio",
    "head_share_min": "contribution of the weakest head",
    "softmax_gain": "softmax gain",
    "entropy": "attention entropy",
    "gradient": "gradient of the stream",
    "gradient_growth": "gradient growth",
    "update_ratio.attention": "update ratio of attention",
    "update_ratio.mlp": "update ratio of the MLP",
}


class History:
    """Trends and jumps of every watched series, row by row."""

    def __init__(self, columns: Sequence[Column], window: int = WINDOW) -> None:
        pairs = [
            (q, i, column.place)
            for q in QUANTITIES
            for i, column in enumerate(columns)
            if column.statistic.name == q.name and column.statistic.scope == q.scope
        ]
        self.quantities = [q for q, _, _ in pairs]
        names = [(column.statistic.name, column.statistic.scope) for column in columns]
        self._saturated, self._starved = (
            np.array([i for i, own in enumerate(names) if own == (name, "block")], np.int64)
            for name in ("saturated", "starvation")
        )
        self.starved: deque[Array] = deque(
            maxlen=FEWEST
        )  # gradient of queries and keys against that of values
        self.saturated: deque[Array] = deque(maxlen=3)  # share of one-hot rows by block, of the last rows
        self.saturated_first = np.zeros(0)  # and of the first
        self.places = [place for _, _, place in pairs]
        self._columns = np.array([i for _, i, _ in pairs], np.int64)
        self._log = np.array([q.logarithm for q, _, _ in pairs], bool)
        self.worse = np.array([q.worse for q, _, _ in pairs], float)
        self._at = {
            q.name: np.array([i for i, p in enumerate(pairs) if p[0] is q], np.int64) for q in QUANTITIES
        }
        self._span = {
            name: slice(at[0], at[-1] + 1) if len(at) else slice(0) for name, at in self._at.items()
        }
        # rows are written behind each other, and moved when room runs out
        self._longest, self._end = (window, 0)
        self._steps, self._values = np.full(4 * window, np.nan), np.full((4 * window, len(pairs)), np.nan)
        self.count, self.series = 0, len(pairs)
        self._past = self._steps[:0], self._values[:0]
        # worked out before there is a clock
        self.apart, self.threshold = (1, _thresholds(len(pairs), window, 1)[0])
        self.slope, self.t, self.change, self.jump = (np.full(len(pairs), np.nan) for _ in range(4))
        self.since = np.full(len(pairs), -1, np.int64)  # step at which it began to move; -1 while calm
        self.first: Array | None = None  # of the first row, or of the first that had a number
        self._begun = False  # whether all have one
        self.now = np.full(len(pairs), np.nan)
        self.losses = Losses()
        self._loss = int(self.at("loss")[0]) if len(self.at("loss")) else None
        self.loss = math.nan  # of this row, itself: the logarithm of a negative one is not a number
        self.gap = 1  # steps since the row before
        self._stalled: bool | None = None  # of this row, once it was asked
        self._edge = next(
            (i for i, column in enumerate(columns) if column.name == "stream_change_of_edge"), None
        )
        self.beyond: deque[float] = deque(maxlen=LOOKS)  # the last steps against the edge of a rehearsal

    def see(self, step: int, row: Array) -> None:
        """Take one row in: jumps against the rows before it, trends with it."""
        value = row[self._columns].astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            np.log(value, out=value, where=self._log)
            steps, past = self._past
            self.gap = step - int(steps[-1]) if self.count else 1
            self.jump = _jumps(past, value) / _wider(steps, self.gap)
            self._write(step, value)
            self._look()
            self._note(step, row)
            steps, past = self._past
            if self.trends:
                self.slope, self.t = log_trend(steps, past)
                self.change = self.slope * (steps[-1] - steps[0])
            self._remember(step, steps)

    def _note(self, step: int, row: Array) -> None:
        """Return what is asked of one row alone."""
        value = self.now
        self._stalled = None
        if self._loss is not None:
            self.loss = float(row[self._columns[self._loss]])
            self.losses.see(step, float(value[self._loss]))
            self.losses.open |= self.loss < 0
        self.saturated.append(row[self._saturated])
        self.starved.append(row[self._starved])
        if self.count == 1:
            self.saturated_first = row[self._saturated]
        if self._edge is not None and np.isfinite(row[self._edge]):
            self.beyond.append(float(row[self._edge]))
        if not self._begun:
            self.first = value if self.first is None else np.where(np.isnan(self.first), value, self.first)
            self._begun = not np.isnan(self.first).any()

    def _write(self, step: int, value: Array) -> None:
        if self._end == len(self._steps):
            steps, values = self._steps[-self._longest :], self._values[-self._longest :]
            self._end = self._longest
            self._steps[: self._end], self._values[: self._end] = steps.copy(), values.copy()
        self._steps[self._end], self._values[self._end] = step, value
        self.now = value
        self._end += 1
        self.count += 1

    def _look(self) -> None:
        """Return what the last rows are, how far they are apart, and which t-value is not chance with so many."""
        most = min(self.count, self._longest)
        steps = self._steps[self._end - most : self._end]
        if most > FEW and steps[0] <= steps[-1] - REACH:
            most = max(int((steps > steps[-1] - REACH).sum()), FEW)
        self._past = self._steps[self._end - most : self._end], self._values[self._end - most : self._end]
        steps = self._past[0]
        self.apart = math.ceil((steps[-1] - steps[0]) / most) if most > 1 else 1
        self.threshold = _thresholds(self.series, self._longest, self.apart)[most]

    def past(self) -> tuple[Array, Array]:
        """Steps (W,) and values (W, series) of the window, in order; logarithms where a series has them."""
        return self._past

    @property
    def rows(self) -> int:
        """Of the window: 40, fewer where these reach back further than 160 steps, but 14 if there are so many."""
        return len(self._past[0])

    @property
    def trends(self) -> bool:
        """Return whether there are rows enough for trends."""
        return self.rows >= FEWEST or (self.rows >= FEW and self.sparse)

    def lasting(self, steps: int) -> int:
        """Count the last rows that cover so many steps, ten at least; 0 if there are not enough.

        Where ten rows cover more than twice as many steps, those that do are enough, but three at least.
        """
        at = self.past()[0]
        if not len(at):
            return 0
        count = max(int((at > at[-1] - steps).sum()), SHORT)
        count = min(count, max(int((at > at[-1] - RARE * steps).sum()), LOOKS) + 1)
        covered = len(at) >= count and at[-1] - at[-count] >= steps - 1
        return count if covered else count + 1 if len(at) > count else 0

    @property
    def stalled(self) -> bool:
        """Return whether the loss no longer falls; also if it is not watched, since nothing contradicts it then.

        Of the last 80 steps; by the trend with fewer losses.
        """
        if self._stalled is None:
            self._stalled = self._stands()
        return self._stalled

    def _stands(self) -> bool:
        falls = self.losses.falls()
        if falls is not None:
            return not falls
        t, _ = self.trend("loss")
        return not (len(t) and t[0] < -2.0)

    @property
    def sparse(self) -> bool:
        """Return whether rows are further apart than two steps."""
        return self.apart > 2

    @property
    def stretch(self) -> float:
        """Return the drift within the window over that within 40 steps, as a random walk has it."""
        steps = self.past()[0]
        return math.sqrt(max(1.0, float(steps[-1] - steps[0]) / WINDOW)) if len(steps) else 1.0

    def _remember(self, step: int, steps: Array) -> None:
        limit = self.threshold if self.trends else math.inf
        t, jumped = self.worse * self.t, self.worse * self.jump > JUMP
        drifting, calm = t > limit, ~((t >= CALM * limit) | jumped)
        began = int(steps[len(steps) // 2])  # a trend is half a window old when it shows
        fresh = (drifting | jumped) & (self.since < 0)
        self.since = np.where(fresh, np.where(jumped, step, began), np.where(calm, -1, self.since))

    @property
    def quiet(self) -> bool:
        """Return whether nothing is away from its past, and all that was finite is."""
        broken = self.first is not None and bool((np.isfinite(self.first) & ~np.isfinite(self.now)).any())
        return not broken and bool((self.since < 0).all())

    def slowing(self, at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether a growth is less in the second half of the window than in the first, by a fifth or more."""
        steps, past = self.past()
        half = len(steps) // 2
        early, late = (
            log_trend(steps[part], past[part][:, at])[0] for part in (slice(half), slice(half, None))
        )
        return np.asarray(late < 0.8 * early)

    def at(self, name: str) -> NDArray[np.int64]:
        """The places of a statistic among the series."""
        return self._at[name]

    def trend(self, name: str) -> tuple[Array, Array]:
        """(t-values, log-changes over the window) of a statistic at all its places."""
        span = self._span[name]
        return self.t[span], self.change[span]

    def since_start(self, name: str) -> Array:
        """log-change since the first row."""
        span = self._span[name]
        return self.now[span] - (self.first[span] if self.first is not None else np.nan)

    def moved(self) -> list[Moved]:
        """Everything that is away from its past, the first to move first; of each statistic the earliest place."""
        earliest: dict[str, Moved] = {}
        moving = np.flatnonzero(self.since >= 0)
        for i in sorted(moving, key=lambda i: (self.since[i], -abs(np.nan_to_num(self.t[i])))):
            name = self.quantities[i].name
            if name not in earliest and self.quantities[i].logarithm:
                earliest[name] = self._describe(int(i))
        return [each for each in earliest.values() if abs(math.log(max(each.factor, 1e-300))) > STILL]

    def _describe(self, i: int) -> Moved:
        trend = abs(np.nan_to_num(self.t[i])) > self.threshold
        change = self.change[i] if trend else self.now[i] - np.nanmedian(self.past()[1][:, i])
        name = self.quantities[i].name
        factor = float(np.exp(np.clip(np.nan_to_num(change), -700, 700)))
        score = float(self.t[i] if trend else np.nan_to_num(self.jump[i]))
        return Moved(SHOWN.get(name, name), self.places[i], int(self.since[i]), factor, score, bool(trend))


@cache
def _thresholds(series: int, most: int, apart: int) -> tuple[float, ...]:
    """The t-value that is not chance, by the number of rows up to `most`: one alone costs as much as all."""
    from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes seconds to import

    chance = min(CHANCE * max(1.0, apart / 2) ** APART, SPARSE)
    quantiles = -stdtrit(np.arange(1, most - 1), chance / max(series, 1) / 2)
    return (math.inf,) * 3 + tuple(quantiles.tolist())


def _wider(steps: Array, gap: int) -> float:
    """Return how much wider rows scatter that are further apart than those of the window, as a random walk does."""
    if gap < 2 or len(steps) < 3:
        return 1.0
    return math.sqrt(max(1.0, gap / float(np.median(np.diff(steps)))))


def _jumps(past: Array, value: Array) -> Array:
    """(value - recent median) / scatter of one row against the one before; nan with fewer than 20 rows.

    0 if no scatter makes it a jump, since that is at least FLOOR.
    """
    if len(past) < FEWEST:
        return np.full(len(value), np.nan)
    jump = value - _middle(np.ascontiguousarray(past[-FEWEST:].T))
    far = np.abs(jump) > JUMP * FLOOR
    jump[~far] = 0.0
    if far.any():
        change = np.diff(past.T[far])
        spread = 1.4826 * _middle(np.abs(change - _middle(change)[:, None]))
        spread[np.isnan(change).any(1)] = np.nan
        jump[far] /= np.maximum(spread, FLOOR)
    return jump


def _middle(values: Array) -> Array:
    """Median along the last axis of numbers, none of which is nan: numpy's own looks for those first."""
    half, odd = divmod(values.shape[-1], 2)
    if odd:
        return np.asarray(np.partition(values, half)[..., half])
    parted = np.partition(values, (half - 1, half))
    return np.asarray((parted[..., half - 1] + parted[..., half]) / 2)
