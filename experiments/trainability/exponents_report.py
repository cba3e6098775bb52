"""Test loss over the two exponents of a start: the talk's sentences, judged as spoken, and its picture.

The exponents are those of the talk, per block and linearised at collapse; what is close to zero is read as a total
over the depth within the library's limits (4: risky, 7: fails), which were fixed on other grounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import pearsonr, spearmanr

from edgewise.present import Curve, Dots, Map, Panel, Sheet
from edgewise.study import Claim
from edgewise.study.train import TRAINS

from .baselines import ThreeConstants, fit_three_constants
from .statistics import auroc

FAILS, RISKY = 7.0, 4.0  # total log-changes, of edgewise.stability.lyapunov
FEW, MANY = 0.05, 0.10  # shares of exceptions: at most this is none, at least that is some
CORRELATION = 0.7  # "a pretty good correlation", between fitted and final loss of starts left out
BINS = 7  # of the plane, each way
CROWD = 5  # runs that a cell needs to be compared
ENOUGH, TRAINED = 30, 10  # runs, and runs that train, from which a statement can be decided
SPIKE = 0.05  # of chance: a loss that climbs by more, averaged over a sixteenth of the run, has a spike
CUT = 2.0  # exponents per block beyond this are drawn there
DRAWS, OWN = 1000, "paper"  # of starts, for an interval; the family that the talk has
DIVERGED = 1.2  # what a diverged run counts as, where 1 is the worst tenth
TALK = "[talk]"
NAMES = ("angle exponent per block, λ_a", "gradient exponent per block, λ_g")
LOSS = "test loss, 0: best run, 1: worst tenth"


@dataclass(frozen=True)
class Point:
    """One run: test loss over chance (None: diverged), both exponents per block and both totals of its own orbit."""

    loss: float | None
    linear: Sequence[float | None]
    total: Sequence[float]
    depth: int
    start: int
    ends: tuple[float, float]  # losses over chance of the best run and of the worst tenth on the same task
    rise: float = 0.0  # how far the loss climbed above its lowest while training, in chances
    group: str = ""  # family, task and optimizer

    @property
    def height(self) -> float:
        """0: the best run on this task, 1: its worst tenth; tasks differ in what few steps and no learning reach."""
        best, worst = self.ends
        return DIVERGED if self.loss is None else min((self.loss - best) / (worst - best), DIVERGED)

    @property
    def trains(self) -> bool:
        return self.loss is not None and self.loss < TRAINS

    @property
    def exponents(self) -> tuple[float, float]:
        """What left the range of numbers counts as far away."""
        angle, gradient = (50.0 if value is None else float(value) for value in self.linear)
        return angle, gradient


def ends_of(losses: Sequence[float | None]) -> tuple[float, float]:
    """Of the runs on one task: the best, and where the worst tenth begins."""
    known = [loss for loss in losses if loss is not None]
    return min(known), max(float(np.percentile(known, 90)), min(known) + 1e-6)


def _arrays(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Angle and gradient exponent per block, depth, height of the loss."""
    angle, gradient = np.array([p.exponents for p in points]).T
    return angle, gradient, np.array([p.depth for p in points]), np.array([p.height for p in points])


def _trained(points: Sequence[Point]) -> np.ndarray:
    return np.array([p.trains for p in points])


def claim(points: Sequence[Point], scale: str, rows: tuple[str, ...] = ()) -> Claim:
    """Each exponent alone, both, the three constants, and the equivalence."""
    alone = [_alone(points, name, scale, ("C32", *rows)) for name in ("angle", "gradient")]
    return Claim.all(
        [
            *alone,
            _best(points, scale, ("C33", *rows)),
            _constants(points, scale, ("C34", *rows)),
            _equivalence(points, scale, ("C35", *rows)),
        ]
    )


def _decided(points: Sequence[Point], held: bool, trained: int = 0) -> bool | None:
    """Only by enough runs; what is said of those that train, only by enough of these."""
    return bool(held) if len(points) >= ENOUGH and _trained(points).sum() >= trained else None


