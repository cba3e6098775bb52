"""Pathfinder, small enough for CPU hours, with softmax and Gaussian attention [Song 2024].

16 x 16 pixels in 16 patches of 4 x 4, a curriculum from contours of 2 dashes to contours of 3, one distractor. The
distance of the dots tells nothing: `tolerance` is chosen so that its audit stays below 55 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from edgewise.study import Claim, Result, rounded
from edgewise.study.tasks import Task

from .figures import one_stage_figure
from .pathfinder_images import Pathfinder, pathfinder
from .report import one_stage_claims, plateau_claim, scale_of
from .training import two_stages

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.019 or more
KERNELS = ("softmax", "gaussian")
FULL = dict(
    size=16,
    patch=4,
    tokens=16,
    easy=2,
    paddles=3,
    distractors=1,
    tolerance=0.05,
    images=40_000,
    batch=64,
    rate=1e-3,
    steps=3600,
    easy_steps=800,
    more=0,
    every=200,
    glance=2000,
    state="fresh",
)
SMALL = FULL | dict(images=200, batch=16, steps=12, easy_steps=4, every=4, glance=60, tolerance=0.2)


def cases(scale: str = "small") -> list[dict[str, Any]]:
    shared, seeds = (FULL, 5) if scale == "full" else (SMALL, 2)
    return [shared | {"kernel": k, "others": [], "seed": seed} for seed in range(seeds) for k in KERNELS]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    names = ("size", "distractors", "tolerance", "images", "glance", "patch")
    easy, hard, shortcut = levels(case["easy"], case["paddles"], *(case[name] for name in names))

    def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield from islice(easy.batches(case["batch"], seed), case["easy_steps"])
        yield from hard.batches(case["batch"], seed)

    return two_stages(case, hard, batches, batches) | {"shortcut": rounded(shortcut)}


@lru_cache(maxsize=1)
def levels(
    easy: int, paddles: int, size: int, distractors: int, tolerance: float, images: int, test: int, patch: int
) -> tuple[Task, Task, float]:
    """Both levels of the curriculum with the held-out images of the harder, and what its dots' distance tells."""
    sets = [
        pathfinder(count, size, length, distractors, tolerance, seed=seed)
        for seed, (count, length) in enumerate(((images, easy), (images, paddles), (test, paddles)))
    ]
    mean, std = float(sets[1].images.mean()), float(sets[1].images.std())

    def pair(made: Pathfinder) -> tuple[Tensor, Tensor]:
        scaled = (torch.from_numpy(made.images)[:, None] - mean) / std
        return F.unfold(scaled, patch, stride=patch).transpose(1, 2).contiguous(), torch.from_numpy(
            made.labels
        )

    first, second, held = map(pair, sets)
    tasks = [Task("pathfinder", patch**2, 2, True, True, part, held) for part in (first, second)]
    return tasks[0], tasks[1], sets[1].shortcut


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([*one_stage_claims(results, "Pathfinder", rows=("B11", "B12")), plateau_claim(results)])


def draw(results: Sequence[Result]) -> Figure:
    size = (
        f"{results[0].case['paddles']} dashes on {results[0].case['size']} x {results[0].case['size']} pixels"
    )
    title = "Are two dots joined? Pathfinder with softmax and with Gaussian attention"
    return one_stage_figure(results, title, f"{size}; {scale_of(results)}; bands: standard error")
