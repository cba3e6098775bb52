"""The sweep of training runs on its own: which networks trained, and their curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgewise.study.recipe import Claim, Result
from edgewise.study.train import TRAINS


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


def claim(results: Sequence[Result]) -> Claim:
    """How many trained, in all and in each group; both outcomes must occur for a forecast to mean something."""
    numbers: dict[str, Any] = {
        f"{task} {family}": f"{sum(map(trains, group))}/{len(group)}"
        for (task, family), group in groups(results).items()
    }
    count = sum(map(trains, results))
    return Claim(
        published="initialization decides whether a deep transformer trains [Cowsik 2024]",
        ours=f"{count} of {len(results)} networks trained (final loss below half of chance)",
        scale=f"{len(results)} networks, {min(r.case['steps'] for r in results)} to "
        f"{max(r.case['steps'] for r in results)} steps",
        held=None if len(results) < 100 else 0.1 < count / len(results) < 0.9,
        numbers=numbers,
    )


def draw(results: Sequence[Result]) -> Any:
    """Training curves, one panel per task and family, coloured by outcome, the limit dashed."""
    import numpy as np
    from matplotlib.figure import Figure

    by_group = groups(results)
    columns = 3
    rows = -(-len(by_group) // columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    for place, ((task, family), group) in enumerate(by_group.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        for result in group:
            curve = [v for v in result.value["curve"] if v is not None]
            steps = np.linspace(0, len(curve) / max(len(result.value["curve"]), 1) * result.case["steps"], len(curve))
            axes.plot(steps, curve, color="tab:blue" if trains(result) else "tab:red", lw=0.8, alpha=0.6)
        chance = group[0].value["chance"]
        axes.axhline(TRAINS * chance, color="black", ls="--", lw=1)
        axes.set(title=f"{task}, {family}", xlabel="step", ylabel="training loss")
    figure.suptitle(f"{len(results)} networks, one seed each; red: final loss above half of chance (dashed)")
    return figure
