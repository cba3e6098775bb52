"""How figures look: colours that colour-blind readers tell apart, sizes that survive in a README."""

from __future__ import annotations

from typing import Any

# Okabe & Ito 2008, without its yellow (too pale for lines on white).
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
OUTCOMES = ("#CFE6F5", "#F5D08A", "#C8603C")  # trains, risky, fails; they differ in lightness too
DIVERGING = "PuOr_r"
SPEED = "cividis"
INK = "#222222"
QUIET = "#666666"
PANEL_WIDTH, PANEL_HEIGHT = 4.3, 3.3  # inches
SMALLEST_WIDTH = 6.2  # of a figure: its headline must fit
SETTINGS = {
    "font.size": 10.0, "axes.titlesize": 11.0, "axes.labelsize": 10.0, "legend.fontsize": 9.0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": QUIET, "axes.labelcolor": INK,
    "text.color": INK, "xtick.color": INK, "ytick.color": INK, "lines.linewidth": 2.0,
    "axes.grid": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.7, "axes.axisbelow": True,
    "legend.frameon": False, "figure.facecolor": "white",
}  # fmt: skip
ROLES: dict[str, dict[str, Any]] = {
    "line": {"linestyle": "-"},
    "second": {"linestyle": (0, (4, 2)), "linewidth": 1.4, "alpha": 0.9},
    "third": {"linestyle": (0, (1, 1.5)), "linewidth": 2.0, "alpha": 0.9},
    "steps": {"linestyle": "-", "linewidth": 1.4, "drawstyle": "steps-mid"},
    "points": {"linestyle": "none", "marker": "o", "markersize": 4.5, "markeredgecolor": "white",
               "markeredgewidth": 0.6},
    "hollow": {"linestyle": "none", "marker": "s", "markersize": 4.5, "markerfacecolor": "white",
               "markeredgewidth": 1.3},
    "fit": {"linestyle": "-", "linewidth": 7.0, "alpha": 0.22, "solid_capstyle": "butt"},
    "boundary": {"linestyle": "-", "linewidth": 2.2},
    "second_boundary": {"linestyle": (0, (3, 2)), "linewidth": 2.2},  # the two edges often lie on each other
    "orbit": {"linestyle": "-", "linewidth": 1.6, "marker": "o", "markersize": 3.0},
}  # fmt: skip
MARKS: dict[str, dict[str, Any]] = {
    "here": {"marker": "*", "s": 190.0, "facecolor": "white", "edgecolor": INK, "linewidth": 1.2},
    "stable": {"marker": "o", "s": 70.0, "facecolor": INK, "edgecolor": "white", "linewidth": 1.2},
    "unstable": {"marker": "o", "s": 60.0, "facecolor": "white", "edgecolor": INK, "linewidth": 1.6},
}  # fmt: skip
