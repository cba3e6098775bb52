"""Over-parametrized prompts converge at a linear rate and never get sharp [Tarmoun 2025, talk].

With at least as many coordinates as samples the certificate's constants are computed at the start, then gradient
descent runs with the best step of a grid; teacher ratio 1e25.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory import descent
from edgewise.laboratory.prompt_attention import PromptAttention, largest_curvature
from edgewise.laboratory.prompt_teacher import log_mean_ratio, teacher_student
from edgewise.laboratory.prompt_theorem import certificate
from edgewise.study import Claim, Result, select
from edgewise.view import Curve, Panel, Sheet

from .common import decided, thinned

GRID = (0.4, 0.8, 1.2)  # steps in units of 1/L, L the curvature where the run starts
FULL = ({"samples": 100, "width": 150, "steps": 900}, {"samples": 100, "width": 400, "steps": 220})
SMALL = ({"samples": 12, "width": 24, "steps": 200}, {"samples": 12, "width": 48, "steps": 200})
WEAK = 1e-3  # keys scaled down by this can be certified


def cases(scale: str = "small") -> list[dict[str, Any]]:
    sizes = FULL if scale == "full" else SMALL
    runs = [{**size, "tokens": size["width"], "ratio": 1e25, "keys": 1.0, "seed": 0} for size in sizes]
    tiny = {"samples": 10, "tokens": 6, "width": 40, "steps": 400 if scale == "full" else 150, "ratio": 1e3}
    return runs + [{**tiny, "keys": keys, "seed": seed} for keys in (1.0, 1e-2, WEAK) for seed in range(3)]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Constants and certificate at the start, then the run; the certified step 1/L where it applies."""
    made = teacher_student(case["samples"], case["tokens"], case["width"], case["ratio"], case["seed"])
    model = PromptAttention(made.model.tokens, case["keys"] * made.model.keys, made.model.targets)
    promise = certificate(model, made.prompt, made.value)
    start, problem = model.join(made.prompt, made.value), model.joint()
    unit = 1 / largest_curvature(model, start, steps=30)
    grid = [promise.step] if promise.applies else [unit * share for share in GRID]
    step, run = descent.tuned(problem, start, lambda s: descent.gradient_descent(problem, s), grid, case["steps"])
    p, _ = model.split(run.last)
    steps, losses = thinned(run.losses)
    late = run.losses[len(run.losses) // 3 :]
    return {
        "steps": steps, "losses": losses, "step": step, "step_in_curvatures": step / unit,
        "factor": math.exp(math.log(float(late[-1] / late[0])) / (len(late) - 1)),
        "straightness": _straightness(late), "worst_factor": float((run.losses[1:] / run.losses[:-1]).max()),
        "certified": promise.applies, "promised": promise.rate, "radius": promise.radius, "path": promise.prompt_path,
        "moved": float((p - made.prompt).norm()), "feature": [promise.smallest_feature, _feature(model, p)],
        "teacher": log_mean_ratio(made.model, made.teacher_prompt) / math.log(10),
        "student": log_mean_ratio(model, p) / math.log(10), "start": log_mean_ratio(model, made.prompt) / math.log(10),
    }  # fmt: skip


def _straightness(losses: Any) -> float:
    """Squared correlation of the logarithm of the loss with the step: one where the rate is linear."""
    logs = np.log(np.maximum(losses.numpy(), 1e-300))
    return float(np.corrcoef(np.arange(len(logs)), logs)[0, 1] ** 2)


def _feature(model: PromptAttention, p: Any) -> float:
    """sigma_min of Phi at the end."""
    return float(np.linalg.svd(model.features(p).numpy(), compute_uv=False)[-1])


def claim(results: Sequence[Result]) -> Claim:
    large = [r for r in results if r.case["tokens"] == r.case["width"]]
    return Claim.all([_linear(large), _flat(large), _certified([r for r in results if r not in large])])


def _scale(results: Sequence[Result]) -> str:
    return "; ".join(f"N = {r.case['samples']}, d = n = {r.case['width']}, {r.case['steps']} steps" for r in results)


def _linear(large: Sequence[Result]) -> Claim:
    factors = {f"d = {r.case['width']}": r.value["factor"] for r in large}
    held = all(r.value["straightness"] > 0.95 and r.value["factor"] < 0.999 for r in large)
    said = ", ".join(f"{name}: factor {f:.4f} per step (R^2 of the straight line {r.value['straightness']:.3f}), "
                     f"loss {r.value['losses'][-1]:.2g}, smallest feature "
                     f"{r.value['feature'][0]:.2f} to {r.value['feature'][1]:.2f}"
                     for (name, f), r in zip(factors.items(), large, strict=True))  # fmt: skip
    return Claim("With d >= N gradient descent converges at a linear rate.", f"{said}.", _scale(large),
                 decided(held, large, 100, "samples"), factors)  # fmt: skip


def _flat(large: Sequence[Result]) -> Claim:
    said = "; ".join(
        f"d = {r.case['width']}: |p - p_0| = {r.value['moved']:.2f}, mean ratio from 10^{r.value['start']:.1f} to "
        f"10^{r.value['student']:.1f}, teacher 10^{r.value['teacher']:.0f}" for r in large
    )  # fmt: skip
    held = all(r.value["student"] < 0.5 * r.value["teacher"] for r in large)
    return Claim("The prompt stays bounded, so the student's attention does not become as sparse as the teacher's.",
                 f"{said}.", _scale(large), decided(held, large, 100, "samples"),
                 {str(r.case["width"]): r.value["student"] for r in large})  # fmt: skip


def _certified(tiny: Sequence[Result]) -> Claim:
    kept = all(r.value["worst_factor"] <= r.value["promised"] for r in tiny if r.value["certified"])
    counts = {f"keys x {k:g}": sum(r.value["certified"] for r in select(tiny, keys=k)) for k in (1.0, 1e-2, WEAK)}
    weak = [r for r in select(tiny, keys=WEAK) if r.value["certified"]]
    pairs = ", ".join(f"{r.value['promised']:.5f} promised, {r.value['worst_factor']:.5f} the worst seen" for r in weak)
    applies_to_ordinary = counts["keys x 1"] > 0
    return Claim(
        "A condition on the initialization guarantees the rate a priori.",
        f"Applied to {counts} of 3 seeds each: only when the logits are scaled down. Where it applied every step kept "
        f"it ({pairs}).",
        "N = 10, n = 6, d = 40, 3 seeds", decided(kept and applies_to_ordinary, tiny, 400),
        {"applied": counts, "kept": kept},
    )  # fmt: skip


def draw(results: Sequence[Result]) -> Figure:
    large = [r for r in results if r.case["tokens"] == r.case["width"]]
    weak = [r for r in results if r.value["certified"]]
    scale = f"{_scale(large)}; seed 0; right: N = 10, n = 6, d = 40, keys x {WEAK:g}, 3 seeds"
    return Sheet("Over-parametrized prompt attention", (_curves(large), _promise(weak)), scale).draw()


def _curves(large: Sequence[Result]) -> Panel:
    curves = [Curve(f"d = n = {r.case['width']}", np.array(r.value["steps"]), np.array(r.value["losses"]), i)
              for i, r in enumerate(large)]  # fmt: skip
    return Panel("gradient descent, best step", "step", "loss", tuple(curves), log_y=True)


def _promise(weak: Sequence[Result]) -> Panel:
    curves = []
    for i, r in enumerate(weak):
        steps, losses = np.array(r.value["steps"]), np.array(r.value["losses"])
        promised = losses[0] * r.value["promised"] ** steps
        curves += [Curve("run" if i == 0 else "_", steps, losses, i),
                   Curve("certified" if i == 0 else "_", steps, promised, i, "third")]  # fmt: skip
    return Panel("where the certificate applies, step 1/L", "step", "loss", tuple(curves), log_y=True)
