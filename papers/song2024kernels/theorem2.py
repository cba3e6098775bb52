"""Theorem 2 along runs: only W^Q is trained; who converges, who stalls, and was it known beforehand [Song 2024].

Targets `easy` (of unit size, with values three times theirs), `unit`, and `far` (targets three times as large); queries
and keys of three scales. The theorem's step does not change: 0.1 and 1 over the largest eigenvalue of the tangent
kernel at the start. A line search shows who converges at all. The start that is to keep the theorem, chosen before any
run with a fixed step: easy targets with the smallest queries, nine seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.kernel_theorems import QueryRun, check_theorem2, descend_queries, random_layer
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

TOLERANCE = 0.008  # of the largest number in an entry; seeds scatter by 0.083 or more
KERNELS = ("softmax", "gaussian")
TARGETS = {"easy": (3.0, 1.0), "unit": (1.0, 1.0), "far": (1.0, 3.0)}  # scales of W^V and of the targets
SCALES = (0.3, 1.0, 2.0)  # of queries and keys
SUITABLE = {"targets": "easy", "query_key_scale": SCALES[0]}
SHARES = (0.1, 1.0)  # fixed steps, in units of 1 / lambda_max
CONVERGED = 1e-6  # share of the first loss
LONG = 500  # steps from which a run can decide
POINTS = 40  # of a curve that are kept
FLOOR, RANGE = 1e-9, (1e-9, 5.0)  # of the losses drawn


def cases(scale: str = "small") -> list[dict[str, Any]]:
    seeds, steps = (3, 1000) if scale == "full" else (1, 8)
    shared = {"samples": 3, "tokens": 5, "width": 16, "heads": 4, "head_width": 16, "steps": steps}
    starts = [
        shared | {"kernel": kernel, "targets": targets, "query_key_scale": qk, "seed": seed}
        for seed in range(seeds)
        for targets in TARGETS
        for qk in SCALES
        for kernel in KERNELS
    ]
    more = [
        shared | SUITABLE | {"kernel": kernel, "seed": seed}
        for seed in range(seeds, 3 * seeds)
        for kernel in KERNELS
    ]
    return starts + [case | {"share": share} for share in SHARES for case in starts + more]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    value_scale, target_scale = TARGETS[case["targets"]]
    sizes = (case[name] for name in ("samples", "tokens", "width", "heads", "head_width"))
    layer = random_layer(
        *sizes,
        case["kernel"],
        query_key_scale=case["query_key_scale"],
        value_scale=value_scale,
        target_scale=target_scale,
        seed=case["seed"],
    )
    if "share" in case:
        run = descend_queries(layer, case["steps"], step=case["share"] * check_theorem2(layer).step)
        return _numbers(case, run) | {
            "descent_violations": run.descent_violations(),
            "whole_violations": run.descent_violations(1.0),
        }
    return _numbers(case, descend_queries(layer, case["steps"]))


def _numbers(case: dict[str, Any], run: QueryRun) -> dict[str, Any]:
    first = float(run.losses[0])
    kept = np.unique(np.geomspace(1, len(run.losses), POINTS).astype(int)) - 1
    return {
        "fell_to": run.fell_to,
        "floor": run.start.floor / first,
        "gamma": run.start.gamma,
        "gamma_kept": float(run.gammas.min()) / run.start.gamma
        if len(run.gammas) and run.start.gamma > 0
        else None,
        "bound": float(run.rate_bound[-1]) / first,
        "violations": run.violations,
        "steps": len(run.steps),
        "exponent": run.start.mean_exponent if case["kernel"] == "gaussian" else None,
        "at": kept.tolist(),
        "loss": rounded((run.losses / first)[kept], 4),
        "rate_bound": rounded((run.rate_bound / first)[kept], 4),
    }


def scale_of(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    rows, columns = case["samples"] * case["tokens"], case["heads"] * case["width"]
    sizes = (
        f"{rows} targets (samples times tokens), heads times width {columns}, queries of {case['head_width']}"
    )
    return f"{sizes}, at most {case['steps']} steps, {seeds} seeds"


def converged(results: Sequence[Result], **where: Any) -> list[int]:
    """How many runs fell to a millionth, of how many."""
    runs = select(results, **where)
    return [sum(r.value["fell_to"] < CONVERGED for r in runs), len(runs)]


def enough(results: Sequence[Result]) -> bool:
    """The small scale only shows that all works."""
    return min(r.case["steps"] for r in results) >= LONG


def fixed(results: Sequence[Result], **where: Any) -> list[Result]:
    return [r for r in select(results, **where) if "share" in r.case]


def searched(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if "share" not in r.case]


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all(
        [_rate(results), _every(results), _descent(results), _whole(results), _favourable(searched(results))]
    )


def _kept(results: Sequence[Result], kernel: str, name: str) -> dict[str, list[int]]:
    """Fixed-step runs in which a bound was kept at every step, of how many: the suitable start, and all starts."""
    table = {}
    for share in SHARES:
        for words, where in (("suitable", SUITABLE), ("all starts", {})):
            runs = fixed(results, kernel=kernel, share=share, **where)
            table[f"{share:g}/lambda_max, {words}"] = [sum(r.value[name] == 0 for r in runs), len(runs)]
    return table


def _told(table: dict[str, list[int]]) -> str:
    return "; ".join(f"{name} {kept} of {count}" for name, (kept, count) in table.items())


def _rate(results: Sequence[Result]) -> Claim:
    """An existence: some start and fixed step, gamma as it is at that start."""
    table = _kept(results, "gaussian", "violations")
    kept, count = (sum(table[f"{share:g}/lambda_max, all starts"][k] for share in SHARES) for k in (0, 1))
    return Claim(
        "Gaussian kernel, only W^Q trained: a start and a step exist with f_t <= (1 - eta gamma)^t f_0 [Theorem 2].",
        f"The bound was kept at every step in {kept} of {count} runs with a fixed step: {_told(table)}. "
        "Held: in at least one, as the theorem says that a start and a step exist.",
        scale_of(results),
        kept > 0 if enough(results) else None,
        table,
        rows=("B6", "B9"),
    )


def _every(results: Sequence[Result]) -> Claim:
    """The start chosen beforehand must keep it in every run; `share` is how much of gamma the run earned at least."""
    good = fixed(results, kernel="gaussian", share=SHARES[0], **SUITABLE)
    shares = sorted(_earned(r) for r in good)
    kept = sum(r.value["violations"] == 0 for r in good)
    fell, bound = (float(np.median([r.value[name] for r in good])) for name in ("fell_to", "bound"))
    return Claim(
        "(ours) With gamma at the start every run from small queries and large values keeps it, step 0.1/lambda_max.",
        f"Kept at every step in {kept} of {len(good)} runs; the rate was at least {shares[0]:.2g} times the promised "
        f"one in all of them. The loss fell to {fell:.2g} of its start, the bound to {bound:.2g} (medians): "
        "gamma falls along the way.",
        scale_of(results),
        kept == len(good) if enough(results) else None,
        {"earned": shares},
        rows=("B6",),
    )


def _earned(run: Result) -> float:
    """Smallest log(f_t/f_0) over its bound's logarithm, at the recorded steps."""
    loss, bound = (np.log(np.array(run.value[name][1:], dtype=float)) for name in ("loss", "rate_bound"))
    return float((loss / bound).min())


