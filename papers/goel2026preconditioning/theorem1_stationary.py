"""Theorem 1: what the stationary points of the population loss L and of the regularized loss Q are.

Of the theorem only its first line is public. Tested here is what the algorithm needs of it: Q has no spurious
stationary point, its saddles are strict, and its minima are those of L with both factors of one size, where L itself
has minima as badly conditioned as one likes. Points are built from every set of singular triples of the target and
searched for by Gauss-Newton steps on the gradient from random starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.regression import Parameters, random_problem
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .factorization import Factorization, flat, nearest_stationary

TOLERANCE = 0.003  # of the largest number in an entry; seeds scatter by 0.033 or more
CONDITIONS = (1.0, 100.0)
STRETCHES = (1.0, 3.0, 10.0, 30.0)  # of one column of V, its partner in A shorter: L does not change
BALANCED = 1e-6  # largest |ṼᵀṼ − ÃᵀÃ| at a stationary point, as a share of the target's norm


def cases(scale: str = "small") -> list[dict[str, Any]]:
    seeds, starts = (10, 24) if scale == "full" else (1, 3)
    return [
        {
            "width": 4,
            "outputs": outputs,
            "condition": condition,
            "balancing": 0.1,
            "starts": starts,
            "seed": seed,
        }
        for outputs in (2, 4)
        for condition in CONDITIONS
        for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Kinds of built and of found points, the steepest way down from each saddle, conditions of minima."""
    problem = random_problem(case["width"], case["outputs"], case["condition"], 3.0, case["seed"])
    q = Factorization.of(problem, case["balancing"])
    rng = np.random.default_rng(500 + case["seed"])
    rotation = np.linalg.qr(rng.standard_normal((case["width"], case["width"])))[0]
    sizes = np.linalg.svd(q.target, compute_uv=False)
    built = [(set_, q.stationary(set_, rotation)) for set_ in _sets(len(sizes))]
    found = [nearest_stationary(q, _start(q, rng), steps=80) for _ in range(case["starts"])]
    best = q.stationary(range(len(sizes)))
    return {
        "built": [q.kind(at) for _, at in built],
        "down": [
            [float(q.curvatures(at)[0]), -float(sizes[_first_missing(set_)])] for set_, at in built[:-1]
        ],
        "found": [q.kind(at) for at in found],
        "unbalance": [_unbalance(q, at) for at in found if q.kind(at) != "moving"],
        "condition_q": _condition(q, best),
        "condition_l": [_condition(Factorization(q.target, 0.0), _stretched(best, s)) for s in STRETCHES],
        "slope_q": [float(np.linalg.norm(flat(q.gradient(_stretched(best, s))))) for s in STRETCHES],
    }


def _sets(rank: int) -> list[tuple[int, ...]]:
    """All sets of triples, the full one last."""
    return list(chain.from_iterable(combinations(range(rank), k) for k in range(rank + 1)))


def _first_missing(triples: Sequence[int]) -> int:
    return next(k for k in range(len(triples) + 1) if k not in triples)


def _start(q: Factorization, rng: np.random.Generator) -> Parameters:
    m, d = q.target.shape
    size = rng.uniform(0.05, 1.0) * np.linalg.norm(q.target, 2) ** 0.5
    return Parameters(size * rng.standard_normal((m, d)), size * rng.standard_normal((d, d)))


def _stretched(at: Parameters, factor: float) -> Parameters:
    columns = np.ones(at.score.shape[1])
    columns[0] = factor
    return Parameters(at.value * columns, at.score / columns)


def _unbalance(q: Factorization, at: Parameters) -> float:
    size = float(np.linalg.norm(q.target, 2))
    return float(np.max(np.abs(at.value.T @ at.value - at.score.T @ at.score))) / size


def _condition(q: Factorization, at: Parameters) -> float:
    """Largest over smallest positive curvature at a minimum; the rest are directions that change nothing."""
    curvatures = q.curvatures(at)
    positive = curvatures[curvatures > 1e-9 * curvatures[-1]]
    return float(positive[-1] / positive[0])


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_no_spurious(results), _balanced(results), _conditions(results)])


