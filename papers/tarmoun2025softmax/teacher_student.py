"""Under-parametrized teacher and student: sharp teachers are slow to learn, and why [Tarmoun 2025, talk].

A student with more samples than coordinates learns from teachers of mean ratio max s / min s from 10 to 1e25, by
gradient descent, Adam, the natural gradient and damped Gauss-Newton, each with the best step of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.laboratory import descent
from edgewise.laboratory.prompt_attention import teacher_student
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, select

from .common import decided, distinct, mean_of, middle_of, portrait, seeds_of, shown, thinned

TOLERANCE = 0.008  # of the largest number in an entry; seeds scatter by 0.078 or more
METHODS = ("gradient descent", "adam", "natural gradient", "gauss-newton")
GRID = {
    "gradient descent": (0.1, 0.3, 1.0, 3.0, 10.0),
    "adam": (0.003, 0.01, 0.03, 0.1, 0.3),
    "natural gradient": (0.03, 0.1, 0.3, 1.0),
}
TARGET = 1e-2
SOLVED = 1e-6
LONG = 1000  # steps from which a run can decide


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = dict(samples=100, tokens=20, width=20) if full else dict(samples=40, tokens=8, width=8)
    ratios, seeds, steps = ((10.0, 1e8, 1e25), 5, 1500) if full else ((10.0, 1e8), 1, 40)
    return [
        {**size, "ratio": ratio, "value": value, "method": method, "seed": seed, "steps": steps}
        for seed in range(seeds)
        for ratio in ratios
        for value in ("frozen", "joint")
        for method in METHODS
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The best run of one method, where it ends, and what the teacher's place looks like."""
    made = teacher_student(case["samples"], case["tokens"], case["width"], case["ratio"], case["seed"])
    model, joint = made.model, case["value"] == "joint"
    problem = model.joint() if joint else model.frozen(made.teacher_value)
    start = model.join(made.prompt, made.value) if joint else made.prompt
    step, run = _best(problem, start, case["method"], case["steps"])
    p, V = model.split(run.last) if joint else (run.last, made.teacher_value)
    steps, losses = thinned(run.losses)
    return {
        "step": step,
        "steps": steps,
        "losses": losses,
        "final": losses[-1],
        "target": run.first_below(TARGET),
        "student": portrait(model, p, V),
        "teacher": portrait(model, made.teacher_prompt, made.teacher_value),
    }


def _best(problem: descent.LeastSquares, start: torch.Tensor, method: str, steps: int) -> tuple[float, Any]:
    """Gradient descent's grid is in units of 1/L at the start; the second-order methods get a tenth of the steps."""
    if method == "gauss-newton":
        return 0.0, descent.descend(
            problem, start, descent.damped_gauss_newton(problem), steps // 10, until=1e-12
        )
    makers = {
        "gradient descent": descent.gradient_descent,
        "adam": descent.adam,
        "natural gradient": descent.natural_gradient,
    }
    unit = 1.0
    if method == "gradient descent":
        unit = 1 / float(torch.linalg.matrix_norm(problem.jacobian(start), 2)) ** 2
    budget = steps // 5 if method == "natural gradient" else steps
    grid = [unit * share for share in GRID[method]]
    return descent.tuned(problem, start, lambda s: makers[method](problem, s), grid, budget, until=1e-12)


def claim(results: Sequence[Result]) -> Claim:
    parts = (_slower, _because, _cure, _order, _grows, _open)
    return Claim.all([part(results) for part in parts])


def _extremes(results: Sequence[Result]) -> tuple[float, float]:
    ratios = distinct(results, "ratio")
    return ratios[0], ratios[-1]


def _scale(results: Sequence[Result]) -> str:
    case = results[0].case
    size = f"N = {case['samples']}, n = {case['tokens']}, d = {case['width']}"
    return f"{size}, {case['steps']} steps, best step of a grid, {seeds_of(results)} seeds"


def _slower(results: Sequence[Result]) -> Claim:
    mild, sharp = _extremes(results)
    found, held = {}, True
    for value in ("frozen", "joint"):
        for ratio in (mild, sharp):
            runs = select(results, ratio=ratio, value=value, method="gradient descent")
            found[f"{value}, r = {ratio:g}"] = middle_of(runs, "final")
        held &= found[f"{value}, r = {sharp:g}"] > 3 * found[f"{value}, r = {mild:g}"]
    said = "; ".join(f"{name}: {loss:.2g}" for name, loss in found.items())
    return Claim(
        "Gradient descent learns a teacher of sharp attention more slowly than one of flat attention.",
        f"Median loss where gradient descent stopped: {said}.",
        _scale(results),
        decided(held, results, LONG),
        found,
        rows=("A30", "A32"),
    )


