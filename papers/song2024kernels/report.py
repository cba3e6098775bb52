"""What the trained recipes claim: which kernel is better at the end and on the way, and what a swap does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgewise.study import Claim, Result

from .compare import ACCURACY, LOSS, WORDS, Difference, complete, curves, ends, summary

FAVOURABLE = "The Gaussian kernel exhibits a much favorable behavior, and experiments validate it [abstract]."
NAMES = {"softmax": "softmax", "gaussian": "the Gaussian"}
LEARNED = 0.6  # accuracy at which a run is said to have left chance


def scale_of(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    return (
        f"{case['steps']}{' + ' + str(case['more']) if case['more'] else ''} steps of {case['batch']}, "
        f"{case['tokens']} tokens, AdamW {case['rate']:g}, {seeds} seed{'s' * (seeds > 1)}"
    )


def one_stage_claims(results: Sequence[Result], name: str, rows: tuple[str, ...]) -> list[Claim]:
    """Is the Gaussian better at the end of stage one, and on the way there?"""
    results = complete(results)
    gaussian, softmax = (_end(results, kernel) for kernel in ("gaussian", "softmax"))
    loss, right = (Difference(gaussian[:, k], softmax[:, k]) for k in (0, 1))
    easy = results[0].case.get("easy_steps", 0)  # of a curriculum: until then another task is trained
    way, whole = (_on_the_way(results, since) for since in (easy, 0))
    end = Claim(
        f"{FAVOURABLE} On {name}, at the end.",
        f"Test loss / accuracy after stage one: Gaussian {summary(gaussian)}, softmax {summary(softmax)}; differences "
        f"in pairs {loss} in loss ({loss.said(WORDS)}), {right} in accuracy.",
        scale_of(results),
        loss.decided(loss.sign < 0),
        {"loss": vars(loss), "accuracy": vars(right)},
        rows=rows,
    )
    speed = Claim(
        f"The same, on {name}: it trains faster.",
        f"Mean test loss along stage one{f' after step {easy}' if easy else ''}, Gaussian minus softmax: {way} "
        f"({way.said(WORDS)}){f'; with the easy level {whole}' if easy else ''}.",
        scale_of(results),
        way.decided(way.sign < 0),
        {"way": vars(way), "whole": vars(whole)},
        rows=rows,
    )
    return [end, speed]


def _on_the_way(results: Sequence[Result], since: int) -> Difference:
    """Mean test loss over the points of the curve after a step, Gaussian minus softmax."""
    rows = (curves(results, kernel) for kernel in ("gaussian", "softmax"))
    return Difference(*(row[:, row[0, :, 0] > since, LOSS].mean(1) for row in rows))


def _end(results: Sequence[Result], kernel: str) -> np.ndarray:
    """On all held-out examples where there is a second stage, at the last point of the curve where there is none."""
    if results[0].case["others"]:
        return ends(results, kernel, kernel, "begin")
    return curves(results, kernel)[:, -1, LOSS:]


def swap_claims(results: Sequence[Result]) -> list[Claim]:
    """What a swap costs at once, and whether stage two repairs it; one statement per direction."""
    return [
        swap(complete(results), a, b, rows=("B13",))
        for a, b in (("softmax", "gaussian"), ("gaussian", "softmax"))
    ]


def swap(results: Sequence[Result], first: str, second: str, rows: tuple[str, ...]) -> Claim:
    """Keeping a kernel against swapping it, at the end of stage two."""
    before, after = (ends(results, first, kernel, "begin") for kernel in (first, second))
    kept, swapped = (ends(results, first, kernel, "end") for kernel in (first, second))
    gap, right = (Difference(swapped[:, k], kept[:, k]) for k in (0, 1))
    words = gap.said({-1: "the swap is better", 0: "no difference seen", 1: "keeping is better"})
    numbers = {"before": before, "after": after, "kept": kept, "swapped": swapped}
    return Claim(
        f"(our question, the poster's protocol) After {NAMES[first]}, stage two is better with {NAMES[second]} than "
        f"with {NAMES[first]}.",
        f"Test loss / accuracy {summary(before)} before and {summary(after)} right after the swap; at the end of "
        "stage "
        f"two {summary(kept)} kept and {summary(swapped)} swapped; in pairs {gap} in loss ({words}), "
        f"{right} in accuracy.",
        scale_of(results),
        gap.decided(gap.sign < 0),
        {name: pair.mean(0).tolist() for name, pair in numbers.items()}
        | {"loss": vars(gap), "accuracy": vars(right)},
        rows=rows,
    )


def plateau_claim(results: Sequence[Result]) -> Claim:
    """How long each kernel stays at chance."""
    results = complete(results)
    left = {kernel: [_left(curve) for curve in curves(results, kernel)] for kernel in ("gaussian", "softmax")}
    words = "; ".join(
        f"{NAMES[kernel]} {', '.join(str(s or 'never') for s in left[kernel])}" for kernel in left
    )
    end = results[0].case["steps"] + results[0].case["every"]  # never is later than the last step
    pairs = Difference(
        *(np.array([end if s is None else s for s in left[k]]) for k in ("gaussian", "softmax"))
    )
    return Claim(
        "(our question) The Gaussian kernel leaves the plateau at chance earlier.",
        f"First step with a test accuracy above {LEARNED:.0%}, by seed: {words}; in pairs {pairs.mean:+.0f} steps "
        f"({pairs.said(WORDS)}). The distance of the dots alone would give {results[0].value['shortcut']:.1%}.",
        scale_of(results),
        pairs.decided(pairs.sign < 0),
        {"left_chance": left, "difference": vars(pairs)},
        rows=("B11",),
    )


def _left(curve: np.ndarray) -> int | None:
    found = np.flatnonzero(curve[:, ACCURACY] > LEARNED)
    return int(curve[found[0], 0]) if len(found) else None
