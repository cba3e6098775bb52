"""Lemmas 1 and 4, which the source names and does not state: what the algorithm needs in their places.

Before Theorem 2 stands what makes finite data a factorization: the softmax average tends to its limit S A^T x_i
like n^(-1/2), at every point of a ball. Before Theorem 3 stands what makes descent geometric near the minima:
|grad Q|^2 >= 2 mu Q there. Fixed before the run: the error at the largest n below 2 % and its power within 0.05 of -1/2
in both balls; mu at least a tenth of the target's smallest singular value within 0.3 of its root, also after the ratio
was minimized from the worst point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize

from edgewise.arrays import Array
from edgewise.laboratory.regression import Parameters, covariance_root, random_problem
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .factorization import Factorization, flat, unflat

TOLERANCE = 0.01  # of the largest number in an entry
RADII, SIZES = (0.5, 1.0), (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
SMALL, STEEP = 0.02, 0.05  # error at the largest n; distance of its power from -1/2
DISTANCES, NEAR, LEAST = (
    (0.03, 0.1, 0.3, 1.0),
    0.3,
    0.1,
)  # in roots of the smallest singular value; mu over it


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    sizes, seeds = (SIZES, 6) if full else (SIZES[:2], 1)
    limit = [
        {"kind": "limit", "width": 3, "radius": radius, "sizes": list(sizes), "queries": 24, "seed": seed}
        for radius in RADII
        for seed in range(seeds)
    ]
    near = [
        {"kind": "near", "width": 4, "condition": condition, "points": 200 if full else 10, "seed": seed}
        for condition in (1.0, 10.0)
        for seed in range(seeds)
    ]
    return limit + near


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return _limit(case) if case["kind"] == "limit" else _near(case)


def _limit(case: dict[str, Any]) -> dict[str, Any]:
    """RMS over queries of |C - S A^T x| over that of the limit, by number of tokens; A on the edge of the ball."""
    problem = random_problem(case["width"], case["width"], 10.0, 3.0, case["seed"])
    rng, root = np.random.default_rng(case["seed"]), covariance_root(problem.covariance)
    inverse, score = np.linalg.inv(root), rng.standard_normal((case["width"], case["width"]))
    A = inverse @ (case["radius"] * score / np.linalg.norm(score, 2)) @ inverse
    queries = rng.standard_normal((case["queries"], case["width"])) @ root
    limit, tokens = (
        queries @ A @ problem.covariance,
        rng.standard_normal((max(case["sizes"]), case["width"])) @ root,
    )
    errors = []
    for n in case["sizes"]:
        logits = queries @ A @ tokens[:n].T
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        average = weights @ tokens[:n] / weights.sum(axis=1, keepdims=True)
        errors.append(float(np.linalg.norm(average - limit) / np.linalg.norm(limit)))
    return {"error": rounded(errors, 5)}


def _near(case: dict[str, Any]) -> dict[str, Any]:
    """Least |grad Q|^2 / (2 Q) over points at each distance from a global minimum, over the smallest singular value."""
    problem = random_problem(case["width"], case["width"], case["condition"], 3.0, case["seed"])
    q, rng = Factorization.of(problem, 0.1), np.random.default_rng(case["seed"])
    sizes = np.linalg.svd(q.target, compute_uv=False)
    best = q.stationary(range(len(sizes)))
    centre, least = flat(best), float(sizes[-1])

    def ratio(way: Array, distance: float) -> float:
        at = unflat(centre + distance * least**0.5 * way / np.linalg.norm(way), best)
        return float(np.sum(flat(q.gradient(at)) ** 2) / (2 * q.value(at)) / least)

    found = []
    for distance in DISTANCES:
        # Directions that only rotate both factors keep Q at zero: they are taken out, as the manifold is.
        ways = [_across(rng.standard_normal(len(centre)), best) for _ in range(case["points"])]
        worst = min(ways, key=lambda way: ratio(way, distance))
        lower = minimize(
            lambda w, d=distance: ratio(_across(w, best), d),
            worst,
            method="L-BFGS-B",
            options={"maxiter": 30},
        )
        found.append(min(ratio(worst, distance), float(lower.fun)))
    return {"ratio": rounded(found, 5)}


def _across(way: Array, best: Parameters) -> Array:
    """The part of a direction that is not a common rotation of the columns of both factors."""
    d = best.score.shape[1]
    turns = []
    for i in range(d):
        for j in range(i):
            skew = np.zeros((d, d))
            skew[i, j], skew[j, i] = 1.0, -1.0
            turns.append(flat(Parameters(best.value @ skew, best.score @ skew)))
    basis = np.linalg.qr(np.array(turns).T)[0]
    return np.asarray(way - basis @ (basis.T @ way))


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_to_limit(results), _dominance(results)])


def _errors(results: Sequence[Result], radius: float) -> tuple[Array, Array, float, float]:
    """n, median error, its power and the standard error of the power over seeds."""
    runs = select(results, kind="limit", radius=radius)
    n, errors = np.array(runs[0].case["sizes"], float), np.array([r.value["error"] for r in runs])
    powers = [float(np.polyfit(np.log(n), np.log(row), 1)[0]) for row in errors]
    spread = float(np.std(powers, ddof=1) / len(powers) ** 0.5) if len(powers) > 1 else float("inf")
    return n, np.median(errors, axis=0), float(np.mean(powers)), spread


def _scale(results: Sequence[Result], kind: str) -> str:
    runs = select(results, kind=kind)
    case, seeds = runs[0].case, len({r.case["seed"] for r in runs})
    if kind == "limit":
        return f"d = 3, cond(Σ) = 10, {case['queries']} queries, n = 1,000 to {case['sizes'][-1]:,}, {seeds} problems"
    return f"d = m = 4, cond(Σ) = 1 and 10, λ = 0.1, {case['points']} directions, {seeds} problems each"


def _to_limit(results: Sequence[Result]) -> Claim:
    rows = {radius: _errors(results, radius) for radius in RADII}
    said = "; ".join(
        f"radius {radius:g}: {errors[0]:.2%} at n = {n[0]:,.0f}, {errors[-1]:.2%} at n = {n[-1]:,.0f}, power "
        f"{power:.3f} ± {spread:.3f}"
        for radius, (n, errors, power, spread) in rows.items()
    )
    held = all(
        errors[-1] < SMALL and abs(power + 0.5) < STEEP + 2 * spread
        for _, errors, power, spread in rows.values()
    )
    return Claim(
        "In the infinite-data limit the regression problem is a matrix factorization [abstract; Lemma 1 is named, not "
        "stated]; read as: the softmax average tends to a linear map of the query.",
        f"Error of the average over its limit. {said}. Held: below {SMALL:.0%} at the largest n, and a power within "
        f"{STEEP:g} of -1/2 (two standard errors beside it), so that the limit is this one and no other.",
        _scale(results, "limit"),
        held if len(rows[RADII[0]][0]) > 3 else None,
        {f"{radius:g}": {"errors": row[1].tolist(), "power": row[2]} for radius, row in rows.items()},
        rows=("D2",),
    )


def _dominance(results: Sequence[Result]) -> Claim:
    runs = select(results, kind="near")
    least = np.min([r.value["ratio"] for r in runs], axis=0)
    near = min(value for value, distance in zip(least, DISTANCES, strict=True) if distance <= NEAR)
    said = ", ".join(f"{value:.2g} at {distance:g}" for value, distance in zip(least, DISTANCES, strict=True))
    return Claim(
        "(ours; Lemma 4 is named in the source, not stated) Near its minima the regularized loss has a gradient that "
        "makes descent geometric: |grad Q|^2 >= 2 mu Q.",
        f"Least mu over the target's smallest singular value, by distance in roots of it: {said}. Held: at least "
        f"{LEAST:g} up to a distance of {NEAR:g}.",
        _scale(results, "near"),
        bool(near >= LEAST) if len(runs) > 4 else None,
        {"distances": list(DISTANCES), "least": least.tolist()},
        rows=("D3", "D10"),
    )


def draw(results: Sequence[Result]) -> Figure:
    curves: list[Curve] = []
    for group, radius in enumerate(RADII):
        n, errors, _, _ = _errors(results, radius)
        curves.append(Curve(f"radius {radius:g}", n, errors, group, "orbit"))
        curves.append(
            Curve("n to the power -1/2" if group == 0 else "_", n, errors[0] * (n / n[0]) ** -0.5, 6, "third")
        )
    near = tuple(
        Curve(
            f"cond(Σ) = {r.case['condition']:g}" if r.case["seed"] == 0 else "_",
            np.array(DISTANCES),
            np.array(r.value["ratio"]),
            int(r.case["condition"] > 1),
            "points",
        )
        for r in select(results, kind="near")
    )
    return Sheet(
        "A linear limit, and gradients that do not fade before the minimum",
        (
            Panel(
                "softmax average", "tokens n", "error over the limit", tuple(curves), log_x=True, log_y=True
            ),
            Panel(
                "the regularized loss near its minima",
                "distance / root of the smallest singular value",
                "least |∇Q|² / (2Q) over that value",
                near,
                log_x=True,
                log_y=True,
                levels=(LEAST,),
            ),
        ),
        f"{_scale(results, 'limit')}; {_scale(results, 'near')}",
    ).draw()