def _because(results: Sequence[Result]) -> Claim:
    """If kappa of the Hessian grew like (max/min)^2, it would grow as the rows' condition number squared."""
    rows, hessian = {}, {}
    for ratio in distinct(results, "ratio"):
        runs = select(results, ratio=ratio, value="frozen", method="gradient descent")
        rows[ratio] = middle_of(runs, "row_condition", "teacher")
        tops, lows = (
            np.array([r.value["teacher"][f"hessian_{end}"] for r in runs]) for end in ("largest", "smallest")
        )
        hessian[ratio] = float(np.median(tops / lows))
    mild, sharp = _extremes(results)
    growth, spread = (
        hessian[sharp] / hessian[mild],
        {
            r: middle_of(select(results, ratio=r, value="frozen"), "gradient_spread", "teacher")
            for r in (mild, sharp)
        },
    )
    listed = ", ".join(f"{hessian[r]:.1e} (r = {r:g}, rows {rows[r]:.1e})" for r in hessian)
    return Claim(
        "It is slow because the condition number grows at least like (max s / min s)^2.",
        f"The condition number of the true Hessian G^T G at the teacher: {listed}; it grows {growth:.1f} times while "
        f"that of a row grows {rows[sharp] / rows[mild]:.0e} times. What grows is the spread of per-sample gradients, "
        f"{spread[mild]:.0f} to {spread[sharp]:.0f}, and the distance to walk.",
        _scale(results),
        decided(growth > rows[sharp] / rows[mild], results, LONG),
        {
            name: {f"{r:g}": value for r, value in numbers.items()}
            for name, numbers in (
                ("hessian_condition", hessian),
                ("row_condition", rows),
                ("gradient_spread", spread),
            )
        },
        rows=("A28", "A30"),
    )


def _cure(results: Sequence[Result]) -> Claim:
    _, sharp = _extremes(results)
    final = {m: middle_of(select(results, ratio=sharp, value="frozen", method=m), "final") for m in METHODS}
    joint = {m: middle_of(select(results, ratio=sharp, value="joint", method=m), "final") for m in METHODS}
    better = (
        final["gauss-newton"] < 0.1 * final["gradient descent"] and final["adam"] < final["gradient descent"]
    )
    said = ", ".join(f"{m} {final[m]:.1g} (joint {joint[m]:.1g})" for m in METHODS)
    return Claim(
        "Preconditioning (Adam, second order) removes the slow-down of a prompt with a frozen value.",
        f"Sharpest teacher, value frozen, median final loss: {said}.",
        _scale(results),
        decided(better, results, LONG),
        {"frozen": final, "joint": joint},
        rows=("A37", "A39"),
    )


def _order(results: Sequence[Result]) -> Claim:
    """Of the same order: within a factor of ten, in the median over seeds, for both teachers."""
    mild, sharp = _extremes(results)
    reached = {
        f"r = {ratio:g}": float(
            np.median(
                [
                    r.value["student"]["log10_mean_ratio"]
                    for r in select(results, ratio=ratio, value="joint", method="gradient descent")
                ]
            )
        )
        for ratio in (mild, sharp)
    }
    wanted = dict(zip(reached, np.log10([mild, sharp]).tolist(), strict=True))
    near = {name: abs(reached[name] - wanted[name]) < 1 for name in reached}
    said = "; ".join(f"{name}: 10^{value:.1f} of 10^{wanted[name]:.0f}" for name, value in reached.items())
    return Claim(
        "(ours) Gradient descent ends at a ratio of the teacher's order if the value is trained, too.",
        f"Mean ratio max s / min s that the student reached, median: {said}.",
        _scale(results),
        decided(all(near.values()), results, LONG),
        reached,
        rows=("A33",),
    )


def _grows(results: Sequence[Result]) -> Claim:
    """Sparse rows need a long prompt; a long prompt need not give them."""
    norms, ratios = np.array(
        [[r.value["student"][name] for name in ("prompt_norm", "log10_mean_ratio")] for r in results]
    ).T
    flat, sharp = norms[ratios < 2], norms[ratios > 20]
    known = bool(len(flat) and len(sharp))
    ends = (flat.max(), sharp.min()) if known else (math.nan, math.nan)
    return Claim(
        "In order to get the softmax output to be approximately sparse, the norm of p has to grow [talk].",
        f"Over the ends of {len(results)} runs |p| is at most {ends[0]:.1f} where the ratio is below 100 and at least "
        f"{ends[1]:.1f} where it is above 1e20. Held: the second is larger.",
        _scale(results),
        decided(ends[0] < ends[1], results, LONG),
        {},
        rows=("A15",),
    )


