"""What the atlas says: slowdowns of the starts, and the picture of them over the scale of the blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

STEP, EVERY = 150, 10
LEARNED = 0.02  # share of what the best constant answer leaves, which a sound start must learn to be counted


def counted(value: dict[str, Any]) -> bool:
    """Return whether the sound start learned enough to be a measure of others."""
    target = value["target"]
    return target is not None and target < (1 - LEARNED) * value["constant"]


def slowdown(runs: list[list[float | None]], target: float) -> float:
    """Return the first step at which one of the runs reached the target, over that of the sound start."""
    first = [k * EVERY for run in runs for k, loss in enumerate(run) if loss is not None and loss <= target]
    return min(first) / STEP if first else math.inf


def table(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for every network that is not a sound one: its shape, start, slowdown."""
    return [
        {"shape": k, "start": tuple(other["start"]), "slowdown": slowdown(other["runs"], r["target"])}
        for k, r in enumerate(results)
        if counted(r)
        for other in r["others"]
    ]


def summary(results: list[dict[str, Any]]) -> str:
    """Return what came out so far, in three lines."""
    rows = table(results)
    learned = sum(counted(r) for r in results)
    never = sum(math.isinf(row["slowdown"]) for row in rows)
    faster = {row["shape"] for row in rows if row["slowdown"] < 1.0}
    scales = sorted({row["start"][1] for row in rows if row["start"][0] == "blocks"})
    medians = {
        scale: float(np.median([row["slowdown"] for row in rows if row["start"] == ("blocks", scale)]))
        for scale in scales
    }
    return "\n".join(
        [
            f"{learned} of {len(results)} shapes have a sound start that learns; {len(rows)} other starts of them, "
            f"{never} never reach its loss; in {len(faster)} shapes some other start is faster.",
            "median slowdown by scale of the blocks: "
            + ", ".join(f"{scale:g}: {value:.2f}" for scale, value in medians.items()),
        ]
    )


def draw(results: list[dict[str, Any]]) -> Any:
    """Slowdown over the scale of the blocks, a line for each shape, and how often each start never got there."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    rows = table(results)
    never = 500 / STEP * 1.25
    for shape in sorted({row["shape"] for row in rows}):
        points = {
            row["start"][1]: min(row["slowdown"], never)
            for row in rows
            if row["shape"] == shape and row["start"][0] == "blocks"
        } | {1.0: 1.0}
        left.plot(*zip(*sorted(points.items()), strict=True), color="#1668c7", alpha=0.25, lw=1)
    left.axhline(1.0, color="black", lw=0.8)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="scale of the blocks' matrices",
        ylabel="steps over those of the recipe",
    )
    left.set_title("Top edge: never within 500 steps", fontsize=9)
    names = sorted({row["start"][0] for row in rows})
    shares = [
        np.mean([math.isinf(row["slowdown"]) for row in rows if row["start"][0] == name]) for name in names
    ]
    right.barh(names, shares, color="#1668c7")
    right.set(xlabel="share that never reaches the recipe's loss", xlim=(0, 1))
    return figure
