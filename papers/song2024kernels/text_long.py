"""IMDb for the published 20,000 + 500 steps, one seed: both kernels, the swap, and the landscapes after it [Song 2024].

`text` has five seeds at 3,000 + 500 steps; this is seed 0 of it, trained on, with the schedule stretched to the
published length. Fixed before the run: one seed cannot decide, so every statement here ends open, whatever its numbers
say (`text` decides with three seeds or more). Without dropout, 20,000 batches of 8 are eight epochs of 19,890 reviews,
and we expect the test loss at the end above its lowest on the way; so the lowest loss of stage one, with its step, is
said beside the loss at the end, and neither is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from . import text_stages
from .compare import ACCURACY, LOSS, curves
from .landscape_figure import pictures
from .report import FAVOURABLE, one_stage_claims, scale_of, swap_claims

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
FULL = text_stages.FULL | dict(steps=20_000, every=500)
SMALL = text_stages.SMALL


def cases(scale: str = "small") -> list[dict[str, Any]]:
    return text_stages.paired(FULL if scale == "full" else SMALL, 1)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return text_stages.measure(case)


def claim(results: Sequence[Result]) -> Claim:
    rows = ("B10", "B12")
    stages = [*one_stage_claims(results, "IMDb", rows=rows), lowest(results, rows), *swap_claims(results)]
    return Claim.all([*stages, *text_stages.landscape_claims(results)])


def lowest(results: Sequence[Result], rows: tuple[str, ...]) -> Claim:
    """Where the test loss along stage one is least, and what is left of it at the end."""
    sentences, numbers = [], {}
    for kernel in ("gaussian", "softmax"):
        curve = curves(results, kernel)[0]
        best = curve[np.argmin(curve[:, LOSS])]
        numbers[kernel] = {"lowest": best.tolist(), "end": curve[-1].tolist()}
        sentences.append(
            f"{kernel.capitalize()}: {best[LOSS]:.4f} / {best[ACCURACY]:.1%} at step {best[0]:.0f}, "
            f"{curve[-1, LOSS]:.4f} / {curve[-1, ACCURACY]:.1%} at the end"
        )
    glance = results[0].case["glance"]
    return Claim(
        f"{FAVOURABLE} On IMDb, at the lowest test loss of a long training.",
        f"Lowest test loss along stage one with its accuracy, on {glance} reviews. {'; '.join(sentences)}.",
        scale_of(results),
        None,
        numbers,
        rows=rows,
    )


def draw(results: Sequence[Result]) -> Figure:
    return pictures(text_stages.networks(results), text_stages.landscape_scale(results), stages=results)