def _alone(points: Sequence[Point], name: str, scale: str, rows: tuple[str, ...]) -> Claim:
    angle, gradient, depth, _ = _arrays(points)
    total, trained = np.abs(angle if name == "angle" else gradient) * depth, _trained(points)
    far = float(np.mean(total[trained] > FAILS)) if trained.any() else math.nan
    bad = float(np.mean(~trained[total < RISKY])) if (total < RISKY).any() else math.nan
    return Claim(
        f"To get good performance the {name} exponent must be close to zero, but that is not sufficient {TALK}.",
        f"Of {int(trained.sum())} runs that train {far:.0%} have a total beyond {FAILS:g}; of "
        f"{int((total < RISKY).sum())} within {RISKY:g} {bad:.0%} do not train. Held: at most {FEW:.0%}, and at least "
        f"{MANY:.0%}.",
        scale,
        _decided(points, far <= FEW and bad >= MANY, TRAINED),
        {"trained_and_far": far, "near_and_untrained": bad},
        rows=rows,
    )


def cells(points: Sequence[Point], least: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centres of the bins, one of them at zero, and the mean loss in every cell (gradient, angle); nan: too few."""
    angle, gradient, _, loss = _arrays(points)
    reach = [float(np.percentile(np.abs(x), 90)) for x in (angle, gradient)]
    centres = [np.linspace(-r, r, BINS) for r in reach]
    place = [
        np.clip(np.rint((x + r) / (2 * r) * (BINS - 1)), 0, BINS - 1).astype(int)
        for x, r in zip((angle, gradient), reach, strict=True)
    ]
    mean = np.full((BINS, BINS), np.nan)
    for i in range(BINS):
        for j in range(BINS):
            if (inside := (place[0] == j) & (place[1] == i)).sum() >= least:
                mean[i, j] = loss[inside].mean()
    return centres[0], centres[1], mean


def _best(points: Sequence[Point], scale: str, rows: tuple[str, ...]) -> Claim:
    _, _, mean = cells(points, CROWD if len(points) >= ENOUGH else 1)
    middle = BINS // 2
    i, j = np.indices(mean.shape)
    away, full = np.hypot(i - middle, j - middle), np.isfinite(mean)
    lowest = float(np.nanmin(mean))
    rank = float(spearmanr(away[full], mean[full]).statistic) if full.sum() > 3 else math.nan
    at_zero = float(mean[middle, middle])
    known = math.isfinite(at_zero)
    middle_one = (
        f"the one around (0, 0) has a mean loss of {at_zero:.2f}" if known else "none is around (0, 0)"
    )
    distance = (
        f"rank correlation of a cell's loss with its distance {rank:+.2f}"
        if math.isfinite(rank)
        else "too few cells for a rank correlation with the distance"
    )
    return Claim(
        f"As a function of both exponents performance is best at (0, 0) and worse away from it {TALK}.",
        f"Of {int(full.sum())} cells that hold at least {CROWD} runs, {middle_one}, and the lowest mean test loss is "
        f"{lowest:.2f} (0: best run of the task, 1: its worst tenth); {distance}. Held: (0, 0) "
        "within 0.05 of the lowest, and a correlation above 0.5.",
        scale,
        _decided(points, at_zero < lowest + 0.05 and rank > 0.5) if known else None,
        {"at_zero": at_zero, "lowest": lowest, "rank_correlation": rank},
        rows=rows,
    )


def fitted(points: Sequence[Point]) -> tuple[ThreeConstants, np.ndarray]:
    """The fit on all runs, and for every run the loss by a fit on other starts (five parts)."""
    angle, gradient, _, loss = _arrays(points)
    angle, gradient = np.clip(angle, -CUT, CUT), np.clip(gradient, -CUT, CUT)
    part, out = np.array([p.start % 5 for p in points]), np.full(len(points), np.nan)
    for k in range(5):
        if (part == k).any() and (part != k).sum() > 3:
            fit = fit_three_constants(angle[part != k], gradient[part != k], loss[part != k])
            out[part == k] = fit.loss(angle[part == k], gradient[part == k])
    return fit_three_constants(angle, gradient, loss), out


def _constants(points: Sequence[Point], scale: str, rows: tuple[str, ...]) -> Claim:
    fit, out = fitted(points)
    loss = _arrays(points)[3]
    known = np.isfinite(out)
    enough = known.sum() > 3
    r = float(pearsonr(out[known], loss[known]).statistic) if enough else math.nan
    error = float(np.sqrt(np.mean((out[known] - loss[known]) ** 2))) if enough else math.nan
    return Claim(
        "The final loss is c0 + max(c1 |lambda_a|, c2 |lambda_g|) with three fitted constants: a pretty good "
        f"correlation {TALK}.",
        f"c0 = {fit.base:.2f}, c1 = {fit.angle:.2f}, c2 = {fit.gradient:.2f} (loss from 0, the best run of the task, "
        f"to 1, its worst tenth; exponents per block, cut at {CUT:g}). Starts left out: correlation {r:.2f}, error "
        f"{error:.2f} where "
        f"losses scatter by {loss.std():.2f}. Held: a correlation of at least {CORRELATION:g}.",
        scale,
        _decided(points, r >= CORRELATION),
        {
            "c0": fit.base,
            "c1": fit.angle,
            "c2": fit.gradient,
            "correlation": r,
            "error": error,
            "scatter": loss.std(),
        },
        rows=rows,
    )


def _equivalence(points: Sequence[Point], scale: str, rows: tuple[str, ...]) -> Claim:
    angle, gradient, depth, _ = _arrays(points)
    worst, trained = np.maximum(np.abs(angle), np.abs(gradient)) * depth, _trained(points)
    own = np.array([max(abs(x) for x in p.total) for p in points])
    shares = {
        name: (
            float(np.mean(w[trained] > FAILS)) if trained.any() else math.nan,
            float(np.mean(trained[w < RISKY])) if (w < RISKY).any() else math.nan,
            int((w < RISKY).sum()),
        )
        for name, w in (("linearised at collapse", worst), ("of their own orbit", own))
    }
    words = "; ".join(
        f"exponents {name}: {a:.0%} of the runs that train are beyond {FAILS:g} in one of both, and of {n} runs "
        f"within {RISKY:g} in both {b:.0%} train"
        for name, (a, b, n) in shares.items()
    )
    only, if_, _ = shares["linearised at collapse"]
    return Claim(
        "Good performance occurs if and only if the initialization is at the intersection of both edges of chaos "
        f"{TALK}.",
        f"{words[0].upper()}{words[1:]}. Held: with the talk's exponents at most {FEW:.0%} and at least "
        f"{1 - MANY:.0%}.",
        scale,
        _decided(points, only <= FEW and if_ >= 1 - MANY, TRAINED),
        {
            name: {"trained_and_far": a, "near_and_trained": b, "near": n}
            for name, (a, b, n) in shares.items()
        },
        rows=rows,
    )


def _interval(points: Sequence[Point], number: Callable[[np.ndarray], float]) -> tuple[float, float, float]:
    """A number of some points, by their places, with its 95 % interval over starts; their runs are drawn together."""
    by_start: dict[int, list[int]] = {}
    for place, point in enumerate(points):
        by_start.setdefault(point.start, []).append(place)
    starts, rng = [np.array(places) for places in by_start.values()], np.random.default_rng(0)
    drawn = [
        number(np.concatenate([starts[k] for k in rng.integers(len(starts), size=len(starts))]))
        for _ in range(DRAWS)
    ]
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return number(np.arange(len(points))), float(low), float(high)


def _nearer(points: Sequence[Point]) -> Callable[[np.ndarray], float]:
    """Mean loss of the starts within the limit of both edges, less that of the others."""
    angle, gradient, depth, loss = _arrays(points)
    near = np.maximum(np.abs(angle), np.abs(gradient)) * depth < RISKY

    def number(places: np.ndarray) -> float:
        mine, heights = near[places], loss[places]
        return (
            float(heights[mine].mean() - heights[~mine].mean()) if mine.any() and not mine.all() else math.nan
        )

    return number


def _correlation(points: Sequence[Point]) -> Callable[[np.ndarray], float]:
    """Of the final loss with that of a fit on other starts."""
    told, loss = fitted(points)[1], _arrays(points)[3]

    def number(places: np.ndarray) -> float:
        x, y = told[places] - told[places].mean(), loss[places] - loss[places].mean()
        size = float(np.sqrt((x @ x) * (y @ y)))
        return float(x @ y) / size if size > 0 else math.nan

    return number


def by_group(points: Sequence[Point], scale: str, place: int) -> Claim:
    """Place 0: the plane, 1: the three constants; in every family, task and optimizer, the paper's family decides."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    found = {
        name: _interval(mine, (_nearer if place == 0 else _correlation)(mine))
        for name, mine in groups.items()
    }
    own = [row for name, row in found.items() if name.startswith(OWN)]
    said = ", ".join(
        f"{name} {value:+.2f} ({low:+.2f} to {high:+.2f})" for name, (value, low, high) in found.items()
    )
    asked, told, held = (
        (
            "Performance is best at (0, 0) and worse away from it",
            f"Mean loss of the starts within {RISKY:g} of both edges less that of the others",
            all(high < 0 for _, _, high in own),
        ),
        (
            "Three fitted constants give a pretty good correlation with the final loss",
            "Correlation of the fitted with the final loss, starts left out",
            all(low > 0 for _, low, _ in own),
        ),
    )[place]
    return Claim(
        f"{asked} {TALK}; for one architecture, task and optimizer each.",
        f"{told}, with 95 % intervals over starts: {said}. Held: the interval excludes zero in every group of the "
        "paper's family.",
        scale,
        _decided(points, held),
        {name: list(row) for name, row in found.items()},
        rows=(("C33",), ("C34",))[place],
    )


