"""How good a forecast is: ranking (AUROC, Spearman), its interval over starts, and calibration (Brier, ECE)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from edgewise.arrays import Array

Statistic = Callable[[Array, Array], float]


def auroc(score: ArrayLike, failed: ArrayLike) -> float:
    """P(score of a failed run > score of a trained one), ties count half [Mann 1947]; nan if one kind is missing."""
    score, failed = np.asarray(score, float), np.asarray(failed, bool)
    trained, bad = np.sort(score[~failed]), score[failed]
    if not len(trained) or not len(bad) or np.isnan(score).any():
        return float("nan")
    wins = np.searchsorted(trained, bad, "left") + np.searchsorted(
        trained, bad, "right"
    )  # a tie counts once, of two
    return float(wins.sum() / 2 / (len(trained) * len(bad)))


def spearman(score: ArrayLike, loss: ArrayLike) -> float:
    """Correlation of ranks; nan where one of them is constant."""
    a, b = rankdata(np.asarray(score, float)), rankdata(np.asarray(loss, float))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def interval(
    statistic: Statistic,
    first: ArrayLike,
    second: ArrayLike,
    clusters: Sequence[object],
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap over clusters [Efron 1979]: runs from the same start are not independent."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    names = {cluster: i for i, cluster in enumerate(dict.fromkeys(clusters))}
    of = np.array([names[cluster] for cluster in clusters])
    members = [np.flatnonzero(of == i) for i in range(len(names))]
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        chosen = np.concatenate([members[i] for i in generator.integers(len(members), size=len(members))])
        found.append(statistic(first[chosen], second[chosen]))
    tail = (1 - level) / 2
    low, high = np.nanquantile(found, [tail, 1 - tail])
    return float(low), float(high)


def brier(probability: ArrayLike, happened: ArrayLike) -> float:
    """Mean squared difference between a probability and what happened [Brier 1950]."""
    return float(np.mean((np.asarray(probability, float) - np.asarray(happened, float)) ** 2))


def reliability(probability: ArrayLike, happened: ArrayLike, bins: int = 5) -> list[tuple[float, float, int]]:
    """(mean probability, share that happened, count) in bins of equally many forecasts."""
    p, y = np.asarray(probability, float), np.asarray(happened, float)
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    return [(float(p[part].mean()), float(y[part].mean()), len(part)) for part in parts if len(part)]


def calibration_error(probability: ArrayLike, happened: ArrayLike, bins: int = 5) -> float:
    """Expected calibration error: mean over forecasts of |forecast - share that happened| of its bin [Naeini 2015]."""
    found = reliability(probability, happened, bins)
    total = sum(count for *_, count in found)
    return sum(abs(mean - share) * count for mean, share, count in found) / total
