"""Rates and settings tuned on one seed: every arm of the comparison at four or more rates, and where a bound helps.

The seed is used for nothing else; `optimizers_compared` takes the best of each arm to fresh seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .chosen import best_of
from .methods import BASES, SETTINGS, TASKS, TITLES, VARIANTS, Arm, arm_of, arms, case_of, rates_of
from .training import BATCH, trained

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
SEED = 100  # not among those of the comparison
LITTLE, MUCH = 0.5, 1.0  # logits in one step


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale != "full":
        return [
            case_of(("retrieval", base, variant), setting, 0.1, SEED, 3, "decay")
            for base in BASES
            for variant, setting in (("plain", None), ("trust", 0.03))
        ]
    return [
        case_of(arm, setting, rate, SEED, TASKS[arm[0]], "decay")
        for arm in arms()
        for setting in SETTINGS[arm[2]]
        for rate in rates_of(arm, setting)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in trained(case).items() if key != "losses"}


def pairs(results: Sequence[Result]) -> list[tuple[str, str, float, float]]:
    """(task, base, largest logit change in a step of the plain run, its loss over that with LogitTrust 0.03)."""
    by_case = {(*arm_of(r.case), r.case["setting"], r.case["rate"]): r.value for r in results}
    found = []
    for (task, base, variant, _, rate), plain in by_case.items():
        bound = by_case.get((task, base, "trust", 0.03, rate))
        if variant == "plain" and bound is not None:
            found.append((task, base, float(plain["change"][1] or np.inf), plain["end"] / bound["end"]))
    return found


def at_an_end(results: Sequence[Result]) -> list[Arm]:
    """The arms whose best rate is the lowest or the highest that was tried with its setting."""
    picked = best_of(results)
    tried: dict[tuple[Arm, float | None], list[float]] = {}
    for r in results:
        tried.setdefault((arm_of(r.case), r.case["setting"]), []).append(r.case["rate"])
    grids = {arm: tried[arm, case["setting"]] for arm, case in picked.items()}
    return [arm for arm, case in picked.items() if case["rate"] in (min(grids[arm]), max(grids[arm]))]


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_tuned(results), _criterion(results)])


def _tuned(results: Sequence[Result]) -> Claim:
    edge, number = at_an_end(results), len(best_of(results))
    said = ", ".join(" ".join(arm) for arm in edge)
    full = len(results) > 100
    return Claim(
        "(ours) The best rate of every arm lies inside the rates that were tried.",
        f"In {number - len(edge)} of {number} arms" + (f"; at an end: {said}." if edge else "."),
        _scale(results),
        not edge if full else None,
        {"at_an_end": [list(arm) for arm in edge]},
    )


def _criterion(results: Sequence[Result]) -> Claim:
    """Whether the logits per step of a plain run tell what a bound does for it, at the same rate."""
    found = pairs(results)
    low, high = [f for *_, c, f in found if c < LITTLE], [f for *_, c, f in found if c >= MUCH]
    between = [f for *_, c, f in found if LITTLE <= c < MUCH]
    words = [
        f"{name}: {len(f)} runs, loss over that with the bound {np.median(f):.3g} ({min(f):.3g} to {max(f):.3g}), "
        f"above 1.1 in {sum(v > 1.1 for v in f)}, below 0.9 in {sum(v < 0.9 for v in f)}"
        for name, f in ((f"below {LITTLE:g} logits", low), ("between", between), (f"from {MUCH:g}", high))
        if f
    ]
    return Claim(
        "(ours, quantity and thresholds chosen on these runs) A bound of 0.03 harms no plain run in which a step moves "
        f"a head's logits by {MUCH:g} or more, helps half of them, and below {LITTLE:g} changes little on the whole.",
        "; ".join(words) + ".",
        _scale(results),
        bool(min(high) > 0.9 and np.mean([f > 1.1 for f in high]) >= 0.5 and 0.9 < np.median(low) < 1.1)
        if min(len(low), len(high)) >= 5
        else None,
        {"change": [min(c, 1e9) for *_, c, _ in found], "factor": [f for *_, f in found]},
    )


def _scale(results: Sequence[Result]) -> str:
    return (
        f"one seed, {len(results)} runs of {len({r.case['task'] for r in results})} tasks, 2 blocks, width 32, "
        f"{BATCH} sequences per step"
    )


def draw(results: Sequence[Result]) -> Figure:
    """Loss against rate for every arm at its best setting; last, what a bound does against how far plain moves."""
    tasks = [t for t in TASKS if any(r.case["task"] == t for r in results)]
    rates = [_rates(results, task, base) for task in tasks for base in BASES]
    benefit = [_benefit(results, base, tasks) for base in BASES]
    scale = f"{_scale(results)}; lines: the best setting of each arm"
    return Sheet("Tuning on one seed", (*rates, *benefit), scale, columns=len(BASES)).draw()


def _rates(results: Sequence[Result], task: str, base: str) -> Panel:
    of_panel = [r for r in results if arm_of(r.case)[:2] == (task, base)]
    curves = []
    for arm, case in best_of(of_panel).items():
        chosen = [r for r in of_panel if arm_of(r.case) == arm and r.case["setting"] == case["setting"]]
        x, y = zip(*sorted((r.case["rate"], r.value["end"]) for r in chosen), strict=True)
        curves.append(
            Curve(VARIANTS[arm[2]], np.array(x), np.array(y), list(VARIANTS).index(arm[2]), "orbit")
        )
    ends = [r.value["end"] for r in of_panel]
    return Panel(
        f"{TITLES[task]}, {base}",
        "rate",
        "held-out loss at the end",
        tuple(curves),
        log_x=True,
        log_y=max(ends) > 3 * min(ends),
        legend=(task, base) == (next(iter(TASKS)), BASES[0]),
    )


def _benefit(results: Sequence[Result], base: str, tasks: Sequence[str]) -> Panel:
    """Points right of the dotted lines moved logits by more than one in a step; above 1 the bound helped."""
    curves = []
    for group, task in enumerate(tasks):
        points = [(c, f) for t, b, c, f in pairs(results) if (t, b) == (task, base) and c < 1e3]
        x, y = np.array(points, dtype=float).reshape(-1, 2).T
        curves.append(Curve(TITLES[task], x, y, group, "points"))
    return Panel(
        f"bound of 0.03, {base}",
        "largest logit change in a step, plain",
        "loss without bound / with it",
        tuple(curves),
        log_x=True,
        log_y=True,
        levels=(1.0,),
        places=(LITTLE, MUCH),
        legend=base == BASES[0],
    )
