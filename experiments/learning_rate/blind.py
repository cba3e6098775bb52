"""A rehearsal names the learning rate: 44 networks fixed beforehand, trained at a ladder of rates.

Beside it a constant, the range test by two rules, and the critical rate. `population.py` holds the networks. They were
blind for the first rule only; that of 18 November 2026, of which the record is, was made from some of them
(`horizon.py`), and `second.py` is its test. Today's asks 60 steps and is tested by `scheduled.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .finders import CONSTANT, critical_rate, range_test
from .networks import Row, batches, loss, network, optimizer
from .population import BLIND, DEVELOPMENT, SIZES, TINY, WIDTHS
from .truth import STEPS, curve, loss_at

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = (
    "asked",
)  # the record is of the rule of 18 November 2026; today's is tested by `scheduled.py`
METHODS = ("rehearsal", "constant", "range_steepest", "range_minimum", "critical")
TITLES = {
    "rehearsal": "rehearsal",
    "constant": "one constant per optimizer",
    "range_steepest": "range test, steepest fall",
    "range_minimum": "range test, minimum / 10",
    "critical": "from the curvature",
}
NAMES = {"adamw95": "AdamW, beta2 0.95", "adamw999": "AdamW, beta2 0.999", "sgd": "SGD, momentum"}
LEARNS = {"text": 2.7, "images": 2.0}  # final losses; frequencies alone give 2.85 and 2.30
WITHIN, GIVEN, WORST = 2.0, 0.02, 0.05


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale == "full":
        sizes = [_sized(family, width) for family in SIZES for width in WIDTHS]
        return [{"kind": "blind", "steps": STEPS, "row": row} for row in BLIND] + sizes
    return [{"kind": "blind", "steps": 6, "row": row | TINY} for row in (DEVELOPMENT[6], DEVELOPMENT[9])]


def _sized(entry: tuple[Any, ...], width: int) -> dict[str, Any]:
    family, data, depth, method, more = entry
    row = {
        "name": f"{family}-{depth}-{width}",
        "family": family,
        "task": data,
        "depth": depth,
        "width": width,
        "batch": 16,
        "optimizer": method,
        **more,
    }
    return {"kind": "width", "steps": 0, "row": row}


def measure(case: dict[str, Any]) -> dict[str, Any]:
    row, short = case["row"], case["kind"] == "blind" and case["steps"] < STEPS
    asked = [rehearsed(row, seed, short) for seed in ((0,) if case["kind"] == "width" else (0, 1))]
    if case["kind"] == "width":
        return {"asked": asked}
    others = range_test(row, 0, 20 if short else 100)
    others |= {"critical": critical_rate(row, 0), "constant": CONSTANT[row["optimizer"]]}
    return {"truth": curve(row, 0, case["steps"]), "asked": asked, "others": others}


def rehearsed(row: Row, seed: int, short: bool) -> dict[str, Any]:
    """What `edgewise.learning_rate` says, on the first batches that the training would use."""
    options: dict[str, Any] = {"steps": 4, "rates": 3} if short else {}
    rate = edgewise.learning_rate(
        network(row),
        list(itertools.islice(batches(row, seed), 66)),
        loss,
        progress=False,
        optimizer=lambda model: optimizer(row, model),
        **options,
    )
    beyond = rate.beyond
    return {
        "best": rate.best,
        "edge": rate.edge,
        "reason": None if beyond is None else beyond.reason,
        "rates": rate.tried,
        "levels": [r.level for r in rate.rehearsals],
        "passes": rate.passes,
        "start": rate.start.loss,
        "separation": [r.separation for r in rate.rehearsals],
        "fresh": [r.loss for r in rate.rehearsals],
        "notes": rate.notes,
    }


def advice(result: Result, method: str) -> float | None:
    """The rate that a method names."""
    rate = result.value["asked"][0]["best"] if method == "rehearsal" else result.value["others"][method]
    return None if rate is None else float(rate)


def learns(result: Result) -> bool:
    return bool(result.value["truth"]["lowest"] < LEARNS[result.case["row"]["task"]])


def score(results: Sequence[Result], method: str) -> dict[str, float]:
    """Factors to the best rate, nats given away, advice above the edge, over the networks that learn at some rate."""
    factors, given, above = [], [], 0
    for result in results:
        truth, rate = result.value["truth"], advice(result, method)
        if rate is None:
            factors.append(math.inf)
            given.append(math.inf)
            continue
        factors.append(math.exp(abs(math.log(rate / truth["best"]))))
        given.append(max(0.0, loss_at(rate, truth["rates"], truth["losses"]) - truth["lowest"]))
        above += truth["edge"] is not None and rate > truth["edge"]
    low, high = wilson(sum(f <= WITHIN for f in factors), len(factors))
    return {
        "networks": len(factors),
        "median": float(np.median(factors)),
        "worst": max(factors),
        "within": float(np.mean([f <= WITHIN for f in factors])),
        "low": low,
        "high": high,
        "given": float(np.median(given)),
        "given90": float(np.quantile(given, 0.9)),
        "given_worst": max(given),
        "given_small": float(np.mean([g <= GIVEN for g in given])),
        "above": above,
    }


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share [Wilson 1927]."""
    p, n = count / total, total
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)


