"""Proof that a plan helps, or does not: both arms over seeds, effect size, p-value, paragraph, picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from edgewise.nouns.verdict import finite
from edgewise.study.train import TRAINS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SURE = 0.05  # of the p-value


@dataclass(frozen=True)
class Arm:
    """One way to start: per seed the losses step by step, the rate that was chosen, and the final loss."""

    name: str
    losses: tuple[tuple[float, ...], ...]
    rates: tuple[float, ...]
    finals: tuple[float, ...]

    def trained(self, chance: float) -> int:
        return sum(final < TRAINS * chance for final in self.finals)

    def json(self) -> dict[str, Any]:
        thinned = [[finite(x) for x in losses[:: max(1, len(losses) // 50)]] for losses in self.losses]
        return {
            "name": self.name,
            "rates": list(self.rates),
            "finals": [finite(f) for f in self.finals],
            "losses": thinned,
        }


@dataclass(frozen=True)
class Difference:
    """Paired over seeds: final loss as it is minus with the plan; positive when the plan is better.

    effect is Cohen's d of the pairs, mean/sd of the differences; p_value is of the paired t-test [Student 1908].
    """

    mean: float
    interval: tuple[float, float]
    effect: float | None
    p_value: float | None


def compare(plain: Sequence[float], planned: Sequence[float]) -> Difference:
    """Return differences of finite final losses; one pair alone has neither effect size nor p-value."""
    gap = np.asarray(plain, float) - np.asarray(planned, float)
    mean = float(gap.mean())
    if len(gap) < 2:
        return Difference(mean, (math.nan, math.nan), None, None)
    deviation = float(gap.std(ddof=1))
    if deviation == 0:
        return Difference(
            mean, (mean, mean), math.copysign(math.inf, mean) if mean else 0.0, 0.0 if mean else 1.0
        )
    half = float(stats.t.ppf(0.975, len(gap) - 1)) * deviation / math.sqrt(len(gap))
    return Difference(
        mean, (mean - half, mean + half), mean / deviation, float(stats.ttest_1samp(gap, 0.0).pvalue)
    )


@dataclass(frozen=True)
class Proof:
    """Does the plan help? `print(proof)` says it, `proof.json()` stores it, `proof.draw()` shows both bands."""

    plain: Arm
    planned: Arm
    difference: Difference
    chance: float
    steps: int
    plan: str
    task: str

    @property
    def verdict(self) -> str:
        """helps, hurts, or no difference shown."""
        p = self.difference.p_value
        if p is None or p >= SURE:
            return "no difference shown"
        return "helps" if self.difference.mean > 0 else "hurts"

    @property
    def rescued(self) -> bool:
        """Most seeds train with the plan and most did not without."""
        count = len(self.plain.finals)
        return 2 * self.plain.trained(self.chance) < count < 2 * self.planned.trained(self.chance)

    def json(self) -> dict[str, Any]:
        c = self.difference
        return {
            "verdict": self.verdict,
            "rescued": self.rescued,
            "difference": finite(c.mean),
            "interval": [finite(x) for x in c.interval],
            "effect": finite(c.effect),
            "p_value": finite(c.p_value),
            "chance": self.chance,
            "steps": self.steps,
            "task": self.task,
            "plan": self.plan,
            "plain": self.plain.json(),
            "planned": self.planned.json(),
        }

    def report(self, path: str | Path) -> Path:
        """Write a page that needs nothing else: the answer, both arms seed by seed, the plan, what repeats it.

        path  an .html file
        """
        from edgewise import present

        return present.write_proof(self, path)

    def _repr_html_(self) -> str:
        from edgewise import present

        return present.as_html(present.card_of(self))

    def __str__(self) -> str:
        c, count = self.difference, len(self.plain.finals)
        lines = [
            f"The plan {self.verdict}." if self.verdict in ("helps", "hurts") else "No difference is shown.",
            f"Task {self.task}, {self.steps} steps, {count} seeds, the same data in both arms, rates tuned in each; "
            f"chance is {self.chance:.3f}.",
            f"As it is the final loss is {spread(self.plain.finals)} ({self.plain.trained(self.chance)} of {count} "
            f"train); with the plan {spread(self.planned.finals)} ({self.planned.trained(self.chance)} of {count}).",
        ]
        if c.p_value is not None:
            effect = "unbounded" if c.effect is None or math.isinf(c.effect) else f"{c.effect:.2f}"
            low, high = c.interval
            lines.append(
                f"Difference {c.mean:+.3f} (95 % between {low:+.3f} and {high:+.3f}), effect size {effect}, "
                f"p = {c.p_value:.2g} (paired t-test)."
            )
        return " ".join(lines)

    def draw(self) -> Figure:
        """Return loss against step: the mean over seeds as a line, all seeds as a band."""
        from edgewise import present

        return present.proof_sheet(self, "Loss in training, before and after the plan").draw()


def spread(finals: Sequence[float]) -> str:
    """Return mean and standard deviation of some final losses, as text."""
    middle = float(np.mean(finals))
    return f"{middle:.3f}" if len(finals) < 2 else f"{middle:.3f} ± {float(np.std(finals, ddof=1)):.3f}"
