"""Under-parametrized and trained to the end: which ratio max s / min s does the student reach [Tarmoun 2025, talk]?

The talk's figure shows the student at the teacher's order of ratio; whether the value is trained is not said. Fixed
before the run: only the prompt is trained, at the best constant step of a grid, until the loss is 1e-8 of its start or
for 30,000 steps. Held if the logarithm of the mean ratio is within 5 % of the teacher's in 8 of 9 seeds, at each ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.laboratory import descent
from edgewise.laboratory.prompt_attention import log_mean_ratio, teacher_student
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, select

from .common import decided, distinct, seeds_of, thinned

TOLERANCE = 0.01  # of the largest number in an entry; seeds scatter by more
GRID = (0.3, 1.0, 3.0, 10.0)  # steps in units of 1/L at the start
TRIAL = 1500  # steps after which the best of the grid goes on alone
SOLVED = 1e-8  # of the first loss
NEAR, MOST = 0.05, 8 / 9


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = dict(samples=100, tokens=20, width=20) if full else dict(samples=20, tokens=5, width=5)
    return [
        {**size, "ratio": ratio, "seed": seed, "steps": 30_000 if full else 60}
        for ratio in (10.0, 1e8, 1e25)
        for seed in range(100, 109 if full else 101)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The run at the best step of the grid, and the ratio along it."""
    made = teacher_student(case["samples"], case["tokens"], case["width"], case["ratio"], case["seed"])
    problem = made.model.frozen(made.teacher_value)
    unit = 1 / float(torch.linalg.matrix_norm(problem.jacobian(made.prompt), 2)) ** 2
    until = SOLVED * float(problem.loss(made.prompt))
    short = min(TRIAL, case["steps"])

    def method(step: float) -> descent.Field:
        return descent.gradient_descent(problem, step)

    step, _ = descent.tuned(problem, made.prompt, method, [unit * g for g in GRID], short, until)
    looks = np.unique(np.geomspace(1, case["steps"], 30).astype(int)).tolist()
    run = descent.descend(problem, made.prompt, method(step), case["steps"], until, looks)
    points = {**run.points, len(run.losses) - 1: run.last}
    steps, losses = thinned(run.losses)
    return {
        "step": step / unit,
        "steps": steps,
        "losses": losses,
        "taken": len(run.losses) - 1,
        "solved": bool(run.losses[-1] <= until),
        "at": [int(t) for t in points],
        "ratios": [float(f"{log_mean_ratio(made.model, p) / math.log(10):.5g}") for p in points.values()],
        "teacher": float(f"{log_mean_ratio(made.model, made.teacher_prompt) / math.log(10):.5g}"),
    }


def claim(results: Sequence[Result]) -> Claim:
    found, said = {}, []
    for ratio in distinct(results, "ratio"):
        runs = select(results, ratio=ratio)
        errors = np.array([abs(r.value["ratios"][-1] / r.value["teacher"] - 1) for r in runs])
        found[f"{ratio:g}"] = float(np.mean(errors <= NEAR))
        ends = np.array([r.value["ratios"][-1] for r in runs])
        said.append(
            f"10^{np.median(ends):.1f} (10^{ends.min():.1f} to 10^{ends.max():.1f}) of 10^{math.log10(ratio):.0f}, "
            f"within 5 % in {int((errors <= NEAR).sum())} of {len(runs)}, "
            f"solved in {sum(r.value['solved'] for r in runs)}"
        )
    case = results[0].case
    return Claim(
        "Under-parametrized, gradient descent ends at a ratio of the teacher's order [talk]; the value frozen.",
        f"Mean ratio that the student reached: {'; '.join(said)}. Held: within 5 % of the logarithm in 8 of 9 seeds, "
        "at each ratio.",
        f"N = {case['samples']}, n = d = {case['width']}, to 1e-8 of the first loss or {case['steps']:,} steps, "
        f"{seeds_of(results)} seeds",
        decided(all(share >= MOST - 1e-9 for share in found.values()), results, 30_000),
        found,
        rows=("A33",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = []
    for ratio in distinct(results, "ratio"):
        runs = select(results, ratio=ratio)
        curves = [
            Curve("student" if i == 0 else "_", np.array(r.value["at"]) + 1.0, np.array(r.value["ratios"]), 0)
            for i, r in enumerate(runs)
        ]
        ends = np.array([1.0, max(r.value["taken"] for r in runs) + 1.0])
        curves.append(Curve("teacher", ends, np.full(2, math.log10(ratio)), 6, "third"))
        panels.append(
            Panel(
                f"teacher ratio {ratio:g}", "step + 1", "log10 of the mean ratio", tuple(curves), log_x=True
            )
        )
    return Sheet(
        "The student's attention becomes as sharp as the teacher's", tuple(panels), "one line a seed"
    ).draw()