def edges(results: Sequence[Result]) -> list[float]:
    """Rehearsed edge over the true one, where both are known."""
    pairs = [(r.value["asked"][0]["edge"], r.value["truth"]["edge"]) for r in results]
    return [ours / true for ours, true in pairs if ours is not None and true is not None]


def repeats(results: Sequence[Result]) -> list[float]:
    """The factor between the answers on two batch seeds."""
    pairs = [[a["best"] for a in r.value["asked"]] for r in results]
    return [max(a, b) / min(a, b) for a, b in pairs if a is not None and b is not None]


def widths(results: Sequence[Result]) -> dict[str, float]:
    """The rate rehearsed at the larger width over that at the smaller, by family and task."""
    rows = {
        (r.case["row"]["family"], r.case["row"]["task"], r.case["row"]["width"]): r.value["asked"][0]["best"]
        for r in results
        if r.case["kind"] == "width"
    }
    narrow, wide = WIDTHS
    pairs = {key[:2]: (rows[(*key[:2], narrow)], rows[(*key[:2], wide)]) for key in rows}
    return {" ".join(key): large / small for key, (small, large) in pairs.items() if small and large}


def claim(results: Sequence[Result]) -> Claim:
    blind = [r for r in results if r.case["kind"] == "blind"]
    alive = [r for r in blind if learns(r)]
    full = bool(blind) and all(r.case["steps"] == STEPS for r in blind)
    scale = f"{len(blind)} networks of 2 to 20 blocks, {blind[0].case['steps']} steps, one seed"
    if not full or not alive:
        return Claim("best rate within a factor of 2 in 90 %", "too few steps to tell", scale, None)
    table = {method: score(alive, method) for method in METHODS}
    ours, ratios, again = table["rehearsal"], edges(alive), repeats(alive)
    near = float(np.mean([0.5 <= ratio <= 2 for ratio in ratios])) if ratios else 0.0
    same = float(np.mean([ratio <= 1.25 for ratio in again]))
    lines = [
        f"{method} {row['within']:.0%} within 2 (worst {row['worst']:.1f}), {row['given']:.3f} nat given away "
        f"(90 %: {row['given90']:.3f}), {row['above']} above the edge"
        for method, row in table.items()
    ]
    numbers = {
        "table": table,
        "edge_within_2": near,
        "edges": len(ratios),
        "repeat_within_1.25": same,
        "widths": widths(results),
        "not_trained": len(blind) - len(alive),
    }
    return Claim.all(
        [
            Claim(
                "best rate within a factor of 2 in 90 %, lower end of the interval 80 %",
                "; ".join(lines),
                scale,
                ours["within"] >= 0.9 and ours["low"] >= 0.8,
                numbers,
            ),
            Claim(
                f"at most {GIVEN} nat given away in 90 %, {WORST} at worst",
                f"{ours['given_small']:.0%} within {GIVEN}, worst {ours['given_worst']:.2f}",
                scale,
                ours["given_small"] >= 0.9 and ours["given_worst"] <= WORST,
            ),
            Claim(
                "never advised above the edge",
                f"{ours['above']} of {ours['networks']:.0f}",
                scale,
                ours["above"] == 0,
            ),
            Claim(
                "edge within a factor of 2 in 85 %",
                f"{near:.0%} of {len(ratios)} for which both are known",
                scale,
                near >= 0.85,
            ),
            Claim(
                "the same answer within 1.25 on another batch seed in 90 %",
                f"in {same:.0%}",
                scale,
                same >= 0.9,
            ),
        ]
    )


def draw(results: Sequence[Result]) -> Figure:
    """Advice against the best rate, each method in its panel."""
    blind = [r for r in results if r.case["kind"] == "blind"]
    panels = tuple(_panel(blind, method) for method in METHODS)
    scale = f"{len(blind)} networks, {blind[0].case['steps']} steps, one seed; dotted: within a factor of 2"
    return Sheet("The rate named before training, against the best one", panels, scale, columns=3).draw()


def _panel(blind: Sequence[Result], method: str, lowest: float = 3e-8) -> Panel:
    curves = []
    for group, kind in enumerate(CONSTANT):
        rows = [
            (r.value["truth"]["best"], advice(r, method)) for r in blind if r.case["row"]["optimizer"] == kind
        ]
        pairs = [(true, ours) for true, ours in rows if ours is not None]
        x, y = np.array(pairs, dtype=float).reshape(-1, 2).T
        curves.append(Curve(NAMES[kind], x, y, group, "points"))
    line = np.array([2e-4, 1.0])
    band = [Curve("", line, factor * line, 6, "third") for factor in (1 / WITHIN, WITHIN)]
    return Panel(
        TITLES[method],
        "best rate, by training",
        "rate named",
        (*curves, *band),
        log_x=True,
        log_y=True,
        y_range=(lowest, 30.0),
        legend=method == METHODS[0],
        legend_at="lower right",
    )
