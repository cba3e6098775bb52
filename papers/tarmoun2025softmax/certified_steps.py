"""The over-parametrized theorem as an implication: does every step keep the rate wherever the condition holds?

The talk says: if a condition on the start holds and the step is below 2/L, then the loss falls at a known linear rate.
200 starts with keys scaled by 1 to 1e-4, each with steps of 0.5, 1, 1.5 and 1.9 in units of 1/L. Fixed before the run:
held if no step of any run for which the condition holds loses less than the rate promises. How often the condition
holds is a statement of ours. The theorem also keeps p and v bounded: p in its ball and |v| below its bound at every
tenth step of these runs. Beside it runs from ordinary starts: no longer a prompt or value by a tenth after the first
third than within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory import descent
from edgewise.laboratory.prompt_attention import (
    PromptAttention,
    certificate,
    largest_curvature,
    teacher_student,
)
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .common import decided, distinct

TOLERANCE = 0.01  # of the largest number in an entry; rounding alone moves them
SHARES = (0.5, 1.0, 1.5, 1.9)  # steps in units of 1/L; the theorem allows less than 2
KEYS = (1.0, 1e-2, 1e-3, 1e-4)
ROUNDING = 1e-9  # of a factor per step: sums of ten squares in double precision
FLOOR = 1e-18  # of the first loss: below it a loss is made of rounding
OFTEN = 0.1
EVERY, LONGER = 10, 1.1  # steps between two looks at the lengths of p and v; what counts as growing on


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = {"samples": 10, "tokens": 6, "width": 40, "ratio": 1e3, "steps": 300 if full else 30}
    return [{**size, "keys": keys, "seed": seed} for keys in KEYS for seed in range(50 if full else 1)]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """For each step: whether the condition holds, the promised factor, and the worst factor of the run."""
    made = teacher_student(case["samples"], case["tokens"], case["width"], case["ratio"], case["seed"])
    model = PromptAttention(made.model.tokens, case["keys"] * made.model.keys, made.model.targets)
    start, problem = model.join(made.prompt, made.value), model.joint()
    found: dict[str, Any] = {"applies": [], "promised": [], "worst": [], "prompt": [], "value": []}
    looks = range(EVERY, case["steps"] + 1, EVERY)
    for share in SHARES:
        promise = certificate(model, made.prompt, made.value, share=share)
        worst, lengths = 0.0, (0.0, 0.0)
        if promise.applies:
            run = descent.descend(
                problem, start, descent.gradient_descent(problem, promise.step), case["steps"], keep=looks
            )
            points = [model.split(at) for at in run.points.values()]
            lengths = (
                max(float((p - made.prompt).norm()) for p, _ in points) / promise.radius,
                max(float(v.norm()) for _, v in points) / promise.value_bound,
            )
            clear = run.losses[1:] > FLOOR * run.losses[0]
            worst = float((run.losses[1:] / run.losses[:-1])[clear].max())
        found["applies"].append(promise.applies)
        found["promised"].append(promise.rate)
        found["worst"].append(worst)
        for name, length in zip(("prompt", "value"), lengths, strict=True):
            found[name].append(length)
    if case["keys"] == 1.0:  # an ordinary start: lengths of p and v on the way
        step = 1 / largest_curvature(model, start, steps=30)
        run = descent.descend(
            problem, start, descent.gradient_descent(problem, step), case["steps"], keep=looks
        )
        each = [[float(part.norm()) for part in model.split(at)] for at in run.points.values()]
        found |= {"lengths": rounded(each, 4), "left": float(run.losses[-1] / run.losses[0])}
    return found


def _kept(results: Sequence[Result]) -> tuple[int, int]:
    """Runs that kept the rate at every step, and all runs for which the condition held."""
    pairs = [
        (worst, promised)
        for r in results
        for applies, promised, worst in zip(
            *(r.value[k] for k in ("applies", "promised", "worst")), strict=True
        )
        if applies
    ]
    return sum(worst <= promised + ROUNDING for worst, promised in pairs), len(pairs)


def claim(results: Sequence[Result]) -> Claim:
    kept, count = _kept(results)
    scale = (
        f"N = 10, n = 6, d = 40, {results[0].case['steps']} steps, {len(results)} starts with 4 steps each"
    )
    shares = {
        f"keys x {k:g}": np.mean([any(r.value["applies"]) for r in select(results, keys=k)]) for k in KEYS
    }
    said = ", ".join(f"{share:.0%} with {name}" for name, share in shares.items())
    return Claim.all(
        [
            Claim(
                "If a condition on the initialization holds, then gradient descent with a step below 2/L converges "
                "at a known linear rate [talk].",
                f"The condition held for {count} of {len(results) * len(SHARES)} runs; {kept} of them kept the "
                "promised rate at every step.",
                scale,
                decided(kept == count, results, 300) if count else None,
                {"kept": kept, "runs": count},
                rows=("A13",),
            ),
            Claim(
                "(ours) The condition holds for ordinary starts, without scaling the keys down.",
                f"It held for {said} of the starts. Held: for at least {OFTEN:.0%} with ordinary keys.",
                scale,
                decided(bool(shares["keys x 1"] >= OFTEN), results, 300),
                {name: float(share) for name, share in shares.items()},
                rows=("A13",),
            ),
            _bounded(results, scale),
        ]
    )


def grown(run: Result) -> np.ndarray:
    """Largest length of p and of v after the first third of a run, over that within it."""
    each = np.array(run.value["lengths"])
    third = max(len(each) // 3, 1)
    return np.asarray(each[third:].max(0) / each[:third].max(0))


def _bounded(results: Sequence[Result], scale: str) -> Claim:
    inside = {
        name: [
            length
            for r in results
            for length, used in zip(r.value[name], r.value["applies"], strict=True)
            if used
        ]
        for name in ("prompt", "value")
    }
    runs = [r for r in results if "lengths" in r.value]
    longer = np.max([grown(r) for r in runs], axis=0)
    most = {name: max(lengths, default=0.0) for name, lengths in inside.items()}
    held = bool(inside["value"]) and max(most.values()) <= 1 and float(longer.max()) < LONGER
    return Claim(
        "Both p and v remain bounded along the trajectory [talk].",
        f"Of {len(inside['value'])} runs for which the condition holds: |p - p_0| at most {most['prompt']:.2g} of its "
        f"ball, |v| at most {most['value']:.2g} of its bound. From {len(runs)} ordinary starts |p| is at most "
        f"{longer[0]:.3f} and |v| {longer[1]:.3f} times as long after the first third of the steps as within it (loss "
        f"left: {np.median([r.value['left'] for r in runs]):.1g} in the median). Held: within both bounds, and below "
        f"{LONGER:g}.",
        scale,
        decided(held, results, 300),
        {"of_bound": most, "longer": longer.tolist()},
        rows=("A14",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = []
    for share in SHARES:
        place, curves = SHARES.index(share), []
        for group, keys in enumerate(distinct(results, "keys")):
            runs = [r for r in select(results, keys=keys) if r.value["applies"][place]]
            if runs:
                x, y = (np.array([1 - r.value[name][place] for r in runs]) for name in ("promised", "worst"))
                curves.append(Curve(f"keys x {keys:g}", x, y, group, "points"))
                curves.append(Curve("_", np.sort(x), np.sort(x), 6, "third"))
        panels.append(
            Panel(
                f"step {share:g} / L",
                "loss share that is promised per step",
                "least that was lost",
                tuple(curves),
                log_x=True,
                log_y=True,
            )
        )
    title, words = "A promise for every step, if the condition holds", "one point or line a start"
    return Sheet(title, (*panels, *_lengths(results)), words, columns=3).draw()


def _lengths(results: Sequence[Result]) -> list[Panel]:
    panels = []
    for place, name in enumerate(("prompt p", "value v")):
        curves = []
        for r in (r for r in results if "lengths" in r.value):
            y = np.array(r.value["lengths"])[:, place]
            curves.append(Curve("_", EVERY * np.arange(len(y)), y / y[0], place, "thin"))
        panels.append(
            Panel(f"length of the {name}", "step", "over the first one", tuple(curves), legend=False)
        )
    return panels