def _descent(results: Sequence[Result]) -> Claim:
    table = _kept(results, "softmax", "descent_violations")
    kept, count = table[f"{SHARES[0]:g}/lambda_max, suitable"]
    return Claim(
        "Softmax, only W^Q trained: there are a start and a step with f_t <= f_0 - (eta/2) sum |grad f|^2 [Theorem 2 "
        "with the factor of the descent lemma].",
        f"Runs in which it was kept at every step, eta fixed: {_told(table)}.",
        scale_of(results),
        kept == count if enough(results) else None,
        table,
        rows=("B7", "B9"),
    )


def _whole(results: Sequence[Result]) -> Claim:
    table = _kept(results, "softmax", "whole_violations")
    return Claim(
        "The same without the half: f_t <= f_0 - eta sum |grad f|^2 [poster, as its text was extracted].",
        f"Runs in which it was kept at every step: {_told(table)}. A step brings eta |grad f|^2 less half of eta^2 "
        "times the curvature along it: where that is positive no step keeps it (f = x^2/2 from any x).",
        scale_of(results),
        any(kept for kept, _ in table.values()) if enough(results) else None,
        table,
        rows=("B7",),
    )


def _favourable(results: Sequence[Result]) -> Claim:
    table = {
        f"{name}, scale {qk:g}": {
            k: converged(results, kernel=k, targets=name, query_key_scale=qk) for k in KERNELS
        }
        for name in TARGETS
        for qk in SCALES
    }
    totals = {k: sum(row[k][0] for row in table.values()) for k in KERNELS}
    words = "; ".join(f"{name}: {row['softmax'][0]} and {row['gaussian'][0]}" for name, row in table.items())
    return Claim(
        "The Gaussian kernel exhibits a much favorable behavior [abstract]; read as: it stalls less often.",
        f"Converged of {table[next(iter(table))]['softmax'][1]} with softmax and Gaussian: {words}; together "
        f"{totals['softmax']} and {totals['gaussian']}.",
        scale_of(results),
        totals["gaussian"] > totals["softmax"] if enough(results) else None,
        table,
        rows=("B8",),
    )


def draw(results: Sequence[Result]) -> Figure:
    label = "loss over the first loss"
    panels = tuple(
        Panel(
            f"{kernel}, {targets} targets".replace("gauss", "Gauss"),
            "step + 1",
            label,
            _curves(results, kernel, targets),
            log_x=True,
            log_y=True,
            y_range=RANGE,
            legend=(kernel, targets) == (KERNELS[0], "easy"),
        )
        for kernel in KERNELS
        for targets in TARGETS
    )
    words = "fixed step of 0.1 / lambda_max; dotted: the promised rate (Gaussian), thin level: no query goes below"
    scale = f"{words}; {scale_of(results)}"
    return Sheet("Theorem 2: only the queries are trained", panels, scale, columns=len(TARGETS)).draw()


def _curves(results: Sequence[Result], kernel: str, targets: str) -> tuple[Curve, ...]:
    """Every run of the smaller fixed step with its bound and, where it is positive, the floor of all queries."""
    curves = []
    runs = fixed(results, kernel=kernel, targets=targets, share=SHARES[0])
    for run in sorted(runs, key=lambda run: run.case["query_key_scale"]):
        strength = run.case["query_key_scale"]
        group, x = SCALES.index(strength), np.array(run.value["at"]) + 1.0
        curves.append(
            Curve(f"queries and keys x {strength:g}", x, np.maximum(run.value["loss"], FLOOR), group)
        )
        if kernel == "gaussian":
            curves.append(Curve("", x, np.array(run.value["rate_bound"], dtype=float), group, "third"))
        if run.value["floor"] > 0:
            curves.append(Curve("", x, np.full(len(x), run.value["floor"]), group, "thin"))
    return tuple(curves)
