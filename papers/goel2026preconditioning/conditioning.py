"""Iterations against cond(Σ) in the population problem: ours, GD and Adam from one N(0, 0.3²) start.

d = m = 6, cond(M) = 3, until the loss is 1e-8 of that of predicting nothing; GD and Adam at the best step of a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.regression import Parameters, descend, gaussian_start
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .common import NAMES, method_of, problem_of

TOLERANCE = 0.001  # of the largest number in an entry; seeds scatter by 0.014 or more
LIMITS = {1.0: 50, 10.0: 50, 100.0: 150, 1000.0: 300}
GRID = {"GD": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "Adam": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)}
METHODS = ("all parts", "GD", "Adam")


def cases(scale: str = "small") -> list[dict[str, Any]]:
    seeds, budget = (9, 3000) if scale == "full" else (2, 300)
    return [
        {
            "width": 6,
            "condition": condition,
            "target_condition": 3.0,
            "method": method,
            "step": step,
            "seed": seed,
            "steps": budget,
        }
        for condition in LIMITS
        for method in METHODS
        for step in (
            GRID.get(method, (None,)) if scale == "full" else GRID.get(method, (None,))[2:4] or (None,)
        )
        for seed in range(seeds if method == "all parts" else max(seeds // 3, 1))
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Iterations (None: not within the budget) and the fitted factor per step of the loss."""
    problem = problem_of(case)
    population, start = problem.population(), gaussian_start(problem, 0.3, 1000 + case["seed"])
    aim = 1e-8 * population.loss(Parameters(0 * start.value, 0 * start.score))
    run = descend(population, start, method_of(case), case["steps"], until=aim)
    reached = run.losses[-1] <= aim
    return {"iterations": run.steps[-1] if reached else None, "rate": run.rate(aim) if reached else None}


def counts(results: Sequence[Result], method: str, condition: float) -> list[float]:
    """Per seed, the fewest iterations over the steps tried; infinite where none reached the aim."""
    best: dict[int, float] = {}
    for r in results:
        if r.case["method"] == method and r.case["condition"] == condition:
            its = r.value["iterations"]
            best[r.case["seed"]] = min(best.get(r.case["seed"], np.inf), np.inf if its is None else its)
    return sorted(best.values())


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_geometric(results), _insensitive(results)])


def _scale(results: Sequence[Result]) -> str:
    seeds, fewer = (len(counts(results, method, 1.0)) for method in ("all parts", "GD"))
    return f"population, d = m = 6, cond(M) = 3, {seeds} seeds (GD and Adam {fewer})"


def _geometric(results: Sequence[Result]) -> Claim:
    ours = [r for r in results if r.case["method"] == "all parts"]
    rates = [r.value["rate"] for r in ours if r.value["rate"] is not None]
    reached = sum(r.value["iterations"] is not None for r in ours)
    return Claim(
        "A simple first-order algorithm converges to the globally optimal parameters at a geometric rate.",
        f"{reached} of {len(ours)} runs reach 1e-8 of the first loss within {results[0].case['steps']} "
        f"steps; fitted factor per step {min(rates):.2f} to {max(rates):.2f}, the slower the larger cond(Σ).",
        _scale(results),
        reached == len(ours) and max(rates) < 1,
        {"slowest": max(rates)},
        rows=("D10", "D5"),
    )


def _insensitive(results: Sequence[Result]) -> Claim:
    ours = {c: counts(results, "all parts", c) for c in LIMITS}
    medians = {c: float(np.median(v)) for c, v in ours.items()}
    words = []
    for method in METHODS:
        middle = [float(np.median(counts(results, method, c))) for c in LIMITS]
        words.append(f"{method} {'/'.join('-' if np.isinf(m) else f'{m:.0f}' for m in middle)}")
    growth = medians[1000.0] / medians[1.0]
    return Claim(
        "(ours) The covariance of the inputs does not slow it down.",
        f"It does, {growth:.1f} times from cond(Σ) = 1 to 1000. Median iterations to 1e-8 at cond(Σ) = 1/10/100/1000: "
        f"{'; '.join(words)} (-: not within {results[0].case['steps']}); worst of ours "
        f"{'/'.join('-' if np.isinf(v[-1]) else f'{v[-1]:.0f}' for v in ours.values())}. Much less than the others; "
        f"our own goal of {'/'.join(str(most) for most in LIMITS.values())} is {'met' if _met(medians) else 'missed'}.",
        _scale(results),
        None if len(ours[1.0]) < 5 else bool(growth < 1.5),
        {"ours": {str(c): m for c, m in medians.items()}},
        rows=("D10",),
    )


def _met(medians: dict[float, float]) -> bool:
    return all(medians[c] <= most for c, most in LIMITS.items())


def draw(results: Sequence[Result]) -> Figure:
    curves = tuple(each for k, method in enumerate(METHODS) for each in _curves(results, method, k))
    seeds = len(counts(results, "all parts", 1.0))
    panel = Panel(
        "",
        "condition number of the inputs' covariance",
        "steps to 1e-8 of the first loss",
        curves,
        log_x=True,
        log_y=True,
    )
    scale = (
        f"population, d = m = 6, cond(M) = 3, medians of {seeds} seeds\n(baselines fewer); cross: not reached"
    )
    return Sheet("How many steps an ill-conditioned input costs", (panel,), scale).draw()


def _curves(results: Sequence[Result], method: str, group: int) -> tuple[Curve, Curve]:
    """Medians by condition, and a cross at the budget where the median run did not get there."""
    conditions = np.array(list(LIMITS))
    medians = np.array([float(np.median(counts(results, method, c))) for c in conditions])
    reached = np.isfinite(medians)
    budget = np.full(int((~reached).sum()), float(results[0].case["steps"]))
    return (
        Curve(NAMES.get(method, method), conditions[reached], medians[reached], group, "orbit"),
        Curve("", conditions[~reached], budget, group, "cross"),
    )
