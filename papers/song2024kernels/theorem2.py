"""Theorem 2 along runs: only W^Q is trained; who converges, who stalls, and was it known beforehand [Song 2024].

Targets `easy` (of unit size, with values three times theirs), `unit`, and `far` (targets three times as large); queries
and keys of three scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.kernel_layer import random_layer
from edgewise.laboratory.kernel_theorems import descend_queries
from edgewise.study import Claim, Result, rounded, select
from edgewise.view import Curve, Panel, Sheet

KERNELS = ("softmax", "gaussian")
TARGETS = {"easy": (3.0, 1.0), "unit": (1.0, 1.0), "far": (1.0, 3.0)}  # scales of W^V and of the targets
SCALES = (0.3, 1.0, 2.0)  # of queries and keys
CONVERGED = 1e-6  # share of the first loss
POINTS = 40  # of a curve that are kept
FLOOR, RANGE = 1e-24, (1e-25, 30.0)  # of the losses drawn


def cases(scale: str = "small") -> list[dict[str, Any]]:
    seeds, steps = (3, 1000) if scale == "full" else (1, 8)
    shared = {"samples": 3, "tokens": 5, "width": 16, "heads": 4, "head_width": 16, "steps": steps}
    return [
        shared | {"kernel": kernel, "targets": targets, "query_key_scale": qk, "seed": seed}
        for seed in range(seeds)
        for targets in TARGETS
        for qk in SCALES
        for kernel in KERNELS
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    value_scale, target_scale = TARGETS[case["targets"]]
    sizes = (case[name] for name in ("samples", "tokens", "width", "heads", "head_width"))
    layer = random_layer(
        *sizes, case["kernel"], query_key_scale=case["query_key_scale"], value_scale=value_scale,
        target_scale=target_scale, seed=case["seed"],
    )  # fmt: skip
    run = descend_queries(layer, case["steps"])
    first = float(run.losses[0])
    kept = np.unique(np.geomspace(1, len(run.losses), POINTS).astype(int)) - 1
    return {
        "fell_to": run.fell_to, "floor": run.start.floor / first, "gamma": run.start.gamma,
        "gamma_kept": float(run.gammas.min()) / run.start.gamma if len(run.gammas) and run.start.gamma > 0 else None,
        "bound": float(run.rate_bound[-1]) / first, "violations": run.violations, "steps": len(run.steps),
        "exponent": run.start.mean_exponent if case["kernel"] == "gaussian" else None,
        "at": kept.tolist(), "loss": rounded((run.losses / first)[kept], 4),
        "rate_bound": rounded((run.rate_bound / first)[kept], 4),
    }  # fmt: skip


def scale_of(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    rows, columns = case["samples"] * case["tokens"], case["heads"] * case["width"]
    return f"N n = {rows}, H D = {columns}, d = {case['head_width']}, at most {case['steps']} steps, {seeds} seeds"


def converged(results: Sequence[Result], **where: Any) -> list[int]:
    """How many runs fell to a millionth, of how many."""
    runs = select(results, **where)
    return [sum(r.value["fell_to"] < CONVERGED for r in runs), len(runs)]


def enough(results: Sequence[Result]) -> bool:
    return len({r.case["seed"] for r in results}) >= 3


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_rate(results), _stall(results), _favourable(results)])


def _rate(results: Sequence[Result]) -> Claim:
    """There is a start from which the Gaussian converges at the promised rate: large values, small queries."""
    good = select(results, kernel="gaussian", targets="easy", query_key_scale=0.3)
    done = converged(good)
    above = sum(r.value["violations"] > 0 for r in select(results, kernel="gaussian"))
    every = len(select(results, kernel="gaussian"))
    fell, bound = (np.array([max(r.value[name], 1e-300) for r in good]) for name in ("fell_to", "bound"))
    powers = np.log(fell[bound < 1]) / np.log(bound[bound < 1])
    held = done[0] == done[1] and not any(r.value["violations"] for r in good)
    return Claim(
        "Gaussian kernel, only W^Q trained: f_t <= (1 - eta gamma)^t f_0 from a suitable start [Theorem 2].",
        f"From small queries and large values {done[0]} of {done[1]} runs fall to a millionth, by "
        f"{np.median(powers) if len(powers) else 0:.2f} times as many powers of ten as promised (median). With gamma "
        f"at the start and the steps of our line search {above} of {every} Gaussian runs are above the bound at some "
        "step (gamma falls, steps grow; a fixed step was not tried).",
        scale_of(results), held if enough(results) else None,
        {"converged": done, "above_the_bound": [above, every], "powers_over_promised": sorted(powers.tolist())},
    )  # fmt: skip


def _stall(results: Sequence[Result]) -> Claim:
    """Softmax may stop at f > 0; the range of its outputs says where."""
    far = select(results, kernel="softmax", targets="far")
    stalled = [r for r in far if r.value["fell_to"] >= CONVERGED]
    ratio = [r.value["fell_to"] / r.value["floor"] for r in stalled if r.value["floor"] > 0]
    words = f"{np.median(ratio):.2f} times it in the median, {min(ratio):.2f} to {max(ratio):.2f}" if ratio else "none"
    return Claim(
        "Softmax, only W^Q trained: it may end in suboptimal solutions, only gradients must vanish [Theorem 2].",
        f"With far targets {len(stalled)} of {len(far)} runs stall, {len(ratio)} of them above a floor that was known "
        f"before training: they end at {words}.",
        scale_of(results), len(stalled) > 0 if enough(results) else None, {"end_over_floor": sorted(ratio)},
    )  # fmt: skip


def _favourable(results: Sequence[Result]) -> Claim:
    table = {
        f"{name}, scale {qk:g}": {k: converged(results, kernel=k, targets=name, query_key_scale=qk) for k in KERNELS}
        for name in TARGETS for qk in SCALES
    }  # fmt: skip
    totals = {k: sum(row[k][0] for row in table.values()) for k in KERNELS}
    words = "; ".join(f"{name}: {row['softmax'][0]} and {row['gaussian'][0]}" for name, row in table.items())
    return Claim(
        "The Gaussian kernel exhibits a much favorable behavior [abstract]; read as: it stalls less often.",
        f"Converged of {table[next(iter(table))]['softmax'][1]} with softmax and Gaussian: {words}; together "
        f"{totals['softmax']} and {totals['gaussian']}.",
        scale_of(results), totals["gaussian"] > totals["softmax"] if enough(results) else None, table,
    )  # fmt: skip


def draw(results: Sequence[Result]) -> Figure:
    label = "loss over the first loss"
    panels = tuple(
        Panel(f"{kernel}, {targets} targets", "step + 1", label, _curves(results, kernel, targets), log_x=True,
              log_y=True, y_range=RANGE, legend=(kernel, targets) == (KERNELS[0], "easy"))
        for kernel in KERNELS
        for targets in TARGETS
    )  # fmt: skip
    scale = f"dotted: bound, thin level: floor of the range; {scale_of(results)}"
    return Sheet("Theorem 2: only the queries are trained", panels, scale, columns=len(TARGETS)).draw()


def _curves(results: Sequence[Result], kernel: str, targets: str) -> tuple[Curve, ...]:
    """Every run with its bound and, where it is positive, the floor that no query can pass."""
    curves = []
    for run in sorted(select(results, kernel=kernel, targets=targets), key=lambda run: run.case["query_key_scale"]):
        strength = run.case["query_key_scale"]
        group, x = SCALES.index(strength), np.array(run.value["at"]) + 1.0
        curves.append(Curve(f"queries and keys x {strength:g}", x, np.maximum(run.value["loss"], FLOOR), group))
        curves.append(Curve("", x, np.array(run.value["rate_bound"], dtype=float), group, "third"))
        if run.value["floor"] > 0:
            curves.append(Curve("", x, np.full(len(x), run.value["floor"]), group, "thin"))
    return tuple(curves)
