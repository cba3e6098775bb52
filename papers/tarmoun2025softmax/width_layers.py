"""Does width over-parametrize, and what do more layers do? [questions after the talk of Tarmoun 2025]

`width`: the same samples with tokens of d = N/4 to 3N coordinates, teacher of ratio 1e8, prompt and value trained.
`layers`: the prompt asks the same tokens again with what it got, p_(l+1) = p_l + X^T softmax(X W p_l), and v reads the
last answer: one to three layers with equally many weights, the teacher of as many layers. Best of five steps each.
Fixed before they were run again: layers at the talk's size, N = 100, n = d = 20, ratio 1e25.
`outputs`: the value a matrix with three columns instead of a vector, fewer and more coordinates than samples; fixed
before the run: the talk's two properties in it, a thousandth of the loss or less where d = 3N, and sharp teachers three
times slower where d = N/2, in the mean of logs, undecided within two standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from edgewise.laboratory.prompt_attention import PromptAttention, teacher_student
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .common import below, decided, distinct, finals, middle_of, seeds_of, thinned

TOLERANCE = 0.01  # of the largest number in an entry; seeds scatter by 0.11 or more
GRID, RATIOS, LAYERS = (0.1, 0.3, 1.0, 3.0, 10.0), (10.0, 1e8), (1, 2, 3)
SHARP, OUTPUTS = 1e25, 3  # the teacher's ratio for layers; columns of a value matrix
SLOWER, LONG = 3.0, 80  # what counts as slower; steps that can decide


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    samples, tokens, seeds, steps = (20, 5, 9, 100) if full else (8, 4, 1, 3)
    shared = {"samples": samples, "tokens": tokens, "steps": steps}
    width = [
        shared
        | {"kind": "width", "width": int(samples * share), "ratio": RATIOS[1], "layers": 1, "seed": seed}
        for share in (0.25, 0.5, 1.0, 1.5, 3.0)
        for seed in range(seeds)
    ]
    outputs = [
        shared | {"kind": "outputs", "width": int(samples * share), "ratio": ratio, "layers": 1, "seed": seed}
        for share in (0.5, 3.0)
        for ratio in RATIOS
        for seed in range(seeds)
    ]
    large = {"samples": 100, "tokens": 20, "width": 20, "steps": 400} if full else shared | {"width": 8}
    return (
        width
        + outputs
        + [
            large | {"kind": "layers", "ratio": ratio, "layers": count, "seed": seed}
            for count in LAYERS
            for ratio in (RATIOS[0], SHARP)
            for seed in range(min(seeds, 6))
        ]
    )


def measure(case: dict[str, Any]) -> dict[str, Any]:
    many = OUTPUTS if case["kind"] == "outputs" else 1
    made = teacher_student(case["samples"], case["tokens"], case["width"], case["ratio"], case["seed"], many)
    model, count = made.model, case["layers"]
    targets = outputs(model, made.teacher_prompt, made.teacher_value, count)
    unit = 1 / _curvature(model, made.prompt, made.value, count)
    first, steps = (made.prompt, made.value), case["steps"]
    runs = {share: _run(model, targets, *first, count, share * unit, steps) for share in GRID}
    share, best = min(runs.items(), key=lambda run: run[1][-1] if math.isfinite(run[1][-1]) else math.inf)
    steps, losses = thinned(torch.tensor(best), 30)
    losses = rounded([x / best[0] for x in losses], 5)
    return {"share": share, "steps": steps, "losses": losses, "final": best[-1] / best[0]}


def outputs(model: PromptAttention, p: Tensor, V: Tensor, layers: int) -> Tensor:
    """v . X^T s of the last layer, (N, 1)."""
    asked = p.expand(len(model.tokens), -1)
    for layer in range(layers):
        s = torch.softmax(torch.einsum("ijd,id->ij", model.keys, asked), -1)
        answer = torch.einsum("ijd,ij->id", model.tokens, s)
        asked = asked + answer if layer < layers - 1 else asked
    return answer @ V


def _curvature(model: PromptAttention, p: Tensor, V: Tensor, layers: int) -> float:
    """Largest eigenvalue of G^T G at the start, G the Jacobian of the outputs."""
    parts = torch.autograd.functional.jacobian(lambda p, V: outputs(model, p, V, layers).flatten(), (p, V))
    return float(torch.linalg.matrix_norm(torch.cat([part.flatten(1) for part in parts], -1), 2)) ** 2


def _run(
    model: PromptAttention, y: Tensor, p: Tensor, V: Tensor, layers: int, step: float, steps: int
) -> list[float]:
    p, V, losses = p.clone().requires_grad_(), V.clone().requires_grad_(), []
    for _ in range(steps + 1):
        loss = 0.5 * (outputs(model, p, V, layers) - y).square().sum()
        losses.append(float(loss.detach()))
        for weight, slope in zip((p, V), torch.autograd.grad(loss, (p, V)), strict=True):
            weight.data -= step * slope
    return losses


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_width(results), _outputs(results), _layers(select(results, kind="layers"))])


def _scale(results: Sequence[Result]) -> str:
    case = results[0].case
    size = f"N = {case['samples']}, n = {case['tokens']}" + (", d = 20" if case["samples"] == 100 else "")
    return f"{size}, {case['steps']} steps, best of {len(GRID)}, {seeds_of(results)} seeds"


def _width(results: Sequence[Result]) -> Claim:
    """Every width above N ends lower than every width below it, by a factor, in the median."""
    runs = select(results, kind="width")
    left = {d: middle_of(select(runs, width=d), "final") for d in distinct(runs, "width")}
    samples = runs[0].case["samples"]
    below, above = ([v for d, v in left.items() if (d > samples) is side] for side in (False, True))
    said = ", ".join(f"{value:.1g} at d = {d}" for d, value in left.items())
    return Claim(
        "Over-parametrization refers to the dimension of the tokens compared to the number of samples, like the width "
        "of other networks [answer after the talk].",
        f"Share of the loss that is left, median, N = {samples}: {said}.",
        _scale(results),
        decided(min(below) > 10 * max(above), results, LONG),
        {str(d): value for d, value in left.items()},
        rows=("A38",),
    )


def _outputs(results: Sequence[Result]) -> Claim:
    runs = select(results, kind="outputs")
    few, many = distinct(runs, "width")
    flat, sharp = (select(runs, width=few, ratio=ratio) for ratio in RATIOS)
    slower = below(finals(flat) + math.log(SLOWER) - finals(sharp))
    most = max(r.value["final"] for r in select(runs, width=many))
    return Claim(
        "The value and the prompt are vectors here, but the matrix case should have the same properties [talk]; "
        f"a value with {OUTPUTS} columns.",
        f"Share of the loss that is left: at most {most:.1g} with d = {many}; with d = {few} "
        f"{middle_of(flat, 'final'):.1g} for teachers of ratio 10 and {middle_of(sharp, 'final'):.1g} for "
        f"{RATIOS[1]:g} (medians). Held: at most 1e-3, and {SLOWER:g} times as much with sharp ones in the mean of "
        "logs; undecided within two standard errors.",
        _scale(runs),
        (False if most > 1e-3 else slower) if runs[0].case["steps"] >= LONG else None,
        {"most": most, "flat": middle_of(flat, "final"), "sharp": middle_of(sharp, "final")},
        rows=("A19", "A38"),
    )


def _layers(results: Sequence[Result]) -> Claim:
    ratios = (RATIOS[0], SHARP)
    left = {
        (count, ratio): middle_of(select(results, layers=count, ratio=ratio), "final")
        for count in LAYERS
        for ratio in ratios
    }
    flat, sharp = (
        {count: finals(select(results, layers=count, ratio=ratio)) for count in LAYERS} for ratio in ratios
    )
    judged = [below(flat[count] + math.log(SLOWER) - sharp[count]) for count in LAYERS]
    held = False if False in judged else None if None in judged else True
    said = "; ".join(
        f"{count}: {left[count, RATIOS[0]]:.1g} and {left[count, SHARP]:.1g}" for count in LAYERS
    )
    return Claim(
        "(open in the talk: with additional layers I cannot predict) Sharp teachers stay slower with more layers.",
        f"Share of the loss that is left, median, for teachers of ratio 10 and {SHARP:g}, by layers: {said}. "
        f"Held: {SLOWER:g} times as much with every number of layers, in the mean of logs; undecided within two "
        "standard errors over seeds.",
        _scale(results),
        held if results[0].case["steps"] >= LONG else None,
        {str(c): float((sharp[c] - flat[c]).mean()) for c in LAYERS},
        rows=("A38",),
    )


def draw(results: Sequence[Result]) -> Figure:
    runs = select(results, kind="width")
    wide = [
        Curve(f"d = {d}", np.array(r.value["steps"]) + 1.0, np.maximum(r.value["losses"], 1e-16), group)
        for group, d in enumerate(distinct(runs, "width"))
        for r in select(runs, width=d)
    ]
    deep = [
        Curve(
            f"{count} layer{'s' * (count > 1)}, teacher {ratio:g}",
            np.array(r.value["steps"]) + 1.0,
            np.maximum(r.value["losses"], 1e-16),
            group,
            role,
        )
        for group, count in enumerate(LAYERS)
        for ratio, role in zip((RATIOS[0], SHARP), ("third", "line"), strict=True)
        for r in select(results, kind="layers", layers=count, ratio=ratio)
    ]
    label = "loss over the first loss"
    title = f"width, N = {runs[0].case['samples']} samples"
    left = Panel(title, "step + 1", label, tuple(wide), log_y=True)
    right = Panel(
        "layers of equally many weights",
        "step + 1",
        label,
        tuple(deep),
        log_x=True,
        log_y=True,
        y_range=(1e-8, 3.0),
        legend_at="lower left",
    )
    foot = f"left: {_scale(runs)}; right: {_scale(select(results, kind='layers'))}"
    return Sheet("More coordinates, and more layers", (left, right), foot).draw()
