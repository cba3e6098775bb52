"""Prompt attention with other convex losses: logistic, Huber, and a strongly convex one [Tarmoun 2025, talk].

`flow`: the rows under gradient flow against the coupled replicator equation with that loss's slope. `rate`: d > N, how
straight the logarithm of the loss falls. `certified`: keys scaled down, the theorem's promise along the run. `sharp`:
d < N, teachers of flat and of sharp attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from edgewise.laboratory.descent import flow
from edgewise.laboratory.prompt_attention import (
    LOSSES,
    ConvexLoss,
    PromptAttention,
    certificate,
    fitted,
    risk,
    risk_gradients,
    row_slope,
    teacher_student,
)
from edgewise.laboratory.replicator import coupled
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .common import decided, middle_of, seeds_of, shown, thinned

TOLERANCE = 0.0005  # of the largest number in an entry; seeds scatter by 0.0049 or more
SIZES = {"rate": (8, 5, 20), "sharp": (30, 6, 6), "certified": (4, 4, 40), "flow": (4, 4, 5)}  # N, n, d
RATIOS, SLOWER, LONG = (10.0, 1e8), 3.0, 100
GRID = (0.1, 0.3, 1.0, 3.0, 10.0)
FLOOR = 1e-10  # of a loss over the first loss: below, its digits are gone


def cases(scale: str = "small") -> list[dict[str, Any]]:
    seeds, steps = (3, 150) if scale == "full" else (1, 3)
    return [
        {"kind": kind, "loss": name, "ratio": ratio, "seed": seed, "steps": steps}
        for kind in SIZES
        for name in LOSSES
        for ratio in (RATIOS if kind == "sharp" else RATIOS[:1])
        for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    made, loss = teacher_student(*SIZES[case["kind"]], case["ratio"], case["seed"]), LOSSES[case["loss"]]
    model = fitted(made.model, loss)
    if case["kind"] == "flow":
        return _flow(model, loss, made.prompt, made.teacher_value)
    if case["kind"] == "certified":
        weak = PromptAttention(model.tokens, 1e-4 * model.keys, model.targets)
        promise = certificate(weak, made.prompt, made.value, loss)
        losses = _run(
            weak, loss, made.prompt, made.value, promise.step if promise.applies else 0.0, case["steps"]
        )
        return {
            "applies": promise.applies,
            "promised": promise.rate,
            "worst": max(losses[t + 1] / losses[t] for t in range(case["steps"])),
        }
    return _descent(case, model, loss, made.prompt, made.value)


def _flow(model: PromptAttention, loss: ConvexLoss, p: Tensor, V: Tensor) -> dict[str, Any]:
    times = [0.1, 0.3, 1.0]
    path = flow(lambda q: -risk_gradients(model, loss, q, V)[0], p, times)
    truth = torch.stack([model.log_rows(q).exp() for q in path])
    rows = flow(coupled(model.keys, row_slope(model, loss, V)), model.log_rows(p).exp(), times)
    return {"apart": float((rows - truth).abs().max()), "moved": float((truth[-1] - truth[0]).abs().max())}


def _run(
    model: PromptAttention, loss: ConvexLoss, p: Tensor, V: Tensor, step: float, steps: int
) -> list[float]:
    losses = [risk(model, loss, p, V)]
    for _ in range(steps):
        first, second = risk_gradients(model, loss, p, V)
        p, V = p - step * first, V - step * second
        losses.append(risk(model, loss, p, V))
    return losses


def _descent(
    case: dict[str, Any], model: PromptAttention, loss: ConvexLoss, p: Tensor, V: Tensor
) -> dict[str, Any]:
    """Prompt and value by gradient descent; the grid is in units of one over the curvature at the start."""
    J = torch.cat([model.prompt_jacobian(p, V), model.value_jacobian(p)], -1)
    unit = 1 / (loss.curvatures[1] * float(torch.linalg.matrix_norm(J, 2)) ** 2)
    runs = {share: _run(model, loss, p, V, unit * share, case["steps"]) for share in GRID}
    share, best = min(runs.items(), key=lambda run: run[1][-1] if math.isfinite(run[1][-1]) else math.inf)
    steps, losses = thinned(torch.tensor(best), 30)
    late = np.log(np.maximum(best[len(best) // 2 :], 1e-300))
    straight = float(np.corrcoef(np.arange(len(late)), late)[0, 1] ** 2)
    return {
        "share": share,
        "steps": steps,
        "losses": rounded(losses, 5),
        "final": best[-1] / best[0],
        "straightness": straight,
        "factor": math.exp((late[-1] - late[0]) / max(len(late) - 1, 1)),
    }


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_replicates(results), _linear(results), _certified(results), _slower(results)])


def _scale(results: Sequence[Result], *kinds: str) -> str:
    sizes = "; ".join(
        f"{kind}: N = {N}, n = {n}, d = {d}" for kind, (N, n, d) in SIZES.items() if kind in kinds
    )
    return f"{sizes}, {results[0].case['steps']} steps, {seeds_of(results)} seeds"


def _replicates(results: Sequence[Result]) -> Claim:
    worst = {name: max(r.value["apart"] for r in select(results, kind="flow", loss=name)) for name in LOSSES}
    return Claim(
        "Under gradient flow the rows follow a replicator equation, for a loss that is differentiable [talk].",
        f"Rows differ from the softmax of the prompt's flow by at most {_told(worst, '.0e')}.",
        _scale(results, "flow"),
        max(worst.values()) < 1e-6,
        worst,
        rows=("A10", "A21"),
    )


def _told(numbers: dict[str, float], form: str) -> str:
    return ", ".join(f"{value:{form}} ({name})" for name, value in numbers.items())


def line(run: Result) -> tuple[float, float]:
    """R^2 of the straight line through the logarithm of the loss, and its factor per step, over the second half of the
    steps in which the loss is above what double precision leaves of it.
    """
    x, y = np.array(run.value["steps"], dtype=float), np.array(run.value["losses"]) / run.value["losses"][0]
    x, y = x[y > FLOOR], np.log(y[y > FLOOR])
    late = x >= x[-1] / 2
    if late.sum() < 3:
        return 0.0, 1.0
    slope = np.polyfit(x[late], y[late], 1)[0]
    return float(np.corrcoef(x[late], y[late])[0, 1] ** 2), math.exp(slope)


def _linear(results: Sequence[Result]) -> Claim:
    """Straight: R^2 above 0.95, and a factor below 0.999, in the median of the seeds."""
    lines = {name: [line(r) for r in select(results, kind="rate", loss=name)] for name in LOSSES}
    straight = {name: float(np.median([pair[0] for pair in pairs])) for name, pairs in lines.items()}
    factors = {name: float(np.median([pair[1] for pair in pairs])) for name, pairs in lines.items()}
    held = min(straight.values()) > 0.95 and max(factors.values()) < 0.999
    return Claim(
        "With d >= N gradient descent converges at a linear rate for the square or a strongly convex loss [talk]; here "
        "also for logistic and Huber, which are not.",
        f"Factor per step, median: {_told(factors, '.4f')}; R^2 of the straight line: {_told(straight, '.3f')}.",
        _scale(results, "rate"),
        decided(held, results, LONG),
        {"factors": factors, "straightness": straight},
        rows=("A10", "A12"),
    )


def _certified(results: Sequence[Result]) -> Claim:
    runs = select(results, kind="certified")
    applied = {name: sum(r.value["applies"] for r in select(runs, loss=name)) for name in LOSSES}
    kept = all(r.value["worst"] <= r.value["promised"] for r in runs if r.value["applies"])
    seeds, strong = seeds_of(results), ("squared", "tempered")
    held = kept and all(applied[name] > 0 for name in strong)
    return Claim(
        "(ours) The certificate of the start holds for every loss of curvature between m > 0 and M.",
        f"It applied to {_told(applied, 'd')} of {seeds} seeds with keys scaled by 1e-4; "
        f"{'every' if kept else 'not every'} step kept the rate. It says nothing about logistic and Huber (m = 0).",
        _scale(results, "certified"),
        decided(held, results, LONG),
        {"applied": applied, "kept": kept},
        rows=("A10", "A13"),
    )


def _slower(results: Sequence[Result]) -> Claim:
    growth = {}
    for name in LOSSES:
        mild, sharp = (
            middle_of(select(results, kind="sharp", loss=name, ratio=ratio), "final") for ratio in RATIOS
        )
        growth[name] = sharp / mild
    return Claim(
        "Gradient descent struggles with sharp teachers [talk], also with other convex losses.",
        f"Share of the loss that is left with ratio {RATIOS[1]:g} over that with ratio 10, medians: "
        f"{_told(growth, '.2g')}.",
        _scale(results, "sharp"),
        decided(min(growth.values()) > SLOWER, results, LONG),
        growth,
        rows=("A10",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = (
        _curves(results, "rate", RATIOS[0], "more coordinates than samples"),
        _curves(results, "sharp", RATIOS[0], "fewer, teacher of ratio 10"),
        _curves(results, "sharp", RATIOS[1], f"fewer, teacher of ratio {RATIOS[1]:g}"),
    )
    return Sheet("Prompt attention with four convex losses", panels, _scale(results, "rate", "sharp")).draw()


def _curves(results: Sequence[Result], kind: str, ratio: float, title: str) -> Panel:
    curves = []
    for group, name in enumerate(LOSSES):
        for run in select(results, kind=kind, loss=name, ratio=ratio):
            y = np.maximum(np.array(run.value["losses"]) / run.value["losses"][0], 1e-14)
            role = "line" if kind == "rate" else "thin"
            curves.append(Curve(shown(name), np.array(run.value["steps"]) + 1.0, y, group, role))
    return Panel(
        title, "step + 1", "loss over the first loss", tuple(curves), log_x=kind != "rate", log_y=True
    )
