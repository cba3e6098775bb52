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
from edgewise.laboratory.regression import Parameters, SoftmaxRegression, covariance_root, random_problem
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .factorization import flat

TOLERANCE = 0.006  # of the largest number in an entry; seeds scatter by 0.06 or more
SIZES = {"full": (50, 100, 200, 400, 800), "small": (20, 40)}
RADII = (0.5, 1.0)
STEEPEST = (
    -0.8
)  # a bias that falls like 1/n has power -1, the error of one sample -1/2: decided before the run


def cases(scale: str = "small") -> list[dict[str, Any]]:
    points, draws, seeds = (24, 40, 3) if scale == "full" else (3, 4, 1)
    return [
        {
            "width": 3,
            "condition": 10.0,
            "tokens": n,
            "radius": radius,
            "points": points,
            "draws": draws,
            "seed": seed,
        }
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
    each = np.array(
        [[flat(sample.gradient(at)) for sample in samples] for at in points]
    )  # (points, draws, size)
    size = float(np.linalg.norm(exact, axis=1).max())
    single = np.linalg.norm(each - exact[:, None], axis=2).max(axis=0)  # over the ball, a number per sample
    scatter = np.sqrt(each.var(axis=1, ddof=1).sum(axis=1).max() / case["draws"])
    return {
        "expected": float(np.linalg.norm(each.mean(axis=1) - exact, axis=1).max()) / size,
        "single": float(np.median(single)) / size,
        "scatter": float(scatter) / size,
    }


def _points(problem: SoftmaxRegression, radius: float, count: int, seed: int) -> list[Parameters]:
    """Random V and A whose whitened forms have spectral norm at most the radius, half of them on its edge."""
    rng = np.random.default_rng(7000 + seed)
    inverse = np.linalg.inv(covariance_root(problem.covariance))
    points = []
    for k in range(count):
        share = 1.0 if k % 2 else rng.uniform() ** 0.5
        v, a = (
            _unit(rng.standard_normal(shape)) * radius * share
            for shape in (problem.target.shape, inverse.shape)
        )
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


def power(results: Sequence[Result], radius: float, key: str) -> tuple[float, float]:
    """The exponent p of error ~ n^p and its standard error."""
    n, error = medians(results, radius, key)
    if len(n) < 3:
        return float(np.polyfit(np.log(n), np.log(error), 1)[0]), float("inf")
    (p, _), cov = np.polyfit(np.log(n), np.log(error), 1, cov=True)
    return float(p), float(np.sqrt(cov[0, 0]))


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_close(results), _fast(results)])


def _scale(results: Sequence[Result]) -> str:
    case, problems = results[0].case, len({r.case["seed"] for r in results})
    return (
        f"d = m = 3, cond(Σ) = 10, cond(M) = 3, {case['points']} points, {case['draws']} samples, "
        f"{problems} problems"
    )


def _close(results: Sequence[Result]) -> Claim:
    """The theorem's sentence names no rate: the error goes to zero over the whole ball."""
    fits = {f"{radius:g}": power(results, radius, "expected") for radius in RADII}
    words = []
    for radius in RADII:
        (n, bias), (p, error) = medians(results, radius, "expected"), fits[f"{radius:g}"]
        words.append(
            f"radius {radius:g}: {100 * bias[0]:.2g} % at n = {n[0]:g}, {100 * bias[-1]:.2g} % at "
            f"n = {n[-1]:g}, falling like n^({p:.2f} ± {error:.2f})"
        )
    return Claim(
        "The expected empirical gradient is uniformly close to the population gradient.",
        f"Largest error over the ball, as a share of the largest gradient there. {'; '.join(words)}. Held: it falls "
        "with n, by three standard errors, in every ball.",
        _scale(results),
        all(p + 3 * e < 0 for p, e in fits.values()) if _enough(results) else None,
        {"powers": fits},
        rows=("D9", "D2"),
    )


def _fast(results: Sequence[Result]) -> Claim:
    found = {
        f"{radius:g}": [power(results, radius, key)[0] for key in ("expected", "single")] for radius in RADII
    }
    ends = [medians(results, radius, "expected")[1][-1] for radius in RADII]
    words = "; ".join(f"radius {r}: n^{p:.2f}, one sample n^{q:.2f}" for r, (p, q) in found.items())
    noise = ", ".join(f"{100 * medians(results, radius, 'scatter')[1][-1]:.2g} %" for radius in RADII)
    held = all(p < STEEPEST for p, _ in found.values()) and max(ends) < 0.05
    return Claim(
        "(ours) The error of the expected gradient falls like 1/n.",
        f"{words}. The mean of {results[0].case['draws']} samples is itself off by {noise} at the largest n, so that "
        f"the smaller ball cannot tell. Held: a power below {STEEPEST:g} and less than 5 % at the largest n, in both.",
        _scale(results),
        held if _enough(results) else None,
        {"powers": found},
        rows=("D9",),
    )


def _enough(results: Sequence[Result]) -> bool:
    return len({r.case["tokens"] for r in results}) > 2


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
        panels.append(
            Panel(
                f"ball of radius {radius:g}",
                "samples n",
                "largest error / largest gradient",
                curves,
                log_x=True,
                log_y=True,
            )
        )
    return Sheet(
        "Gradients of a sample approach the population's over a whole ball",
        tuple(panels),
        f"{_scale(results)}; medians over problems",
    ).draw()
