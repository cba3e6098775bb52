"""The held-out forecast in one picture: every network by its probability and outcome, and how well scores rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgewise.judgement.outcome import OUTCOME_BANDS
from edgewise.present import Curve, Panel, Sheet
from edgewise.study.recipe import Result

from .held_out_labels import LABELS
from .held_out_report import decided, forecast, ranking, simple_scores
from .held_out_table import HeldOut, held_out

GROUPS = {"trained": 0, "wrong rate": 2, "slow": 3, "dead": 1}


def figure(results: Sequence[Result]) -> Any:
    """Probability by kind, coloured by outcome; AUROC within task of every score with its interval."""
    rows = held_out(results)
    title = f"{len(rows)} networks that the forecast had never seen"
    return Sheet(title, (_probabilities(rows), _scores(decided(rows)))).draw()


def _probabilities(rows: Sequence[HeldOut]) -> Panel:
    names = list(dict.fromkeys(row.kind for row in sorted(rows, key=lambda row: (row.task, row.kind))))
    shifts = np.random.default_rng(0).uniform(-0.3, 0.3, len(rows))
    curves = []
    for label in LABELS:
        points = [
            (forecast(row)[1].value, names.index(row.kind) + shift)
            for row, shift in zip(rows, shifts, strict=True)
            if row.label == label
        ]
        if points:
            x, y = np.array(points, float).T
            role = "cross" if label == "dead" else "points" if label == "trained" else "hollow"
            curves.append(Curve(label, x, y, GROUPS[label], role))
    return Panel(
        "what was forecast",
        "probability of training, forecast",
        "",
        tuple(curves),
        y_names=tuple(name.replace("_", " ") for name in names),
        places=(OUTCOME_BANDS.fails_up_to, OUTCOME_BANDS.trains_from),
        legend_at="center",
    )


def _scores(rows: Sequence[HeldOut]) -> Panel:
    """Larger is better; the interval is over networks."""
    every = {"the forecast": np.array([-forecast(row)[1].value for row in rows])} | simple_scores(rows)
    named = [(name, ranking(score, rows)) for name, score in every.items()]
    ranked = sorted(named, key=lambda pair: pair[1]["within task"] or 0)
    middle = np.array([each["within task"] or np.nan for _, each in ranked])
    low, high = np.array([[end or np.nan for end in each["interval"]] for _, each in ranked]).T
    places = np.arange(len(ranked), dtype=float)
    curve = Curve("AUROC", middle, places, 0, "points", x_error=np.maximum(middle - low, high - middle))
    return Panel(
        "dead or trained?",
        "AUROC within a task, 95 %",
        "",
        (curve,),
        legend=False,
        y_names=tuple(name for name, _ in ranked),
        places=(0.5,),
    )
