"""Does bounding or preconditioning the logit change help? Three tuned optimizers and what goes around them.

Two blocks, two heads, width 32; every arm at the setting and rate that `tune` found on another seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.present import Sheet
from edgewise.study import Claim, Result

from .chosen import chosen
from .methods import BASES, OURS, TASKS, TITLES, VARIANTS, Arm, arm_of, arms, case_of
from .strips import strips
from .training import BATCH, trained

TOLERANCE = 0.0002  # of the largest number in an entry; seeds scatter by 0.002 or more
SEEDS = 3


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale != "full":
        return [
            case_of(("retrieval", base, variant), setting, 0.03, 0, 3, "decay")
            for base in BASES
            for variant, setting in (
                ("plain", None),
                ("qk_norm", None),
                ("trust", 0.03),
                ("preconditioner", 0.02),
            )
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
    return {
        a: f"{c['rate']:g}" + ("" if c["setting"] is None else f" / {c['setting']:g}") for a, c in own.items()
    }


def claim(results: Sequence[Result]) -> Claim:
    found, tuned = ends(results), tuning(results)
    parts = [
        _claim(
            task,
            base,
            {v: found[task, base, v] for v in VARIANTS if (task, base, v) in found},
            tuned,
            results,
        )
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
        {
            "medians": medians,
            "factors": factors,
            "below_plain": below,
            "above_plain": above,
            "below_controls": beat,
        },
    )


def _scale(results: Sequence[Result], task: str, seeds: int) -> str:
    steps = next(r.case["steps"] for r in results if r.case["task"] == task)
    return f"{task}: 2 blocks, width 32, {steps} steps of {BATCH}, warm-up and linear decay, {seeds} seeds"


def draw(results: Sequence[Result]) -> Figure:
    """The end loss of every seed, one panel per task and base; a stroke at the median, plain's across the panel."""
    losses, tuned = ends(results), tuning(results)
    tasks = [t for t in TASKS if (t, BASES[0], "plain") in losses]
    panels = []
    for task in tasks:
        for base in BASES:
            arms = [(k, (task, base, v)) for k, v in enumerate(VARIANTS) if (task, base, v) in losses]
            rows = [(f"{VARIANTS[arm[2]]}, {tuned[arm]}", k, losses[arm]) for k, arm in arms]
            panels.append(
                strips(f"{TITLES[task]}, {base}", rows, float(np.median(losses[task, base, "plain"])))
            )
    scales = [_scale(results, task, len(losses[task, BASES[0], "plain"])) for task in tasks]
    scale = "\n".join(["; ".join(scales[i : i + 2]) for i in range(0, len(scales), 2)])
    note = "dots: seeds, strokes: medians, dotted: plain; with each name: rate / setting"
    return Sheet("Optimizers on fresh seeds", tuple(panels), f"{scale}\n{note}", columns=len(BASES)).draw()