def _no_spurious(results: Sequence[Result]) -> Claim:
    built = [kind for r in results for kind in r.value["built"]]
    found = [kind for r in results for kind in r.value["found"]]
    counts = {kind: found.count(kind) for kind in ("global minimum", "strict saddle", "spurious", "moving")}
    gaps = [abs(a - b) / abs(b) for r in results for a, b in r.value["down"]]
    held = "spurious" not in built + found and max(gaps) < 1e-6
    return Claim(
        "The regularized population loss has no spurious stationary points.",
        f"{len(built)} stationary points built from the target's singular triples: the full set is the global "
        f"minimum, each other a strict saddle whose steepest way down is the largest value left out (to "
        f"{max(gaps):.0e}). Searches from random starts: {counts['global minimum']} minima, "
        f"{counts['strict saddle']} saddles, {counts['spurious']} others; {counts['moving']} did not end.",
        _scale(results),
        bool(held),
        {"found": counts, "largest_gap": max(gaps)},
        rows=("D3",),
    )


def _balanced(results: Sequence[Result]) -> Claim:
    worst = max((value for r in results for value in r.value["unbalance"]), default=float("nan"))
    return Claim(
        "The regularizer keeps the two factors of one size.",
        f"At every stationary point that was found they agree: largest difference of their Gram matrices "
        f"{worst:.0e} of the target's norm.",
        _scale(results),
        bool(worst < BALANCED),
        {"largest_unbalance": worst},
        rows=("D3", "D4"),
    )


def _conditions(results: Sequence[Result]) -> Claim:
    q = float(np.median([r.value["condition_q"] for r in results]))
    l = np.median([r.value["condition_l"] for r in results], axis=0)
    slopes = np.array([r.value["slope_q"] for r in results])
    power = float(np.log(l[-1] / l[1]) / np.log(STRETCHES[-1] / STRETCHES[1]))
    held = bool(abs(power - 2) < 0.1 and (slopes[:, 1:] > 1e-3).all())
    return Claim(
        "(ours) Without the regularizer the minima form a manifold on which the condition number grows like s².",
        f"One column of V longer and its partner in A shorter by {', '.join(f'{s:g}' for s in STRETCHES)}: L stays at "
        f"its minimum and its condition number is {', '.join(f'{value:.3g}' for value in l)} (s to the power "
        f"{power:.2f}); Q leaves its minimum there, and has {q:.3g} at its own.",
        _scale(results),
        held,
        {"condition_q": q, "condition_l": [float(value) for value in l]},
        rows=("D3", "D4"),
    )


def _scale(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    return (
        f"population, d = {case['width']}, m = 2 and 4, cond(Σ) = 1 and 100, cond(M) = 3, λ = {case['balancing']:g}, "
        f"{seeds} seeds, {case['starts']} starts each"
    )


def draw(results: Sequence[Result]) -> Figure:
    stretch = np.array(STRETCHES)
    curves = []
    for group, condition in enumerate(CONDITIONS):
        chosen = [r for r in results if r.case["condition"] == condition]
        l = np.median([r.value["condition_l"] for r in chosen], axis=0)
        q = float(np.median([r.value["condition_q"] for r in chosen]))
        curves.append(Curve(f"L, cond(Σ) = {condition:g}", stretch, l, group, "orbit"))
        curves.append(
            Curve(f"Q, cond(Σ) = {condition:g}", stretch, np.full(len(stretch), q), group, "second")
        )
    saddles = np.array([pair for r in results for pair in r.value["down"]])
    ends = np.array([saddles.min(), saddles.max()])
    down = (
        Curve("built saddles", saddles[:, 1], saddles[:, 0], 0, "points"),
        Curve("equal", ends, ends, 6, "third"),
    )
    return Sheet(
        "The regularized loss has one kind of minimum, and only strict saddles",
        (
            Panel(
                "minima",
                "one column longer, its partner shorter by",
                "condition number",
                tuple(curves),
                log_x=True,
                log_y=True,
            ),
            Panel("saddles", "minus the largest value left out", "smallest curvature", down),
        ),
        f"{_scale(results)}; medians",
    ).draw()
