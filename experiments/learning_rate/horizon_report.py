"""How far the best rate after a few steps is from the best one later, by task and optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, recorded_results

from .truth import best_rate

GROUPS = {"images, AdamW": ("images", False), "text, AdamW": ("text", False), "SGD": ("", True)}
LATE, HARDLY = 120, 0.04  # steps; a fall of the loss by less than this share is hardly one
BLIND = Path(__file__).parent / "recorded" / "blind.jsonl"


def lowest(result: Result, step: int) -> tuple[float, float]:
    """(rate, share of the first loss that is left) at the lowest fresh loss after some steps."""
    runs = zip(result.value["rates"], result.value["runs"], strict=True)
    rows = [(rate, run["fresh"].get(str(step), math.inf)) for rate, run in runs]
    finite = [(rate, loss) for rate, loss in rows if math.isfinite(loss)]
    rate, _ = best_rate([rate for rate, _ in finite], [loss for _, loss in finite])
    return rate, min(loss for _, loss in finite) / result.value["start"]


def moved(result: Result, step: int) -> bool:
    return lowest(result, step)[1] <= 1 - HARDLY


def members(results: Sequence[Result], group: str) -> list[Result]:
    task, sgd = GROUPS[group]
    rows = [r for r in results if (r.case["row"]["optimizer"] == "sgd") == sgd]
    return [r for r in rows if not task or r.case["row"]["task"] == task]


def best_of_300() -> dict[str, float]:
    """The best rate of 300 steps by name, of the networks in the record of `blind`."""
    return {
        r.case["row"]["name"]: r.value["truth"]["best"] for r in recorded_results(BLIND) if "truth" in r.value
    }


def table(results: Sequence[Result], steps: Sequence[int]) -> dict[str, dict[str, Any]]:
    """By group and steps: how many networks had moved, and of those the median of the best rate over the later one."""
    truth, rows = best_of_300(), dict[str, dict[str, Any]]()
    for group in GROUPS:
        for step in steps:
            chosen = [r for r in members(results, group) if moved(r, step)]
            late = [lowest(r, step)[0] / lowest(r, LATE)[0] for r in chosen]
            whole = [
                lowest(r, step)[0] / truth[name] for r in chosen if (name := r.case["row"]["name"]) in truth
            ]
            rows.setdefault(group, {})[str(step)] = {
                "networks": len(members(results, group)),
                "moved": len(chosen),
                "over_120": round(float(np.median(late)), 2) if late else None,
                "over_300": round(float(np.median(whole)), 2) if whole else None,
            }
    return rows


def claim(results: Sequence[Result]) -> Claim:
    guess = "on images and with SGD 20 steps hardly move the loss (our guess in docs/rate.md, before this was run)"
    if any(r.case["steps"] < LATE for r in results):
        return Claim(guess, "too few steps to tell", "small", None)
    numbers = table(results, (20, 40, 60))
    words = "; ".join(
        f"{group}: 20 steps move it by 4 % in {rows['20']['moved']} of {rows['20']['networks']}, 60 in "
        f"{rows['60']['moved']}; the "
        f"best rate after 20 and 60 is {rows['20']['over_300'] or rows['20']['over_120']} and "
        f"{rows['60']['over_300'] or rows['60']['over_120']} times that of {300 if rows['20']['over_300'] else LATE}"
        for group, rows in numbers.items()
    )
    still = [numbers[group]["20"] for group in ("images, AdamW", "SGD")]
    share = sum(row["moved"] for row in still) / sum(row["networks"] for row in still)
    return Claim(guess, words, f"{len(results)} networks, eight rates, one seed", share < 0.5, numbers)


def draw(results: Sequence[Result]) -> Figure:
    """The best rate after so many steps over that after 120, one line a network."""
    panels = []
    for group in GROUPS:
        curves = []
        for place, result in enumerate(members(results, group)):
            late = lowest(result, LATE if str(LATE) in _steps(result) else int(_steps(result)[-1]))[0]
            pairs = [
                (int(s), lowest(result, int(s))[0] / late) for s in _steps(result) if moved(result, int(s))
            ]
            if pairs:
                x, y = np.array(pairs, dtype=float).T
                curves.append(Curve("", x, y, place % 6))
        panels.append(
            Panel(
                group,
                "steps",
                "best rate / best after 120",
                tuple(curves),
                log_x=True,
                log_y=True,
                y_range=(0.2, 12.0),
                legend=False,
            )
        )
    scale = f"{len(results)} networks, a line each, one seed"
    return Sheet("Where the best rate is after a few steps", tuple(panels), scale, columns=3).draw()


def _steps(result: Result) -> list[str]:
    return sorted({step for run in result.value["runs"] for step in run["fresh"]}, key=int)
