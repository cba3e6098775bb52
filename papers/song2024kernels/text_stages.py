"""IMDb in two stages, and the loss over queries and keys afterwards: what `text_long` measures and claims [Song 2024].

The networks, batches and steps are those of `text`, the landscapes those of `landscape` with longer reviews: 32 of at
most 256 words (there: 64 of at most 64), 3 direction seeds, 21 x 21 points. Smoother means what it means there: nearer
to a quadratic and not with more minima.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgewise.study import Claim, Result

from . import text
from .imdb import imdb
from .landscape import smoother
from .landscape_arms import surveyed
from .pathfinder_stages import networks
from .report import scale_of
from .training import by_length, trained_stages

MAPS = dict(drawn=32, points=21, directions=3)
FULL = text.FULL | MAPS
SMALL = text.SMALL | dict(steps=4, more=2, every=2, drawn=4, points=5, directions=1)
ROWS = ("B15", "B17")


def paired(shared: dict[str, Any], seeds: int) -> list[dict[str, Any]]:
    """Both kernels from the first step, each kept and swapped in stage two."""
    kernels = list(text.KERNELS)
    return [shared | {"kernel": k, "others": kernels, "seed": seed} for seed in range(seeds) for k in kernels]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    task = imdb(case["tokens"], case["words"], source=case["source"], reviews=case["reviews"]).task

    def batches(seed: int) -> Any:
        return by_length(task, case["batch"], seed)

    stages, models = trained_stages(case, task, batches, batches)
    batch = (task.train[0][: case["drawn"]], task.train[1][: case["drawn"]])
    shown = {k: model for k, model in models.items() if case["kernel"] == "softmax" or k == "gaussian"}
    maps = {kernel: surveyed(case, model, batch, rebalance=False) for kernel, model in shown.items()}
    if "softmax" in shown:
        maps["softmax, rebalanced"] = surveyed(case, shown["softmax"], batch, rebalance=True)
    sizes = {"train_size": len(task.train[1]), "test_size": len(task.validation[1])}
    return stages | sizes | {"maps": maps}


def landscape_claims(results: Sequence[Result]) -> list[Claim]:
    """Is the Gaussian's landscape smoother, after a swap and from the first step?"""
    pairs = (("swapped", "kept"), ("gaussian", "kept, rebalanced"))
    return [
        smoother(networks(results), ours, theirs, landscape_scale(results), ROWS) for ours, theirs in pairs
    ]


def landscape_scale(results: Sequence[Result]) -> str:
    case = results[0].case
    return (
        f"IMDb; {scale_of(results)} (published: 20,000 + 500); {case['directions']} direction seeds, "
        f"{case['points']} x {case['points']} points, {case['drawn']} reviews"
    )
