"""Pathfinder in two stages, and the loss over queries and keys afterwards, as the poster does it [Song 2024].

Stage one with softmax, then the same weights go on with softmax and with the Gaussian; beside them a network that has
the Gaussian from the first step. Landscapes as in `landscape.py`: the same draws for all, on one batch of images.
Three networks, so that both questions can be decided: by the paired 95 % interval over networks, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from edgewise.study import Claim, Result, rounded, select

from . import pathfinder
from .landscape import smoother
from .landscape_arms import surveyed
from .landscape_figure import pictures
from .report import scale_of, swap
from .training import trained_stages

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.017 or more
OTHERS = {"softmax": ["softmax", "gaussian"], "gaussian": ["gaussian"]}  # kernels of stage two
MAPS = dict(drawn=64, points=21, directions=3)
FULL = pathfinder.FULL | MAPS | dict(more=500, held_out=2000)
SMALL = FULL | dict(
    images=100,
    batch=8,
    steps=6,
    easy_steps=2,
    every=3,
    glance=40,
    tolerance=0.2,
    more=3,
    held_out=40,
    drawn=8,
    points=5,
    directions=1,
)
ROWS = ("B14", "B16")


def cases(scale: str = "small") -> list[dict[str, Any]]:
    shared, seeds = (FULL, 3) if scale == "full" else (SMALL, 1)
    return [
        shared | {"kernel": k, "others": others, "seed": seed}
        for seed in range(seeds)
        for k, others in OTHERS.items()
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    names = ("size", "distractors", "tolerance", "images", "glance", "patch")
    easy, hard, shortcut = pathfinder.levels(case["easy"], case["paddles"], *(case[name] for name in names))

    def first(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield from islice(easy.batches(case["batch"], seed), case["easy_steps"])
        yield from hard.batches(case["batch"], seed)

    found, models = trained_stages(case, hard, first, lambda seed: hard.batches(case["batch"], seed))
    batch = (hard.train[0][: case["drawn"]], hard.train[1][: case["drawn"]])
    maps = {kernel: surveyed(case, model, batch, rebalance=False) for kernel, model in models.items()}
    if "softmax" in models:
        maps["softmax, rebalanced"] = surveyed(case, models["softmax"], batch, rebalance=True)
    return found | {"maps": maps, "shortcut": rounded(shortcut)}


def claim(results: Sequence[Result]) -> Claim:
    maps, scale = networks(results), _scale(results)
    return Claim.all(
        [
            swap(results, "softmax", "gaussian", rows=("B14",)),
            smoother(maps, "swapped", "kept", scale, rows=("B16", "B17")),
            smoother(maps, "gaussian", "kept, rebalanced", scale, rows=("B16", "B17")),
        ]
    )


def _scale(results: Sequence[Result]) -> str:
    case = results[0].case
    return (
        f"Pathfinder, {case['size']} x {case['size']} pixels; {scale_of(results)} (published: 20,000 + 500)"
    )


def networks(results: Sequence[Result]) -> list[Result]:
    """One result per seed with the maps of its arms, as `landscape` has them."""
    merged = []
    for softmax in select(results, kernel="softmax"):
        alone = select(results, kernel="gaussian", seed=softmax.case["seed"])[0].value["maps"]["gaussian"]
        maps = softmax.value["maps"]
        arms = {
            "kept": maps["softmax"],
            "swapped": maps["gaussian"],
            "gaussian": alone,
            "kept, rebalanced": maps["softmax, rebalanced"],
        }
        merged.append(Result(softmax.case, arms))
    return merged


def draw(results: Sequence[Result]) -> Figure:
    return pictures(networks(results), _scale(results), stages=results)
