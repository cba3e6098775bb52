"""The forecast's numbers: every score on the same runs, ranked and calibrated, and the claim they amount to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.study.recipe import Claim, Result

from . import baselines, fits
from .scores import SPANS, combined
from .statistics import auroc, brier, calibration_error, interval, reliability, spearman
from .table import Row, recorded_runs, table

GOALS = {"auroc": 0.97, "auroc_low": 0.93, "spearman": 0.85}
HEADLINE = "plain sum, theory"
FORGETTING = "plain sum and forgetting, theory"
DRAWS = 300  # of the bootstrap
ENOUGH = 100  # rows below which nothing is decided
BASELINES = (
    "paper's three constants",
    "random-energy diagram",
    "first gradient norm",
    "loss after 20 steps",
    "Koopman near-unit share",
    "Koopman, whitened apart",
)


def headline_scores(rows: Sequence[Row]) -> dict[str, Array]:
    """Ours and the baselines, larger is worse; what is fitted was fitted on other tasks or families."""
    return {
        HEADLINE: _each(rows, fits.plain),
        "plain sum, measured": _each(rows, lambda row: combined(*row.changes("measured", "pooled"))),
        FORGETTING: _each(rows, fits.with_forgetting),
        "forgetting alone": _each(rows, lambda row: row.forgetting()),
        "fitted on other families": fits.cross_fitted(rows, fits.fitted_score, same_task=True),
        "fitted on other families, other task": fits.cross_fitted(rows, fits.fitted_score),
        "angle alone": _each(rows, lambda row: combined(*row.changes(readout="pooled"), "angle")),
        "gradient alone": _each(rows, lambda row: combined(*row.changes(readout="pooled"), "gradient")),
        "paper's three constants": fits.cross_fitted(rows, fits.paper_loss),
        "random-energy diagram": _each(rows, baselines.random_energy),
        "first gradient norm": _each(rows, baselines.gradient_norm),
        "loss after 20 steps": _each(rows, baselines.early_loss),
        "Koopman near-unit share": _each(rows, lambda row: baselines.koopman(row, "first")),
        "Koopman, whitened apart": _each(rows, lambda row: baselines.koopman(row, "own")),
    }


def variants(rows: Sequence[Row]) -> dict[str, Array]:
    """The plain sum in every form: source, readout, raw or relative gradient, span."""
    scores = {}
    for source, readouts in (("theory", ("token", "pooled")), ("measured", ("token", "pooled", "own"))):
        for readout in readouts:
            for relative in (True, False):
                for span in SPANS:
                    name = f"{source}, {readout}, {'relative' if relative else 'raw'}, {span}"
                    scores[name] = np.array(
                        [combined(*r.changes(source, readout, relative, span)) for r in rows]
                    )
    return scores


def _each(rows: Sequence[Row], score: Callable[[Row], float]) -> Array:
    return np.array([score(row) for row in rows], float)


def evaluate(score: Array, rows: Sequence[Row], bootstrap: bool = True) -> dict[str, Any]:
    """AUROC within each task with its interval and their mean, Spearman within each task and family."""
    numbers: dict[str, Any] = {}
    for task in dict.fromkeys(row.task for row in rows):
        mine = [i for i, row in enumerate(rows) if row.task == task]
        failed = [rows[i].failed for i in mine]
        numbers[f"auroc {task}"] = _three(auroc(score[mine], failed))
        if bootstrap:
            ends = interval(auroc, score[mine], failed, [rows[i].cluster for i in mine], draws=DRAWS)
            numbers[f"interval {task}"] = [_three(end) for end in ends]
    numbers["auroc within task"] = _three(within_task(score, rows))
    if bootstrap:
        places, clusters = np.arange(len(rows), dtype=float), [row.cluster for row in rows]

        def again(chosen: Array, _: Array) -> float:
            picked = chosen.astype(int)
            return within_task(score[picked], [rows[i] for i in picked])

        ends = interval(again, places, places, clusters, draws=DRAWS)
        numbers["interval within task"] = [_three(end) for end in ends]
    numbers["auroc all"] = _three(auroc(score, [row.failed for row in rows]))
    groups = spearman_by_group(score, rows)
    numbers["spearman"] = {name: _three(value) for name, value in groups.items()}
    finite = [value for value in groups.values() if np.isfinite(value)]
    numbers["spearman mean"] = _three(float(np.mean(finite))) if finite else None
    return numbers


def within_task(score: Array, rows: Sequence[Row]) -> float:
    """P(failed run scores above a trained run of the same task), over all such pairs."""
    total, weight = 0.0, 0
    for task in dict.fromkeys(row.task for row in rows):
        mine = [i for i, row in enumerate(rows) if row.task == task]
        failed = np.array([rows[i].failed for i in mine])
        pairs = int(failed.sum() * (~failed).sum())
        if pairs:
            total, weight = total + pairs * auroc(score[mine], failed), weight + pairs
    return total / weight if weight else float("nan")


def spearman_by_group(score: Array, rows: Sequence[Row]) -> dict[str, float]:
    """With the held-out loss, within each task, family and optimizer."""
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(f"{row.task} {row.family} {row.optimizer}", []).append(i)
    return {
        name: spearman(score[mine], [rows[i].held_out_loss for i in mine])
        for name, mine in groups.items()
        if len(mine) > 2
    }


def calibration(rows: Sequence[Row], same_task: bool) -> dict[str, Any]:
    """Brier score, calibration error and reliability of held-out probabilities."""
    numbers: dict[str, Any] = {}
    trained = [not row.failed for row in rows]
    for name, forecast in (("plain", fits.plain_probability), ("fitted", fits.fitted_probability)):
        p = fits.cross_fitted(rows, forecast, same_task)
        curve = [[_three(mean), _three(share), count] for mean, share, count in reliability(p, trained)]
        numbers[name] = {
            "brier": _three(brier(p, trained)),
            "error": _three(calibration_error(p, trained)),
            "auroc": _three(auroc(-p, ~np.array(trained))),
            "reliability": curve,
        }
    base = float(np.mean(trained))
    return numbers | {"brier of the base rate": _three(base * (1 - base))}


def claim(results: Sequence[Result], runs: Path) -> Claim:
    """The goals of the forecast, on the recorded runs."""
    rows = table(results, recorded_runs(runs))
    scale = f"{len(rows)} networks of width 48 and 8 to 18 blocks, one seed each, 160 to 200 steps"
    published = (
        "We can predict the final performance of a trained transformer from how far one initializes from the two phase "
        f"boundaries [talk]; read as: an AUROC within a task of {GOALS['auroc']}, not below {GOALS['auroc_low']}, a "
        f"mean Spearman of {GOALS['spearman']}, and above every other method (ours, fixed beforehand)."
    )
    if len(rows) < ENOUGH:
        few = f"{len(rows)} runs joined, too few to decide."
        return Claim(published, few, scale, None, {"rows": len(rows)}, rows=("C34", "C35"))
    scores = {name: evaluate(score, rows) for name, score in headline_scores(rows).items()}
    ours, best = scores[HEADLINE], max(BASELINES, key=lambda name: scores[name]["auroc within task"])
    low = ours["interval within task"][0]
    ours_in_words = (
        f"The plain sum of both exponents, from theory alone and with nothing fitted: AUROC within a task "
        f"{ours['auroc within task']} (from {low}), mean Spearman {ours['spearman mean']}; with a third of what the "
        f"stream forgets {scores[FORGETTING]['auroc within task']}, {scores[FORGETTING]['spearman mean']}; "
        f"best baseline: {best}, {scores[best]['auroc within task']}."
    )
    reached = (
        ours["auroc within task"] >= GOALS["auroc"]
        and low >= GOALS["auroc_low"]
        and ours["spearman mean"] >= GOALS["spearman"]
        and ours["auroc within task"] > scores[best]["auroc within task"]
    )
    numbers = {
        "trained": f"{sum(not row.failed for row in rows)} of {len(rows)}",
        "goals": GOALS,
        "scores": scores,
        "variants": {name: evaluate(score, rows, bootstrap=False) for name, score in variants(rows).items()},
        "calibration, new family": calibration(rows, same_task=True),
        "calibration, new task and family": calibration(rows, same_task=False),
    }
    return Claim(published, ours_in_words, scale, bool(reached), numbers, rows=("C34", "C35"))


def _three(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None
