"""The sweep of training runs on its own: which networks trained, and their curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgewise.present import Curve, Panel, Sheet
from edgewise.study.recipe import Claim, Result
from edgewise.study.train import TRAINS

AGREE = 0.6  # kappa of the two optimizers' outcomes: substantial agreement


def trains(result: Result) -> bool:
    """Whether the final training loss is below half the chance loss; a diverged run has none."""
    final = result.value["final"]
    return final is not None and final < TRAINS * result.value["chance"]


def groups(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Results by (task, family), in the order of first appearance."""
    by_group: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_group.setdefault((result.case["task"], result.case["family"]), []).append(result)
    return by_group


def agreement(results: Sequence[Result]) -> tuple[float, float]:
    """Share of starts with the same outcome under both optimizers, and Cohen's kappa of the two [Cohen 1960]."""
    outcomes: dict[tuple[Any, ...], dict[str, bool]] = {}
    for r in results:
        key = (r.case["task"], r.case["family"], r.case["start"])
        outcomes.setdefault(key, {})[r.case["optimizer"]] = trains(r)
    pairs = [tuple(both.values()) for both in outcomes.values() if len(both) == 2]
    if not pairs:
        return float("nan"), float("nan")
    same = sum(a == b for a, b in pairs) / len(pairs)
    first, second = (sum(pair[k] for pair in pairs) / len(pairs) for k in (0, 1))
    chance = first * second + (1 - first) * (1 - second)
    return same, (same - chance) / (1 - chance) if chance < 1 else 1.0


def claim(results: Sequence[Result]) -> Claim:
    """How many trained, in all and in each group; both outcomes must occur for a forecast to mean something."""
    numbers: dict[str, Any] = {
        f"{task} {family}": f"{sum(map(trains, group))}/{len(group)}"
        for (task, family), group in groups(results).items()
    }
    count, (same, kappa) = sum(map(trains, results)), agreement(results)
    return Claim(
        published="Final performance can be predicted from the initialization [Cowsik 2024]; read as: it decides, "
        "whichever optimizer trains.",
        ours=f"{count} of {len(results)} networks trained (final loss below half of chance); SGD and AdamW agree on "
        f"{same:.0%} of the starts, {kappa:.2f} of what is possible beyond chance. Held: above {AGREE:g}.",
        scale=f"{len(results)} networks, {min(r.case['steps'] for r in results)} to "
        f"{max(r.case['steps'] for r in results)} steps",
        held=None if len(results) < 100 else kappa > AGREE,
        numbers=numbers,
        rows=("C31", "C35"),
    )


def draw(results: Sequence[Result]) -> Any:
    """Training curves, one panel per task and family, coloured by outcome, the limit dotted."""
    panels = []
    for place, ((task, family), group) in enumerate(groups(results).items()):
        limit = (TRAINS * group[0].value["chance"],)
        panels.append(
            Panel(
                f"{task}, {family}", "step", "training loss", _curves(group), levels=limit, legend=place == 0
            )
        )
    foot = f"{len(results)} networks of width 48, 8 to 18 blocks, one seed each; dotted: half of chance"
    return Sheet("Which starts train: every run of the forecast", tuple(panels), foot, columns=3).draw()


def _curves(group: Sequence[Result]) -> tuple[Curve, ...]:
    """Every run, those that train first."""
    curves = []
    for result in sorted(group, key=trains, reverse=True):
        curve = np.array([v for v in result.value["curve"] if v is not None])
        steps = np.linspace(
            0, len(curve) / max(len(result.value["curve"]), 1) * result.case["steps"], len(curve)
        )
        name, colour = ("trains", 0) if trains(result) else ("does not", 1)
        curves.append(Curve(name, steps, curve, colour, "thin"))
    return tuple(curves)