def spikes(points: Sequence[Point], scale: str) -> Claim:
    """Do losses climb more often where the start is far from the edges? 1/2 means that the start has no say."""
    spiked = np.array([p.rise > SPIKE for p in points])
    far = np.array([sum(abs(x) for x in p.total) for p in points])
    says = auroc(far, spiked) if spiked.any() and not spiked.all() else math.nan
    near, away = (
        float(np.mean(spiked[part])) if part.any() else math.nan for part in (far < RISKY, far > FAILS)
    )
    return Claim(
        "Open question of the talk: who is to blame for loss spikes, the initialization or the trajectory?",
        f"In {int(spiked.sum())} of {len(points)} recorded curves the loss climbs by more than {SPIKE:g} of chance: "
        f"{near:.0%} of the runs that start within {RISKY:g} of both edges, {away:.0%} of those beyond {FAILS:g}; the "
        f"distance from the edges tells them apart with an AUROC of {says:.2f}. Read as held (not the initialization "
        "alone): below 0.65.",
        scale,
        _decided(points, says < 0.65),
        {"auroc": says, "near": near, "far": away, "climbed": int(spiked.sum())},
        rows=("C39",),
    )


def draw(points: Sequence[Point], scale: str) -> Figure:
    """The four panels of the talk: loss against each exponent, over both, against the fit."""
    alone = [
        _against(points, place, f"{'AB'[place]}  against the {name.split()[0]} exponent")
        for place, name in enumerate(NAMES)
    ]
    foot = scale
    panels = (*alone, _plane(points), _scatter(points))
    return Sheet(
        "Test loss at the end of training, by the exponents of the start", panels, foot, columns=2
    ).draw()


