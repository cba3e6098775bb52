"""Runs with two kernels compared in pairs: the same seed, hence the same first weights and the same batches.

Shapes: a curve is (seeds, points, 3): step, loss, accuracy on held-out examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgewise.study import Result, select

LOSS, ACCURACY = 1, 2
LEAST = 3  # seeds below which nothing is decided
# 97.5 % points of Student's distribution by the number of pairs, for the interval of a mean
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
WORDS = {-1: "Gaussian better", 0: "no difference seen", 1: "softmax better"}


def kernels_of(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(r.case["kernel"] for r in results))


def complete(results: Sequence[Result]) -> list[Result]:
    """The seeds that every kernel has: only these can be compared in pairs."""
    seeds = [
        {r.case["seed"] for r in results if r.case["kernel"] == kernel} for kernel in kernels_of(results)
    ]
    return [r for r in results if r.case["seed"] in set.intersection(*seeds)]


def by_seed(results: Sequence[Result], kernel: str) -> list[Result]:
    return sorted(select(results, kernel=kernel), key=lambda r: r.case["seed"])


def curves(results: Sequence[Result], kernel: str) -> np.ndarray:
    return np.array([r.value["curve"] for r in by_seed(results, kernel)], dtype=float)


def ends(results: Sequence[Result], first: str, second: str, when: str) -> np.ndarray:
    """Loss and accuracy on all held-out examples at the "begin" or "end" of stage two, (seeds, 2)."""
    return np.array([r.value["stage_two"][second][when] for r in by_seed(results, first)], dtype=float)


class Difference:
    """Mean of paired differences, its standard error, and whether zero is outside the 95 % interval."""

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        pairs = np.asarray(first, float) - np.asarray(second, float)
        self.count, self.mean = len(pairs), float(pairs.mean())
        self.error = float(pairs.std(ddof=1) / math.sqrt(len(pairs))) if len(pairs) > 1 else None

    @property
    def sign(self) -> int:
        """-1 or 1 where zero is excluded, 0 where it is not."""
        if self.error is None or abs(self.mean) <= STUDENT.get(self.count, 2.0) * self.error:
            return 0
        return 1 if self.mean > 0 else -1

    def __str__(self) -> str:
        return f"{self.mean:+.4f}" + ("" if self.error is None else f" ± {self.error:.4f}")

    def said(self, words: dict[int, str]) -> str:
        """The words for its sign; with too few seeds there is no sign to speak of."""
        return (
            words[self.sign]
            if self.count >= LEAST
            else f"not judged by {self.count} seed{'s' * (self.count > 1)}"
        )

    def decided(self, held: bool) -> bool | None:
        """The outcome, where there are seeds enough for one."""
        return held if self.count >= LEAST else None


def summary(pair: np.ndarray) -> str:
    """Mean loss and accuracy of (seeds, 2)."""
    return f"{pair[:, 0].mean():.4f} / {pair[:, 1].mean():.1%}"
