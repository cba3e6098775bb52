"""Lemma 3: how often the spectral start is a good one, against the number of samples.

Good means: the population loss is below that of the lowest saddle, ½ σ_min(M̃)², so that everything downhill ends at a
global minimum. Beside it a random start of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.regression import gaussian_start, random_problem, spectral_start
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .factorization import Factorization

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
SIZES = {"full": (20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240), "small": (20, 80, 320)}
CONDITIONS = (1.0, 10.0, 100.0)
NOISE = 0.1
ENOUGH = 0.95  # "with high probability" at the largest n, decided before the run


def cases(scale: str = "small") -> list[dict[str, Any]]:
    draws = 300 if scale == "full" else 20
    return [
        {"width": 4, "condition": condition, "tokens": n, "noise": NOISE, "draws": draws}
        for condition in CONDITIONS
        for n in SIZES[scale]
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Of so many problems and samples: how many starts are good, and their excess as a share of the lowest saddle."""
    good, random, excess = 0, 0, []
    for seed in range(case["draws"]):
        problem = random_problem(case["width"], case["width"], case["condition"], 3.0, seed, case["noise"])
        limit, population = Factorization.of(problem).lowest_saddle(), problem.population()
        start = spectral_start(problem.sample(case["tokens"], 10_000 + seed))
        excess.append(population.excess(start) / limit)
        good += excess[-1] < 1
        random += population.excess(gaussian_start(problem, 1.0, 20_000 + seed)) < limit
    return {"good": int(good), "random": int(random), "excess": float(np.median(excess))}


def interval(good: int, draws: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z = 1.96
    centre, half = good + z * z / 2, z * np.sqrt(good * (draws - good) / draws + z * z / 4)
    return float((centre - half) / (draws + z * z)), float((centre + half) / (draws + z * z))


def claim(results: Sequence[Result]) -> Claim:
    words, held, exponents = [], True, []
    for condition in CONDITIONS:
        rows = sorted(
            (r for r in results if r.case["condition"] == condition), key=lambda r: r.case["tokens"]
        )
        last = rows[-1]
        low, high = interval(last.value["good"], last.case["draws"])
        held = held and low > ENOUGH
        n = [r.case["tokens"] for r in rows]
        exponents.append(float(np.polyfit(np.log(n), np.log([r.value["excess"] for r in rows]), 1)[0]))
        shares = "/".join(f"{100 * r.value['good'] / r.case['draws']:.0f}" for r in rows)
        words.append(f"cond(Σ) = {condition:g}: {shares} % (last {100 * low:.0f} to {100 * high:.0f})")
    random = max(r.value["random"] / r.case["draws"] for r in results)
    sizes = "/".join(str(n) for n in sorted({r.case["tokens"] for r in results}))
    draws = results[0].case["draws"]
    return Claim(
        "The spectral initialization lies near the manifold of global minima with high probability.",
        f"Good starts at n = {sizes}: {'; '.join(words)}. The median excess falls like n to the power "
        f"{', '.join(f'{e:.2f}' for e in exponents)}. Random starts: at most {100 * random:.1f} % are good.",
        f"d = m = 4, cond(M) = 3, noise {NOISE:g}, {draws} problems and samples a point",
        bool(held) if draws >= 200 else None,
        {"exponents": exponents, "random": random},
        rows=("D7", "D6"),
    )


def draw(results: Sequence[Result]) -> Figure:
    shares, excess = [], []
    for group, condition in enumerate(CONDITIONS):
        rows = sorted(
            (r for r in results if r.case["condition"] == condition), key=lambda r: r.case["tokens"]
        )
        n, draws = np.array([float(r.case["tokens"]) for r in rows]), rows[0].case["draws"]
        good = np.array([r.value["good"] for r in rows])
        name = f"cond(Σ) = {condition:g}"
        shares.append(Curve(name, n, good / draws, group, "orbit"))
        excess.append(Curve(name, n, np.array([r.value["excess"] for r in rows]), group, "orbit"))
    size = np.array(sorted({float(r.case["tokens"]) for r in results}))
    excess.append(Curve("lowest saddle", size, np.ones(len(size)), 6, "third"))
    return Sheet(
        "With enough samples the spectral start lies below every saddle",
        (
            Panel("how often", "samples n", "share of good starts", tuple(shares), log_x=True),
            Panel(
                "how far", "samples n", "median excess / lowest saddle", tuple(excess), log_x=True, log_y=True
            ),
        ),
        f"d = m = 4, cond(M) = 3, noise {NOISE:g}, {results[0].case['draws']} problems and samples a point",
    ).draw()
