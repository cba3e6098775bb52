"""Self-attention row by row: is a sharp teacher slow for gradient descent there, too? [said in the talk, not shown]

    F_ik = v . X_i^T softmax(X_i W x_ik)
Trained is W (and v): with keys x_k (outer) X_i this is prompt attention whose prompt is W, one sample per row, so that
every instrument of the laboratory applies. Three times counts as slower, fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.laboratory import descent
from edgewise.laboratory.prompt_attention import PromptAttention, prompt_of_ratio
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, select

from .common import decided, distinct, middle_of, portrait, seeds_of, shown, thinned

TOLERANCE = 0.01  # of the largest number in an entry; seeds scatter by 0.11 or more
GRID = {"gradient descent": (0.1, 0.3, 1.0, 3.0, 10.0), "adam": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)}
SLOWER, LONG = 3.0, 200


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = dict(samples=12, tokens=8, width=6) if full else dict(samples=5, tokens=4, width=3)
    seeds, steps = (3, 200) if full else (1, 4)
    return [
        size | {"ratio": ratio, "value": value, "method": method, "seed": seed, "steps": steps}
        for seed in range(seeds)
        for ratio in (10.0, 1e25)
        for value in ("frozen", "joint")
        for method in GRID
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    model, teacher, value, start, first = problem(case)
    joint = case["value"] == "joint"
    squares = model.joint() if joint else model.frozen(value)
    point = model.join(start, first) if joint else start
    unit = 1 / float(torch.linalg.matrix_norm(squares.jacobian(point), 2)) ** 2
    methods = {
        "gradient descent": lambda s: descent.gradient_descent(squares, s * unit),
        "adam": lambda s: descent.adam(squares, s),
    }
    step, run = descent.tuned(
        squares, point, methods[case["method"]], GRID[case["method"]], case["steps"], until=1e-12
    )
    steps, losses = thinned(run.losses, 40)
    there = portrait(model, teacher, value)
    return {"step": step, "steps": steps, "losses": losses, "final": losses[-1] / losses[0], "teacher": there}


def problem(
    case: dict[str, Any],
) -> tuple[PromptAttention, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows as samples; the teacher's W and v, and the student's."""
    generator = torch.Generator().manual_seed(case["seed"])
    N, n, d = case["samples"], case["tokens"], case["width"]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    X = normal(N, n, d)
    keys = torch.einsum("ije,ikd->ikjed", X, X).reshape(N * n, n, d * d)  # logit kj = x_j W x_k
    tokens = X[:, None].expand(N, n, n, d).reshape(N * n, n, d)
    bare = PromptAttention(tokens, keys, torch.zeros(N * n, 1, dtype=torch.float64))
    direction, value, start, first = (
        normal(d * d),
        normal(d, 1) / d**0.5,
        normal(d * d) / d,
        normal(d, 1) / d**0.5,
    )
    teacher = prompt_of_ratio(bare, direction, case["ratio"])
    return PromptAttention(tokens, keys, bare.predictions(teacher, value)), teacher, value, start, first


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_holds(results), _rows(results)])


def _scale(results: Sequence[Result]) -> str:
    case = results[0].case
    rows = f"{case['samples']} sequences of {case['tokens']} tokens, d = {case['width']}: {case['width'] ** 2} weights"
    return f"{rows} for {case['samples'] * case['tokens']} rows, {case['steps']} steps, {seeds_of(results)} seeds"


def _holds(results: Sequence[Result]) -> Claim:
    mild, sharp = distinct(results, "ratio")[0], distinct(results, "ratio")[-1]
    final = {
        (value, method, ratio): middle_of(select(results, value=value, method=method, ratio=ratio), "final")
        for value in ("frozen", "joint")
        for method in GRID
        for ratio in (mild, sharp)
    }
    growth = {
        value: final[value, "gradient descent", sharp] / final[value, "gradient descent", mild]
        for value in ("frozen", "joint")
    }
    said = "; ".join(
        f"value {value}: gradient descent {final[value, 'gradient descent', mild]:.2g} and "
        f"{final[value, 'gradient descent', sharp]:.2g}, Adam {final[value, 'adam', mild]:.2g} and "
        f"{final[value, 'adam', sharp]:.2g}"
        for value in growth
    )
    return Claim(
        "In experiments with self-attention, a big softmax with different rows, these observations hold [talk].",
        f"Share of the loss that is left, median, for teachers of ratio {mild:g} and {sharp:g}: {said}.",
        _scale(results),
        decided(min(growth.values()) > SLOWER, results, LONG),
        {f"{value}, {method}, {ratio:g}": loss for (value, method, ratio), loss in final.items()},
        rows=("A20",),
    )


def _rows(results: Sequence[Result]) -> Claim:
    """As `teacher_student` judges it for one prompt: does the Hessian's condition number follow that of the rows?"""
    mild, sharp = distinct(results, "ratio")[0], distinct(results, "ratio")[-1]
    rows, hessian = {}, {}
    for ratio in (mild, sharp):
        runs = select(results, ratio=ratio, value="frozen", method="adam")
        rows[ratio] = middle_of(runs, "row_condition", "teacher")
        hessian[ratio] = float(
            np.median(
                [r.value["teacher"]["hessian_largest"] / r.value["teacher"]["hessian_smallest"] for r in runs]
            )
        )
    growth = hessian[sharp] / hessian[mild], rows[sharp] / rows[mild]
    return Claim(
        "There, too, the cause is the condition number of the softmax's Jacobian, row by row [talk].",
        f"From the flat to the sharp teacher the median condition number of a row's J grows {growth[1]:.1g} times, "
        f"that of the Hessian in W {growth[0]:.2g} times.",
        _scale(results),
        decided(growth[0] > growth[1], results, LONG),
        {"hessian": list(hessian.values()), "rows": list(rows.values())},
        rows=("A20",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = tuple(_losses(results, value) for value in ("frozen", "joint"))
    return Sheet("Self-attention learns from a flat and from a sharp teacher", panels, _scale(results)).draw()


def _losses(results: Sequence[Result], value: str) -> Panel:
    curves = []
    for group, method in enumerate(GRID):
        for ratio, role in zip(distinct(results, "ratio"), ("third", "line"), strict=True):
            for run in select(results, value=value, method=method, ratio=ratio):
                y = np.maximum(np.array(run.value["losses"]) / run.value["losses"][0], 1e-13)
                x, label = np.array(run.value["steps"]) + 1.0, f"{shown(method)}, teacher {ratio:g}"
                curves.append(Curve(label, x, y, group, role))
    return Panel(
        f"value {value}", "step + 1", "loss over the first loss", tuple(curves), log_x=True, log_y=True
    )
