"""Does bounding or preconditioning the logit change help? Three tuned optimizers and what goes around them.

Two blocks, two heads, width 32; every arm at the setting and rate that `tune` found on another seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .chosen import chosen
from .methods import BASES, OURS, TASKS, TITLES, VARIANTS, Arm, arm_of, arms, case_of
from .training import BATCH, trained

SEEDS = 3


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale != "full":
        return [
            case_of(("retrieval", base, variant), setting, 0.03, 0, 3, "decay")
            for base in BASES
            for variant, setting in (("plain", None), ("qk_norm", None), ("trust", 0.03), ("preconditioner", 0.02))
        ]
    picked = chosen()
    return [
        case_of(arm, picked[arm]["setting"], picked[arm]["rate"], seed, TASKS[arm[0]], "decay")
        for seed in range(SEEDS)
        for arm in arms()
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return trained(case)


def ends(results: Sequence[Result]) -> dict[Arm, np.ndarray]:
    """End losses of every arm, seed by seed."""
    found: dict[Arm, dict[int, float]] = {}
    for r in results:
        found.setdefault(arm_of(r.case), {})[r.case["seed"]] = r.value["end"]
    return {arm: np.array([by_seed[seed] for seed in sorted(by_seed)]) for arm, by_seed in found.items()}


def tuning(results: Sequence[Result]) -> dict[Arm, str]:
    """Rate, and setting where there is one, of every arm."""
    own = {arm_of(r.case): r.case for r in results}
    return {a: f"{c['rate']:g}" + ("" if c["setting"] is None else f" / {c['setting']:g}") for a, c in own.items()}


def claim(results: Sequence[Result]) -> Claim:
    found, tuned = ends(results), tuning(results)
    parts = [
        _claim(task, base, {v: found[task, base, v] for v in VARIANTS if (task, base, v) in found}, tuned, results)
        for task in TASKS
        for base in BASES
        if (task, base, "plain") in found
    ]
    return Claim.all(parts)


def _claim(
    task: str, base: str, by_variant: dict[str, np.ndarray], tuned: dict[Arm, str], results: Sequence[Result]
) -> Claim:
    """One statement per task and base: one of ours ends below plain in every seed."""
    plain = by_variant["plain"]
    below = [v for v, e in by_variant.items() if v != "plain" and (e < plain).all()]
    above = [v for v, e in by_variant.items() if (e > plain).all()]
    controls = [v for v in by_variant if v not in OURS]
    beat = [v for v in OURS if all((by_variant[v] < by_variant[c]).all() for c in controls)]
    medians = {v: float(np.median(e)) for v, e in by_variant.items()}
    factors = {v: float(np.median(plain / e)) for v, e in by_variant.items()}
    losses = ", ".join(f"{VARIANTS[v]} {m:.3g} (at {tuned[task, base, v]})" for v, m in medians.items())
    lower = ", ".join(f"{VARIANTS[v]} (by {factors[v]:.3g})" for v in below) or "none"
    return Claim(
        f"(ours) {TITLES[task]}, {base}: LogitTrust or the preconditioner end below tuned plain in every seed.",
        f"Median end loss: {losses}. Below plain in every seed, and by which median factor: {lower}. "
        f"Above plain in every seed: {', '.join(VARIANTS[v] for v in above) or 'none'}. "
        f"Ours below every control in every seed: {', '.join(VARIANTS[v] for v in beat) or 'none'}.",
        _scale(results, task, len(plain)),
        any(v in below for v in OURS) if len(plain) >= 3 else None,
        {"medians": medians, "factors": factors, "below_plain": below, "above_plain": above, "below_controls": beat},
    )


def _scale(results: Sequence[Result], task: str, seeds: int) -> str:
    steps = next(r.case["steps"] for r in results if r.case["task"] == task)
    return f"{task}: 2 blocks, width 32, {steps} steps of {BATCH}, warm-up and linear decay, {seeds} seeds"


def draw(results: Sequence[Result]) -> Figure:
    """The end loss of every seed, one panel per task and base; a bar at the median, plain's across the panel."""
    found, tuned = ends(results), tuning(results)
    tasks = [t for t in TASKS if (t, BASES[0], "plain") in found]
    figure = Figure(figsize=(13, 3.1 * len(tasks) + 0.6), layout="constrained")
    axes = figure.subplots(len(tasks), len(BASES), squeeze=False, sharey="row")
    for row, task in zip(axes, tasks, strict=True):
        for axis, base in zip(row, BASES, strict=True):
            _panel(axis, {v: found[task, base, v] for v in VARIANTS if (task, base, v) in found},
                   [tuned[task, base, v] for v in VARIANTS if (task, base, v) in found])  # fmt: skip
            axis.set_title(f"{TITLES[task]}, {base}", fontsize=9)
        row[0].set_ylabel("held-out loss at the end")
    scales = "; ".join(_scale(results, task, len(found[task, BASES[0], "plain"])) for task in tasks)
    figure.suptitle(_folded(scales) + "\ndots: seeds, bars: medians, dashed: plain; below the names: rate / setting",
                    fontsize=8)  # fmt: skip
    return figure


def _folded(text: str) -> str:
    halves = text.split("; ")
    return "\n".join("; ".join(halves[i : i + 2]) for i in range(0, len(halves), 2))


def _panel(axis: Any, by_variant: dict[str, np.ndarray], tuned: list[str]) -> None:
    for i, (variant, losses) in enumerate(by_variant.items()):
        colour = f"C{list(VARIANTS).index(variant)}"
        axis.plot([i] * len(losses), losses, "o", color=colour, markersize=4)
        axis.plot([i - 0.3, i + 0.3], [np.median(losses)] * 2, color=colour, linewidth=2)
    axis.axhline(np.median(by_variant["plain"]), color="0.6", linestyle="--", linewidth=0.8)
    every = np.concatenate(list(by_variant.values()))
    axis.set_yscale("log" if every.max() > 3 * every.min() else "linear")
    labels = [f"{VARIANTS[v]}\n{t}" for v, t in zip(by_variant, tuned, strict=True)]
    axis.set_xticks(range(len(labels)), labels, fontsize=6)
