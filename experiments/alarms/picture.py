"""First alarm against what was wrong, and the steps of warning of every run whose loss turned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .population import CAUSES
from .score import NONE, Scored, confusion


def picture(runs: Sequence[Scored], title: str) -> Figure:
    figure = Figure(figsize=(11.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1.0))
    names = [name for name in CAUSES if any(run.name == name for run in runs)]
    _matrix(left, runs, names)
    for place, name in enumerate(names):
        leads = [run.warning for run in runs if run.name == name and run.warning is not None]
        right.plot(leads, np.full(len(leads), place) + np.linspace(-0.2, 0.2, len(leads)), "o", alpha=0.7)
    right.axvline(0, color="0.4", linewidth=0.8)
    right.set_yticks(range(len(names)), [""] * len(names))
    right.set_ylim(len(names) - 0.5, -0.5)
    right.set_xscale("symlog", linthresh=10)
    right.set_xlim(-30, 900)
    right.set_xlabel("steps from the first alarm to the turn of the loss")
    right.set_title("Steps of warning, where the loss turns", fontsize=10)
    figure.suptitle(title)
    return figure


def _matrix(axes: Any, runs: Sequence[Scored], names: Sequence[str]) -> None:
    table = confusion(runs)
    kinds = [*dict.fromkeys(kind for name in names for kind in table[name] if kind != NONE), NONE]
    counts = np.array([[table[name][kind] for kind in kinds] for name in names])
    axes.imshow(counts, cmap="Blues", aspect="auto", vmin=0)
    for i, name in enumerate(names):
        for j, kind in enumerate(kinds):
            if counts[i, j]:
                right = kind in CAUSES[name]
                dark = counts[i, j] > counts.max() / 2
                axes.text(j, i, f"{counts[i, j]}{'' if right else ' ✗'}", ha="center", va="center",
                          color="white" if dark else "black")  # fmt: skip
    axes.set_xticks(range(len(kinds)), [kind.replace("_", "\n") for kind in kinds], fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_title("What was wrong, and the first alarm (✗: another cause)", fontsize=10)
