"""First alarm against what was wrong, and the steps of warning of every run whose loss turned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from edgewise.present.draw import LINES, QUIET, SETTINGS

from .population import CAUSES
from .score import NONE, Scored, confusion


def picture(runs: Sequence[Scored], title: str) -> Figure:
    names = [name for name in CAUSES if any(run.name == name for run in runs)]
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(11.5, 4.8), layout="constrained")
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        left, right = figure.subplots(1, 2, width_ratios=(1.35, 1.0))
        _matrix(left, runs, names)
        _warnings(right, runs, names)
        words = "a count or a point per run; ✗: another cause than what was wrong"
        figure.supxlabel(words, fontsize=9, color=QUIET, x=0.99, ha="right")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def _warnings(axes: Any, runs: Sequence[Scored], names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        leads = [run.warning for run in runs if run.name == name and run.warning is not None]
        heights = np.full(len(leads), place) + np.linspace(-0.2, 0.2, len(leads))
        axes.plot(
            leads, heights, "o", color=LINES[0], markersize=5, markeredgecolor="white", markeredgewidth=0.6
        )
    axes.axvline(0, color=QUIET, linestyle=":", linewidth=1.2)
    axes.set_yticks(range(len(names)), [""] * len(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlim(-30, 900)
    axes.set_xlabel("steps from the first alarm to the turn of the loss")
    axes.set_title("steps of warning, where the loss turns", loc="left")


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
                axes.text(
                    j,
                    i,
                    f"{counts[i, j]}{'' if right else ' ✗'}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                )
    axes.set_xticks(range(len(kinds)), [kind.replace("_", "\n") for kind in kinds], fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_title("what was wrong, and the first alarm", loc="left")
    axes.grid(False)
