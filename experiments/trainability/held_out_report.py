"""The held-out population's numbers: ranking, calibration, bands, false alarms, slow starts, beside simpler rules.

edgewise run experiments/trainability/held_out.py --recorded
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.judgement.findings import SLOWER, FindingEvidence, find
from edgewise.judgement.judge import NEVER
from edgewise.judgement.outcome import outcome_of, risks, score_of, training_probability, why_open
from edgewise.judgement.profile import read
from edgewise.nouns.verdict import Kind, Outcome, Probability
from edgewise.study.recipe import Claim, Result

from . import baselines
from .calibrate import Sample, fitted, sample
from .held_out_labels import LABELS
from .held_out_table import HeldOut, held_out
from .scores import BEYOND
from .statistics import auroc, brier, interval
from .table import recorded_runs, table

RECORDED = Path(__file__).parent / "recorded"
GOALS = {
    "auroc": 0.97,
    "auroc in a kind": 0.9,
    "brier": 0.08,
    "false alarms": 0.03,
    "misses": 0.05,
    "slow": 0.8,
}
GAINS = ((0.0, 1.0), (1.0, 3.0), (3.0, 6.0), (6.0, 100.0))  # of the scores
WITHIN = 3.0  # factor of the steps
DEEP = 12  # blocks, of the rule "post-norm and deep"
DRAWS = 200
ENOUGH = 100


@cache
def under_test() -> dict[str, Any]:
    """The table as it was before any network of the population was trained."""
    table: dict[str, Any] = json.loads((RECORDED / "forecast_table.json").read_text())
    return table


def forecast(row: HeldOut) -> tuple[Outcome, Probability]:
    """Outcome and probability as `judge` gives them, without what it explains."""
    trace = row.trace()
    score = score_of(read(trace))
    if score is None:
        return Outcome.FAILS, NEVER
    probability = training_probability(score, trace, under_test())
    if why_open(probability, trace):
        return Outcome.UNDECIDED, probability
    return outcome_of(probability), probability


def decided(rows: Sequence[HeldOut]) -> list[HeldOut]:
    """Dead or trained: what the ranking is about."""
    return [row for row in rows if row.label in ("dead", "trained")]


def within(score: Array, rows: Sequence[HeldOut], by: Callable[[HeldOut], str]) -> float:
    """P(a dead network scores above a trained one of the same group), over all such pairs."""
    total, weight = 0.0, 0
    for group in dict.fromkeys(map(by, rows)):
        mine = [i for i, row in enumerate(rows) if by(row) == group]
        dead = np.array([rows[i].label == "dead" for i in mine])
        pairs = int(dead.sum() * (~dead).sum())
        if pairs:
            total, weight = total + pairs * auroc(score[mine], dead), weight + pairs
    return total / weight if weight else math.nan


def ranking(score: Array, rows: Sequence[HeldOut]) -> dict[str, Any]:
    """AUROC within task with its interval over networks, and within kind."""
    places = np.arange(len(rows), dtype=float)

    def again(drawn: Array, _: Array) -> float:
        chosen = drawn.astype(int)
        return within(score[chosen], [rows[i] for i in chosen], lambda row: row.task)

    ends = interval(again, places, places, list(range(len(rows))), draws=DRAWS)
    return {
        "within task": _three(within(score, rows, lambda row: row.task)),
        "interval": [_three(end) for end in ends],
        "within kind and task": _three(within(score, rows, lambda row: f"{row.kind} {row.task}")),
    }


def simple_scores(rows: Sequence[HeldOut]) -> dict[str, Array]:
    """Baselines of the forecast, and rules that need no theory; larger is worse."""
    each: dict[str, Callable[[HeldOut], float]] = {
        "loss after 20 steps": lambda row: _over(row.value["early"], row.value["chance"]),
        "first gradient norm": lambda row: abs(math.log(row.value["gradient_norm"] or math.exp(BEYOND))),
        "Koopman near-unit share": lambda row: -(row.value["scores"]["koopman"]["first"] or 0.0),
        "Koopman, whitened apart": lambda row: -(row.value["scores"]["koopman"]["own"] or 0.0),
        "random-energy diagram": _random_energy,
        "paper's three constants": _three_constants(),
        "depth alone": lambda row: float(row.case["depth"]),
        "post-norm and deep": lambda row: (
            float(row.post_norm and row.case["depth"] >= DEEP) + row.case["depth"] / 1e3
        ),
        "score gain alone": lambda row: row.score_gain,
    }
    return {name: np.array([rule(row) for row in rows], float) for name, rule in each.items()}


def _over(loss: float | None, chance: float) -> float:
    return 10.0 if loss is None else loss / chance


def _random_energy(row: HeldOut) -> float:
    limit = row.value["scores"].get("random_energy") or {"angle": None, "condensation": None}
    angle = BEYOND if limit["angle"] is None else abs(limit["angle"])
    excess = BEYOND if limit["condensation"] is None else max(0.0, limit["condensation"] - 1)
    return float(angle + 2 * math.log(row.case["tokens"]) * excess)


def _three_constants() -> Callable[[HeldOut], float]:
    """Fitted on the 312 networks of the forecast."""
    old = table(recorded_runs(RECORDED / "forecast.jsonl"), recorded_runs(RECORDED / "train.jsonl"))
    fit = baselines.three_constants(old)

    def loss(row: HeldOut) -> float:
        exponents = row.value["scores"].get("collapsed") or {"angle": None, "gradient": None}
        angle, gradient = (BEYOND if exponents[n] is None else exponents[n] for n in ("angle", "gradient"))
        return float(fit.loss(angle, gradient))

    return loss


def bands(rows: Sequence[HeldOut]) -> dict[str, dict[str, int]]:
    """The confusion matrix: every outcome by every word."""
    counts = Counter((row.label, forecast(row)[0].value) for row in rows)
    words = [outcome.value for outcome in Outcome]
    return {name: {word: counts[name, word] for word in words} for name in LABELS}


def share(part: int, whole: int) -> dict[str, Any]:
    """A count with its interval [Wilson 1927]."""
    if not whole:
        return {"count": part, "of": whole, "share": None, "interval": None}
    z, p = 1.96, part / whole
    centre, spread = p + z * z / (2 * whole), z * math.sqrt(p * (1 - p) / whole + z * z / (4 * whole**2))
    ends = [_three((centre + sign * spread) / (1 + z * z / whole)) for sign in (-1, 1)]
    return {"count": part, "of": whole, "share": _three(p), "interval": ends}


def by_score_gain(rows: Sequence[HeldOut]) -> dict[str, Any]:
    """Brier score of dead against trained in subgroups of the score gain."""
    groups = {}
    for low, high in GAINS:
        mine = [row for row in rows if low <= row.score_gain < high]
        values = [forecast(row)[1].value for row in mine]
        name = f"{low:g} to {high:g}" if high < 100 else f"above {low:g}"
        trained = [row.label == "trained" for row in mine]
        groups[name] = {"networks": len(mine), "brier": _three(brier(values, trained)) if mine else None}
    return groups


def slow_starts(rows: Sequence[HeldOut]) -> dict[str, Any]:
    """Networks whose start is called slow: how many of the factors are right within 3."""
    named = [row for row in rows if row.label != "dead" and _called_slow(row)]
    right = sum(SLOWER / WITHIN <= row.factor <= SLOWER * WITHIN for row in named)
    slow = [row for row in rows if row.label == "slow"]
    return {
        "factor right": share(right, len(named)),
        "slow networks": len(slow),
        "of them called slow": sum(map(_called_slow, slow)),
        "factors": sorted(round(row.factor, 1) for row in slow),
    }


def _called_slow(row: HeldOut) -> bool:
    trace = row.trace()
    reading = read(trace)
    score = score_of(reading)
    findings = find(
        FindingEvidence(reading, score, {} if score is None else risks(score, trace), Outcome.TRAINS)
    )
    return any(finding.kind is Kind.SLOW_START for finding in findings)


def old_samples() -> list[Sample]:
    rows = table(recorded_runs(RECORDED / "forecast.jsonl"), recorded_runs(RECORDED / "train.jsonl"))
    return [sample(row) for row in rows]


def left_out(rows: Sequence[HeldOut]) -> dict[str, Any]:
    """Old and new together, each network by a fit without its family on its task: AUROC and Brier."""
    new = [row.sample() for row in rows]
    every = old_samples() + new
    values = np.full(len(new), np.nan)
    for readout, family in dict.fromkeys((each.readout, each.family) for each in new):
        fit = fitted([s for s in every if s.readout == readout and s.family != family], "described")
        mine = [i for i, each in enumerate(new) if (each.readout, each.family) == (readout, family)]
        values[mine] = fit.probability([new[i].features("described") for i in mine])
    trained = [not each.failed for each in new]
    return {
        "auroc within task": _three(within(-values, rows, lambda row: row.task)),
        "brier": _three(brier(values, trained)),
        "networks": len(new),
    }


def numbers(rows: Sequence[HeldOut]) -> dict[str, Any]:
    """All tables."""
    clear = decided(rows)
    ours = np.array([-forecast(row)[1].value for row in clear])
    words = bands(rows)
    kinds = dict.fromkeys(f"{row.kind} {row.task}" for row in clear)
    return {
        "networks": len(rows),
        "outcomes": dict(Counter(row.label for row in rows)),
        "seeds that disagree": sum(_disagree(row) for row in rows),
        "ours": ranking(ours, clear),
        "in a kind": {
            kind: _in_kind(kind, ours, clear) for kind in kinds if _in_kind(kind, ours, clear) is not None
        },
        "others": {name: ranking(score, clear) for name, score in simple_scores(clear).items()},
        "brier": _three(brier(-ours, [row.label == "trained" for row in clear])),
        "brier by score gain": by_score_gain(clear),
        "bands": words,
        "false alarms": share(words["trained"]["will not train"], sum(words["trained"].values())),
        "misses": share(words["dead"]["trains"], sum(words["dead"].values())),
        "slow": slow_starts(rows),
        "old and new, family and task left out": left_out(clear),
    }


def _in_kind(kind: str, score: Array, rows: Sequence[HeldOut]) -> float | None:
    mine = [i for i, row in enumerate(rows) if f"{row.kind} {row.task}" == kind]
    value = auroc(score[mine], [rows[i].label == "dead" for i in mine])
    return None if math.isnan(value) else _three(value)


def _disagree(row: HeldOut) -> bool:
    """Whether one seed trained at the best rate and the other did not."""
    half = row.value["chance"] / 2
    return len({(row.value[name]["final"] or math.inf) < half for name in ("best", "second")}) == 2


def claim(results: Sequence[Result]) -> Claim:
    """The goals, on networks that nothing was fitted on."""
    rows = held_out(results)
    published = (
        f"(ours) Goals fixed beforehand: {', '.join(f'{name} {goal:g}' for name, goal in GOALS.items())}."
    )
    if len(rows) < ENOUGH:
        few = f"{len(rows)} networks"
        return Claim(published, f"{few}, too few to decide", few, None, rows=("C35",))
    all_numbers = numbers(rows)
    alarms, misses = all_numbers["false alarms"], all_numbers["misses"]
    ours = all_numbers["ours"]["within task"]
    reached = (
        ours >= GOALS["auroc"]
        and alarms["share"] <= GOALS["false alarms"]
        and misses["share"] <= GOALS["misses"]
        and all(value >= GOALS["auroc in a kind"] for value in all_numbers["in a kind"].values())
        and all(group["brier"] <= GOALS["brier"] for group in all_numbers["brier by score gain"].values())
    )
    return Claim(
        published,
        f"AUROC within task {ours}; {alarms['count']} of {alarms['of']} trained networks called failing, "
        f"{misses['count']} of {misses['of']} dead ones called trainable",
        f"{len(rows)} networks of eleven kinds, 100 steps",
        bool(reached),
        all_numbers,
        rows=("C35",),
    )


def _three(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None