def _open(results: Sequence[Result]) -> Claim:
    """No theorem here; which methods solve the problem from these starts, at every sharpness."""
    solved = {}
    for value in ("frozen", "joint"):
        for method in METHODS:
            runs = select(results, value=value, method=method)
            solved[f"{method}, {value}"] = [sum(r.value["final"] < SOLVED for r in runs), len(runs)]
    said = ", ".join(f"{name} {done} of {count}" for name, (done, count) in solved.items())
    return Claim(
        "(open) A global analysis of under-parametrized training, and of adaptive methods [talk].",
        f"Open. Evidence: runs that reach a loss below {SOLVED:g}, over all teachers: {said}. With a "
        "frozen value second-order steps always get there: these starts meet no bad minimum; jointly they do.",
        _scale(results),
        None,
        solved,
        rows=("A39",),
    )


def draw(results: Sequence[Result]) -> Figure:
    mild, sharp = _extremes(results)
    panels = [_losses(results, value, ratio) for value in ("frozen", "joint") for ratio in (mild, sharp)]
    return Sheet(
        "Prompt attention learns from a flat and from a sharp teacher",
        (*panels, _portraits(results), _spectra(results), _sizes(results), _reached(results)),
        _scale(results),
        columns=2,
    ).draw()


def _losses(results: Sequence[Result], value: str, ratio: float) -> Panel:
    curves = []
    for group, method in enumerate(METHODS):
        for i, run in enumerate(select(results, ratio=ratio, value=value, method=method)):
            steps = np.array(run.value["steps"], dtype=float) + 1
            curves.append(
                Curve(shown(method) if i == 0 else "_", steps, np.maximum(run.value["losses"], 1e-13), group)
            )
    return Panel(
        f"value {value}, teacher ratio {ratio:g}",
        "step + 1",
        "loss",
        tuple(curves),
        log_x=True,
        log_y=True,
        legend=(value, ratio) == ("frozen", max(distinct(results, "ratio"))),
        legend_at="lower right",
    )


def _portraits(results: Sequence[Result]) -> Panel:
    at = np.array(distinct(results, "ratio"))
    runs = [select(results, ratio=r, value="frozen", method="gradient descent") for r in at]
    hessian = [
        np.median([x.value["teacher"]["hessian_largest"] / x.value["teacher"]["hessian_smallest"] for x in g])
        for g in runs
    ]
    numbers = {
        "condition of a row's J (median)": [middle_of(g, "row_condition", "teacher") for g in runs],
        "condition of the Hessian": hessian,
        "spread of gradients": [middle_of(g, "gradient_spread", "teacher") for g in runs],
    }
    curves = tuple(Curve(name, at, np.array(y), i) for i, (name, y) in enumerate(numbers.items()))
    return Panel(
        "at the teacher",
        "teacher ratio r",
        "largest over smallest",
        curves,
        legend_at="upper left",
        log_x=True,
        log_y=True,
    )


def _spectra(results: Sequence[Result]) -> Panel:
    """All eigenvalues of G^T G at the teacher of the first seed, made anew: it takes no time."""
    curves = []
    for group, ratio in enumerate(distinct(results, "ratio")):
        case = select(results, ratio=ratio)[0].case
        made = teacher_student(case["samples"], case["tokens"], case["width"], ratio, case["seed"])
        values = torch.linalg.svdvals(
            made.model.prompt_jacobian(made.teacher_prompt, made.teacher_value)
        ).square()
        curves.append(Curve(f"r = {ratio:g}", np.arange(1.0, len(values) + 1), values.numpy(), group))
    return Panel(
        "spectrum of GᵀG at the teacher, seed 0",
        "number of the eigenvalue",
        "eigenvalue",
        tuple(curves),
        log_y=True,
    )


def _sizes(results: Sequence[Result]) -> Panel:
    at = np.array(distinct(results, "ratio"))
    runs = [select(results, ratio=r, value="frozen", method="gradient descent") for r in at]
    curves = [
        Curve(f"{name}, {who}", at, np.array([mean_of(g, key, who) for g in runs]), group, role)
        for group, (name, key) in enumerate((("|p|", "prompt_norm"), ("saturated rows", "saturated")))
        for who, role in (("teacher", "line"), ("student", "points"))
    ]
    return Panel(
        "length of the prompt, saturated rows", "teacher ratio r", "length, share", tuple(curves), log_x=True
    )


def _reached(results: Sequence[Result]) -> Panel:
    at = np.array(distinct(results, "ratio"))
    curves = [Curve("teacher", np.log10(at), np.log10(at), 6, "third")]
    for group, method in enumerate(METHODS):
        runs = [select(results, ratio=r, value="frozen", method=method) for r in at]
        y = [mean_of(group_of, "log10_mean_ratio", "student") for group_of in runs]
        curves.append(Curve(shown(method), np.log10(at), np.array(y), group, "points"))
    return Panel(
        "ratio the student reached, value frozen",
        "log10 of the teacher's ratio",
        "log10 of the student's",
        tuple(curves),
    )
