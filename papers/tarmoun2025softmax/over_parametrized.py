"""The talk's figure: under-parametrized prompts on the left, over-parametrized on the right [Tarmoun 2025, talk].

N = 100 and n = d throughout. Left, d = 20: what `teacher_student` recorded for gradient descent on prompt and value,
teachers of ratio 10 and 1e25. Measured here, right: d = 150 and 400, ratio 1e25, the certificate's constants at the
start and gradient descent with the best step of a grid; and a size at which the certificate can be compared with every
step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory import descent
from edgewise.laboratory.prompt_attention import (
    PromptAttention,
    certificate,
    largest_curvature,
    log_mean_ratio,
    teacher_student,
)
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, recorded_results, select

from .common import decided, seeds_of, thinned

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.02 or more
GRID = (0.4, 0.8, 1.2)  # steps in units of 1/L, L the curvature where the run starts
FULL = ({"samples": 100, "width": 150, "steps": 900}, {"samples": 100, "width": 400, "steps": 220})
SMALL = ({"samples": 12, "width": 24, "steps": 200}, {"samples": 12, "width": 48, "steps": 200})
WEAK = 1e-3  # keys scaled down by this can be certified
RATIOS = (10.0, 1e25)  # of the teachers on the left


def cases(scale: str = "small") -> list[dict[str, Any]]:
    sizes = FULL if scale == "full" else SMALL
    seeds = 3 if scale == "full" else 1
    runs = [
        {**size, "tokens": size["width"], "ratio": 1e25, "keys": 1.0, "seed": seed}
        for size in sizes
        for seed in range(seeds)
    ]
    tiny = {"samples": 10, "tokens": 6, "width": 40, "steps": 400 if scale == "full" else 150, "ratio": 1e3}
    return runs + [
        {**tiny, "keys": keys, "seed": seed} for keys in (1.0, 1e-2, WEAK) for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Constants and certificate at the start, then the run; the certified step 1/L where it applies."""
    made = teacher_student(case["samples"], case["tokens"], case["width"], case["ratio"], case["seed"])
    model = PromptAttention(made.model.tokens, case["keys"] * made.model.keys, made.model.targets)
    promise = certificate(model, made.prompt, made.value)
    start, problem = model.join(made.prompt, made.value), model.joint()
    unit = 1 / largest_curvature(model, start, steps=30)
    grid = [promise.step] if promise.applies else [unit * share for share in GRID]
    step, run = descent.tuned(
        problem, start, lambda s: descent.gradient_descent(problem, s), grid, case["steps"]
    )
    p, _ = model.split(run.last)
    steps, losses = thinned(run.losses)
    late = run.losses[len(run.losses) // 3 :]
    return {
        "steps": steps,
        "losses": losses,
        "step": step,
        "step_in_curvatures": step / unit,
        "factor": math.exp(math.log(float(late[-1] / late[0])) / (len(late) - 1)),
        "straightness": _straightness(late),
        "worst_factor": float((run.losses[1:] / run.losses[:-1]).max()),
        "certified": promise.applies,
        "promised": promise.rate,
        "radius": promise.radius,
        "path": promise.prompt_path,
        "moved": float((p - made.prompt).norm()),
        "feature": [promise.smallest_feature, _feature(model, p)],
        "teacher": log_mean_ratio(made.model, made.teacher_prompt) / math.log(10),
        "student": log_mean_ratio(model, p) / math.log(10),
        "start": log_mean_ratio(model, made.prompt) / math.log(10),
    }


def _straightness(losses: Any) -> float:
    """Squared correlation of the logarithm of the loss with the step: one where the rate is linear."""
    logs = np.log(np.maximum(losses.numpy(), 1e-300))
    return float(np.corrcoef(np.arange(len(logs)), logs)[0, 1] ** 2)


def _feature(model: PromptAttention, p: Any) -> float:
    """sigma_min of Phi at the end."""
    return float(np.linalg.svd(model.features(p).numpy(), compute_uv=False)[-1])


def claim(results: Sequence[Result]) -> Claim:
    large = [r for r in results if r.case["tokens"] == r.case["width"]]
    return Claim.all([_both(large), _linear(large), _flat(large)])


def under() -> list[Result]:
    """The left side: gradient descent on prompt and value, as recorded beside this file."""
    runs = recorded_results(Path(__file__).parent / "recorded" / "teacher_student.jsonl")
    return [
        r for ratio in RATIOS for r in select(runs, method="gradient descent", value="joint", ratio=ratio)
    ]


def _both(large: Sequence[Result]) -> Claim:
    """What gradient descent leaves of the loss after as many steps as the longest run on the right has, by side."""
    left = {ratio: float(np.median([_left_of(r) for r in select(under(), ratio=ratio)])) for ratio in RATIOS}
    right = {name: max(map(_left_of, runs)) for name, runs in by_width(large).items()}
    said = ", ".join(f"{value:.1g} with ratio {ratio:g}" for ratio, value in left.items())
    told = ", ".join(f"{value:.1g} with {name}" for name, value in right.items())
    held = left[RATIOS[0]] < 1e-2 and left[RATIOS[1]] > 10 * left[RATIOS[0]] and max(right.values()) < 1e-2
    return Claim(
        "The figure: fast linear convergence over-parametrized, although r is 1e25; under-parametrized gradient "
        "descent does well for small r and really struggles when r is large [talk].",
        f"Share of the loss that is left: under-parametrized (median of {seeds_of(under())} seeds, 1,500 steps) "
        f"{said}; over-parametrized (the most of {seeds_of(large)} seeds) {told}.",
        f"left: N = 100, d = n = 20; right: {_scale(large)}",
        decided(held, large, 100, "samples"),
        {"under": {f"{r:g}": v for r, v in left.items()}, "over": right},
        rows=("A35", "A30", "A31"),
    )


def _left_of(run: Result) -> float:
    return float(run.value["losses"][-1] / run.value["losses"][0])


def by_width(large: Sequence[Result]) -> dict[str, list[Result]]:
    """The runs of each width, one per seed."""
    return {
        f"d = {width}": select(large, width=width) for width in dict.fromkeys(r.case["width"] for r in large)
    }


def _scale(results: Sequence[Result]) -> str:
    cases = (r.case for r in results)
    sizes = dict.fromkeys(f"N = {c['samples']}, d = n = {c['width']}, {c['steps']} steps" for c in cases)
    return f"{'; '.join(sizes)}; {seeds_of(results)} seeds each"


def _between(numbers: Sequence[float], form: str) -> str:
    """The smallest and the largest over seeds, in words."""
    low, high = (f"{f(numbers):{form}}" for f in (min, max))
    return low if low == high else f"{low} to {high}"


def _of(runs: Sequence[Result], name: str, place: int | None = None) -> list[float]:
    """A number of every run, or one of the numbers that it has."""
    return [r.value[name] if place is None else r.value[name][place] for r in runs]


def _linear(large: Sequence[Result]) -> Claim:
    held = all(r.value["straightness"] > 0.95 and r.value["factor"] < 0.999 for r in large)
    said = "; ".join(
        f"{name}: factor {_between(_of(runs, 'factor'), '.4f')} per step (R^2 of the straight line "
        f"{_between(_of(runs, 'straightness'), '.3f')}), loss at the end {_between(_of(runs, 'losses', -1), '.2g')}, "
        f"smallest feature at the start {_between(_of(runs, 'feature', 0), '.2f')}, at the end "
        f"{_between(_of(runs, 'feature', 1), '.2f')}"
        for name, runs in by_width(large).items()
    )
    return Claim(
        "With d >= N gradient descent converges at a linear rate [talk].",
        f"{said}.",
        _scale(large),
        decided(held, large, 100, "samples"),
        {name: _of(runs, "factor") for name, runs in by_width(large).items()},
        rows=("A12", "A31"),
    )


def _flat(large: Sequence[Result]) -> Claim:
    said = "; ".join(
        f"{name}: |p - p_0| = {_between(_of(runs, 'moved'), '.2f')}, decimal logarithm of the mean ratio "
        f"{_between(_of(runs, 'start'), '.1f')} at the start and {_between(_of(runs, 'student'), '.1f')} at the end, "
        f"{_between(_of(runs, 'teacher'), '.0f')} in the teacher"
        for name, runs in by_width(large).items()
    )
    held = all(r.value["student"] < 0.5 * r.value["teacher"] for r in large)
    return Claim(
        "The prompt stays bounded, and the ratios are far smaller than the teacher's [talk].",
        f"{said}.",
        _scale(large),
        decided(held, large, 100, "samples"),
        {name: _of(runs, "student") for name, runs in by_width(large).items()},
        rows=("A14", "A31", "A34"),
    )


def draw(results: Sequence[Result]) -> Figure:
    large = [r for r in results if r.case["tokens"] == r.case["width"]]
    weak = [r for r in results if r.value["certified"]]
    words = (
        f"left: N = 100, every seed; middle: {_scale(large)}; right: N = 10, n = 6, d = 40, keys x {WEAK:g}"
    )
    title = "Prompt attention learns from a teacher: fewer coordinates than samples, and more"
    return Sheet(title, (_under(), _curves(large), _promise(weak)), words).draw()


def _under() -> Panel:
    curves = [
        Curve(
            f"teacher ratio {ratio:g}", np.array(r.value["steps"]) + 1.0, np.array(r.value["losses"]), group
        )
        for group, ratio in enumerate(RATIOS)
        for r in select(under(), ratio=ratio)
    ]
    return Panel(
        "under-parametrized, d = n = 20",
        "step + 1",
        "loss",
        tuple(curves),
        log_x=True,
        log_y=True,
        legend_at="lower left",
    )


def _curves(large: Sequence[Result]) -> Panel:
    curves = [
        Curve(f"d = n = {r.case['width']}", np.array(r.value["steps"]), np.array(r.value["losses"]), i)
        for i, runs in enumerate(by_width(large).values())
        for r in runs
    ]
    return Panel("over-parametrized, teacher ratio 1e25", "step", "loss", tuple(curves), log_y=True)


def _promise(weak: Sequence[Result]) -> Panel:
    curves = []
    for i, r in enumerate(weak):
        steps, losses = np.array(r.value["steps"]), np.array(r.value["losses"])
        promised = losses[0] * r.value["promised"] ** steps
        curves += [
            Curve("run" if i == 0 else "_", steps, losses, i),
            Curve("certified" if i == 0 else "_", steps, promised, i, "third"),
        ]
    return Panel("where the certificate applies, step 1/L", "step", "loss", tuple(curves), log_y=True)
