"""One run on softmax regression: a problem, a start, a method; losses on the sample and in the population."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgewise.laboratory.regression import (
    FiniteSample,
    Parameters,
    Population,
    SoftmaxRegression,
    StructureAware,
    descend,
    gaussian_start,
    random_problem,
    spectral_start,
)
from edgewise.study import Result

from .baselines import Adam, GradientDescent, StochasticGradientDescent

NAMES = {"all parts": "structure-aware"}  # in pictures; the others are drawn under their own
BASELINES: dict[str, Any] = {"SGD": StochasticGradientDescent, "GD": GradientDescent, "Adam": Adam}
# What the method is without one of its parts, and its two earlier forms.
OURS: dict[str, dict[str, Any]] = {
    "all parts": {},
    "no preconditioner": {"precondition": False},
    "no balancing": {"balancing": 0.0},
    "no renormalization": {"radius": None},
    "first version": {"invariant": False, "radius": None, "step": 0.3},
    "preconditioner only": {"invariant": False, "radius": None, "balancing": 0.0, "step": 0.3},
    "ScaledGD": {"scaled": True, "step": 0.5},
}
HARD: dict[str, Any] = {"width": 4, "condition": 100.0, "target_condition": 10.0}


class Both:
    """The sample's loss for the record, the population's excess beside it."""

    def __init__(self, sample: FiniteSample, population: Population) -> None:
        self.sample, self.population = sample, population
        self.excess: list[float] = []
        self.covariance, self.correlation, self.gradient = (
            sample.covariance,
            sample.correlation,
            sample.gradient,
        )

    def loss(self, at: Parameters) -> float:
        self.excess.append(self.population.excess(at))
        return self.sample.loss(at)


def problem_of(case: dict[str, Any]) -> SoftmaxRegression:
    return random_problem(
        case["width"], case["width"], case["condition"], case["target_condition"], case["seed"]
    )


def method_of(case: dict[str, Any]) -> Any:
    if case["method"] in BASELINES:
        return BASELINES[case["method"]](case["step"])
    own = {} if case["step"] is None else {"step": case["step"]}
    return StructureAware(**(OURS[case["method"]] | own))


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Losses every so many steps; `zero` is the loss of predicting nothing. Infinite where a run diverged: None."""
    problem = problem_of(case)
    sample, population = problem.sample(case["tokens"], 100 + case["seed"]), problem.population()
    start = (
        spectral_start(sample)
        if case["start"] == "spectral"
        else gaussian_start(problem, 1.0, 200 + case["seed"])
    )
    both = Both(sample, population)
    descent = descend(sample, start, method_of(case), case["steps"], every=case["every"], judge=both)
    nothing = Parameters(0 * start.value, 0 * start.score)
    losses = [loss if np.isfinite(loss) else None for loss in descent.losses]
    return {
        "steps": list(descent.steps),
        "losses": losses,
        "excess": both.excess,
        "zero": population.loss(nothing),
        "spectral": population.excess(spectral_start(sample)),
    }


def end(result: Result, key: str = "losses") -> float:
    """The last value; infinite where the run diverged."""
    value = result.value[key][-1] if result.value["losses"][-1] is not None else None
    return np.inf if value is None else float(value)


def tuned(results: Sequence[Result], **wanted: Any) -> dict[int, Result]:
    """By seed, the run of these with the lowest final loss: the best step of its grid."""
    found: dict[int, Result] = {}
    for r in (r for r in results if all(r.case.get(k) == v for k, v in wanted.items())):
        seed = r.case["seed"]
        if seed not in found or end(r) < end(found[seed]):
            found[seed] = r
    return found


def middle(results: dict[int, Result], key: str = "losses") -> float:
    """The median over seeds of the last value."""
    return float(np.median([end(r, key) for r in results.values()]))


def curve(results: dict[int, Result], key: str = "losses") -> tuple[list[int], np.ndarray]:
    """Steps, and the median over seeds at each."""
    longest = max(results.values(), key=lambda r: len(r.value["steps"]))
    steps = longest.value["steps"]
    rows = [[np.inf if v is None else v for v in r.value[key]] for r in results.values()]
    rows = [row + [np.inf] * (len(steps) - len(row)) for row in rows]
    return steps, np.median(rows, axis=0)


def scale_of(results: Sequence[Result]) -> str:
    c = results[0].case
    tokens = sorted({r.case["tokens"] for r in results if r.case.get("tokens")})
    size = (
        f"n = {tokens[0]}"
        if len(tokens) == 1
        else f"n = {tokens[0]} to {tokens[-1]}"
        if tokens
        else "population"
    )
    return (
        f"d = m = {c['width']}, {size}, cond(Σ) = {c['condition']:g}, cond(M) = {c['target_condition']:g}, "
        f"{len({r.case['seed'] for r in results})} seeds"
    )