def _against(points: Sequence[Point], place: int, title: str) -> Panel:
    arrays, loss, trained = _arrays(points), _arrays(points)[3], _trained(points)
    x = np.clip(arrays[place], -CUT, CUT)
    curves = (
        Curve("trains", x[trained], loss[trained], 0, "points"),
        Curve("does not", x[~trained], loss[~trained], 1, "hollow"),
    )
    return Panel(title, NAMES[place], LOSS, curves, levels=(1.0,), places=(0.0,))


def _plane(points: Sequence[Point]) -> Panel:
    x, y, mean = _filled(*cells(points))
    angle, gradient, _, loss = _arrays(points)
    background = Map("test loss − ½ (0: half way)", x, y, np.ma.masked_invalid(mean) - 0.5, 0.5)
    inside = _within(angle, x) & _within(gradient, y)
    dots = Dots("a run", angle[inside], gradient[inside], loss[inside] - 0.5)
    return Panel("C  over both: means of cells", *NAMES, (), background=background, dots=dots, legend=False)


def _filled(x: np.ndarray, y: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Without the rows and columns at the ends of the plane in which there is no run; zero and its neighbours stay."""
    full, near = np.isfinite(mean), [BINS // 2 - 1, BINS // 2 + 1]
    rows, columns = (np.append(np.flatnonzero(full.any(axis)), near) for axis in (1, 0))
    (low, high), (left, right) = ((k.min(), k.max() + 1) for k in (rows, columns))
    return x[left:right], y[low:high], mean[low:high, left:right]


def _within(values: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Whether they lie in the cells of these centres."""
    half = (centres[1] - centres[0]) / 2
    return np.asarray((values >= centres[0] - half) & (values <= centres[-1] + half))


def _scatter(points: Sequence[Point]) -> Panel:
    fit, out = fitted(points)
    known = out[np.isfinite(out)]
    ends = np.array([known.min(), known.max()]) if len(known) else np.array([0.0, 1.0])
    curves = (
        Curve("equal", ends, ends, 6, "second"),
        Curve("starts left out of the fit", out, _arrays(points)[3], 0, "points"),
    )
    note = f"c0 = {fit.base:.2f}, c1 = {fit.angle:.2f}, c2 = {fit.gradient:.2f}"
    return Panel("D  the fit of three constants", "fitted: c0 + max(c1 |λ_a|, c2 |λ_g|)", LOSS, curves, note)
