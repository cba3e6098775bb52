"""Theorem 3: the expected gradient of n samples is near the population's, uniformly over a ball.

The expectation is a mean over samples; beside it the error of a single sample, which is what descent meets. Largest
over random points of a ball of whitened parameters, as a share of the largest population gradient there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.arrays import Array
from edgewise.laboratory.factorization import flat
from edgewise.laboratory.regression import Parameters, SoftmaxRegression, covariance_root, random_problem
from edgewise.study import Claim, Result
from edgewise.view import Curve, Panel, Sheet

SIZES = {"full": (50, 100, 200, 400, 800), "small": (20, 40)}
RADII = (0.5, 1.0)
STEEPEST = -0.8  # a bias that falls like 1/n has power -1, the error of one sample -1/2: decided before the run


def cases(scale: str = "small") -> list[dict[str, Any]]:
    points, draws, seeds = (24, 40, 3) if scale == "full" else (3, 4, 1)
    return [
        {"width": 3, "condition": 10.0, "tokens": n, "radius": radius, "points": points, "draws": draws, "seed": seed}
        for radius in RADII
        for n in SIZES[scale]
        for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Largest error over the ball of the mean gradient and of single ones; `scatter` is the mean's own error."""
    problem = random_problem(case["width"], case["width"], case["condition"], 3.0, case["seed"])
    samples = [problem.sample(case["tokens"], 1000 * case["seed"] + k) for k in range(case["draws"])]
    points = _points(problem, case["radius"], case["points"], case["seed"])
    exact = np.array([flat(problem.population().gradient(at)) for at in points])
    each = np.array([[flat(sample.gradient(at)) for sample in samples] for at in points])  # (points, draws, size)
    size = float(np.linalg.norm(exact, axis=1).max())
    single = np.linalg.norm(each - exact[:, None], axis=2).max(axis=0)  # over the ball, a number per sample
    scatter = np.sqrt(each.var(axis=1, ddof=1).sum(axis=1).max() / case["draws"])
    return {"expected": float(np.linalg.norm(each.mean(axis=1) - exact, axis=1).max()) / size,
            "single": float(np.median(single)) / size, "scatter": float(scatter) / size}  # fmt: skip


def _points(problem: SoftmaxRegression, radius: float, count: int, seed: int) -> list[Parameters]:
    """Random V and A whose whitened forms have spectral norm at most the radius, half of them on its edge."""
    rng = np.random.default_rng(7000 + seed)
    inverse = np.linalg.inv(covariance_root(problem.covariance))
    points = []
    for k in range(count):
        share = 1.0 if k % 2 else rng.uniform() ** 0.5
        v, a = (_unit(rng.standard_normal(shape)) * radius * share for shape in (problem.target.shape, inverse.shape))
        points.append(Parameters(v @ inverse, inverse @ a @ inverse))
    return points


def _unit(matrix: Array) -> Array:
    return np.asarray(matrix / np.linalg.norm(matrix, 2))


def medians(results: Sequence[Result], radius: float, key: str) -> tuple[Array, Array]:
    """Samples n, and the median over problems."""
    chosen = [r for r in results if r.case["radius"] == radius]
    sizes = sorted({r.case["tokens"] for r in chosen})
    values = [np.median([r.value[key] for r in chosen if r.case["tokens"] == n]) for n in sizes]
    return np.array(sizes, dtype=float), np.array(values)


def claim(results: Sequence[Result]) -> Claim:
    powers: dict[str, dict[str, float]] = {}
    words, held = [], True
    for radius in RADII:
        n, bias = medians(results, radius, "expected")
        fits = {key: float(np.polyfit(np.log(n), np.log(medians(results, radius, key)[1]), 1)[0])
                for key in ("expected", "single")}  # fmt: skip
        powers[f"{radius:g}"] = fits
        single = medians(results, radius, "single")[1][-1]
        held = held and fits["expected"] < STEEPEST and bias[-1] < 0.05
        words.append(
            f"radius {radius:g}: expected gradient off by {100 * bias[-1]:.2g} % at n = {n[-1]:g}, falling like "
            f"n^{fits['expected']:.2f}; one sample {100 * single:.2g} %, n^{fits['single']:.2f}"
        )
    return Claim(
        "The expected empirical gradient is uniformly close to the population gradient.",
        f"Largest error over the ball, as a share of the largest gradient there. {'; '.join(words)}.",
        f"d = m = 3, cond(Σ) = 10, cond(M) = 3, {results[0].case['points']} points, {results[0].case['draws']} "
        f"samples, {len({r.case['seed'] for r in results})} problems",
        bool(held) if len(n) > 2 else None, {"powers": powers}, rows=("D9", "D2"),
    )  # fmt: skip


def draw(results: Sequence[Result]) -> Figure:
    panels = []
    for radius in RADII:
        n, bias = medians(results, radius, "expected")
        curves = (
            Curve("one sample", *medians(results, radius, "single"), 1, "orbit"),
            Curve("expected gradient", n, bias, 0, "orbit"),
            Curve("error of that mean", *medians(results, radius, "scatter"), 0, "second"),
            Curve("1/n", n, bias[0] * n[0] / n, 6, "third"),
        )
        panels.append(Panel(f"ball of radius {radius:g}", "samples n", "largest error / largest gradient", curves,
                            log_x=True, log_y=True))  # fmt: skip
    return Sheet(
        "Gradients of a sample approach the population's over a whole ball", tuple(panels),
        f"d = m = 3, cond(Σ) = 10, {results[0].case['points']} points, {results[0].case['draws']} samples; medians of "
        f"{len({r.case['seed'] for r in results})} problems",
    ).draw()  # fmt: skip
