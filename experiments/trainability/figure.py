"""The forecast in one picture: loss against score, ROC curves, reliability, every score beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.present.draw import LINES, QUIET, SETTINGS
from edgewise.study.train import TRAINS

from . import fits
from .report import BASELINES, FORGETTING, HEADLINE, evaluate, headline_scores
from .statistics import auroc, interval, reliability
from .table import Row

COLOURS = {"SGD": LINES[1], "AdamW": LINES[0]}
SHOWN = (HEADLINE, FORGETTING, "paper's three constants", "loss after 20 steps", "Koopman near-unit share")
RATES = np.linspace(0, 1, 101)


def figure(rows: Sequence[Row]) -> Any:
    """Three rows of panels: losses, ROC curves with bands and reliability, AUROC of all scores."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        return _whole(rows)


def _whole(rows: Sequence[Row]) -> Any:
    from matplotlib.figure import Figure

    tasks, families = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("task", "family"))
    whole = Figure(figsize=(13, 4 + 3.4 * len(tasks) + 3.6), layout="constrained")
    parts: Any = whole.subfigures(3, 1, height_ratios=[3.4 * len(tasks), 4, 3.6])
    losses, curves, bars = parts
    _losses(losses, rows, tasks, families)
    scores = headline_scores(rows)
    _curves(curves, rows, tasks, scores)
    _bars(bars, rows, scores)
    whole.suptitle(
        "Which starts will train, told before training", fontsize=12, fontweight="bold", x=0.01, ha="left"
    )
    words = f"{len(rows)} networks of width 48, 8 to 18 blocks, one seed each; scores from theory alone"
    whole.supxlabel(words, fontsize=9, color=QUIET, x=0.99, ha="right")
    whole.draw_without_rendering()
    whole.set_layout_engine("none")
    return whole


def _losses(part: Any, rows: Sequence[Row], tasks: list[str], families: list[str]) -> None:
    """Held-out loss over chance against the plain sum, one panel per task and family."""
    axes = part.subplots(len(tasks), len(families), squeeze=False, sharey="row")
    for i, task in enumerate(tasks):
        for j, family in enumerate(families):
            panel = axes[i][j]
            for optimizer, colour in COLOURS.items():
                mine = [
                    r for r in rows if (r.task, r.family, r.optimizer) == (task, family, optimizer.lower())
                ]
                panel.scatter(
                    [fits.plain(r) for r in mine],
                    [min(r.held_out_loss, 1.2) for r in mine],
                    s=[8 + 1.5 * r.depth for r in mine],
                    color=colour,
                    alpha=0.7,
                    lw=0,
                    label=optimizer,
                )
            panel.axhline(TRAINS, color=QUIET, ls=":", lw=1.2)
            panel.set_title(f"{task}, {family}", loc="left")
            panel.set_xscale("symlog")
            panel.set_xlim(0, 1.15 * panel.get_xlim()[1])
            panel.set_xlabel("|angle| + |gradient|, total log-changes")
        axes[i][0].set_ylabel("held-out loss / chance")
    axes[0][0].legend(title="larger: deeper", frameon=False)


def _curves(part: Any, rows: Sequence[Row], tasks: list[str], scores: dict[str, Array]) -> None:
    panels = part.subplots(1, len(tasks) + 1, squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=False):
        mine = [i for i, row in enumerate(rows) if row.task == task]
        _roc(panel, {name: scores[name][mine] for name in SHOWN}, [rows[i] for i in mine])
        panel.set_title(f"{task}: who will fail?", loc="left")
        panel.set_xlabel("share of trained networks flagged")
        panel.set_ylabel("share of failed networks flagged")
        panel.legend(frameon=False, loc="lower right", fontsize=8)
    _reliability(panels[-1], rows)


def _roc(panel: Any, scores: dict[str, Array], rows: Sequence[Row]) -> None:
    failed = np.array([row.failed for row in rows])
    for (name, score), colour in zip(scores.items(), LINES, strict=False):
        label = f"{name}: {auroc(score, failed):.3f}"
        line = panel.plot(RATES, roc(score, failed), label=label, color=colour, lw=1.6)[0]
        if name == HEADLINE:
            low, high = _band(score, failed, [row.cluster for row in rows])
            panel.fill_between(RATES, low, high, color=line.get_color(), alpha=0.2, lw=0)


def roc(score: Array, failed: NDArray[np.bool_]) -> Array:
    """Share of failed runs flagged where a share RATES of the trained ones is, by linear interpolation."""
    order = np.argsort(-score, kind="stable")
    ends = np.append(
        np.flatnonzero(np.diff(score[order])), len(order) - 1
    )  # equal scores are flagged together
    hits, alarms = np.cumsum(failed[order])[ends], np.cumsum(~failed[order])[ends]
    x = np.concatenate([[0.0], alarms / max(alarms[-1], 1)])
    return np.interp(RATES, x, np.concatenate([[0.0], hits / max(hits[-1], 1)]))


def _band(score: Array, failed: NDArray[np.bool_], clusters: Sequence[object]) -> tuple[Array, Array]:
    """The 95 % interval of the curve at every tenth rate, over starts."""
    places = np.arange(len(score), dtype=float)
    ends = []
    for k in range(0, len(RATES), 10):

        def at(chosen: Array, _: Array, k: int = k) -> float:
            picked = chosen.astype(int)
            return float(roc(score[picked], failed[picked])[k])

        ends.append(interval(at, places, places, clusters, draws=100))
    low, high = np.array(ends).T
    return np.interp(RATES, RATES[::10], low), np.interp(RATES, RATES[::10], high)


def _reliability(panel: Any, rows: Sequence[Row]) -> None:
    trained = [not row.failed for row in rows]
    for colour, (name, same_task) in zip(
        LINES, (("new family", True), ("new task and family", False)), strict=False
    ):
        p = fits.cross_fitted(rows, fits.fitted_probability, same_task)
        points = np.array(reliability(p, trained))
        panel.plot(points[:, 0], points[:, 1], "o-", label=name, color=colour, lw=1.6)
    panel.plot([0, 1], [0, 1], color=QUIET, ls=":", lw=1.2)
    panel.set_title("calibration, held out", loc="left")
    panel.set(xlabel="forecast probability of training", ylabel="share that trained")
    panel.legend(frameon=False)


def _bars(part: Any, rows: Sequence[Row], scores: dict[str, Array]) -> None:
    panel = part.subplots()
    numbers = {name: evaluate(score, rows) for name, score in scores.items()}
    ranked = {name: values for name, values in numbers.items() if values["spearman mean"] is not None}
    names = sorted(ranked, key=lambda name: ranked[name]["auroc within task"])
    for place, name in enumerate(names):
        low, high = numbers[name]["interval within task"]
        value = numbers[name]["auroc within task"]
        colour = QUIET if name in BASELINES else LINES[0]
        reach = [[max(value - low, 0)], [max(high - value, 0)]]
        panel.errorbar(value, place, xerr=reach, fmt="o", color=colour, capsize=3)
        label = f"{value:.3f}   Spearman {numbers[name]['spearman mean']:.2f}"
        panel.text(1.003, place, label, va="center", fontsize=8)
    panel.set_yticks(range(len(names)), names)
    panel.set(xlabel="AUROC within a task, 95 % over starts (blue: ours, grey: baselines)", xlim=(0.4, 1.0))
