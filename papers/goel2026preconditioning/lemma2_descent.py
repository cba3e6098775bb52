"""Lemma 2: a step of preconditioned descent lowers the regularized loss by at least half its length times η.

    Q(θ') ≤ Q(θ) − (η/2)‖∇Q(θ)‖²

holds for steps up to 1/(smoothness); the constant of the lemma is not public, ½ is the textbook's. Checked at every
step of runs in the population (where it should hold), and on samples, where the gradient has an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.regression import StructureAware, gaussian_start, random_problem, spectral_start
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .factorization import Factorization, flat, whitened

TOLERANCE = 0.0002  # of the largest number in an entry; seeds scatter by 0.0024 or more
STEPS = (0.03, 0.1, 0.3)  # η as a share of 1/‖M̃‖
BALANCING = 0.1
EVERY = 5  # steps between two stored values
RESOLVED = 1e-12  # below this share of the first loss, differences are rounding


def cases(scale: str = "small") -> list[dict[str, Any]]:
    seeds, length = (8, 150) if scale == "full" else (2, 20)
    data: tuple[int | None, ...] = (None, 100, 400) if scale == "full" else (None, 60)
    return [
        {
            "width": 4,
            "condition": 10.0,
            "start": start,
            "tokens": tokens,
            "step": step,
            "steps": length,
            "seed": seed,
        }
        for start in ("gaussian", "spectral")
        for tokens in data
        for step in STEPS
        for seed in range(seeds)
        if not (start == "spectral" and tokens is None)  # in the population the spectral start is the minimum
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Q and what the lemma promises, along one run; the method is gradient descent on Q in whitened variables."""
    problem = random_problem(case["width"], case["width"], case["condition"], 3.0, case["seed"])
    q = Factorization.of(problem, BALANCING)
    objective = (
        problem.population() if case["tokens"] is None else problem.sample(case["tokens"], 100 + case["seed"])
    )
    random = case["start"] == "gaussian"
    start = gaussian_start(problem, 0.3, 200 + case["seed"]) if random else spectral_start(objective)
    method = StructureAware(step=case["step"], balancing=BALANCING, radius=None, invariant=False)
    eta = case["step"] / float(np.linalg.norm(q.target, 2))
    points = [whitened(problem, at) for at in islice(method.path(objective, start), case["steps"] + 1)]
    values = np.array([q.value(at) for at in points])
    promised = np.array([eta / 2 * float(np.sum(flat(q.gradient(at)) ** 2)) for at in points[:-1]])
    resolved = values[:-1] > RESOLVED * values[0]
    short = values[1:] > values[:-1] - promised * (1 - 1e-9)
    kept = [float(f"{value:.6g}") for value in values[::EVERY]]
    return {"values": kept, "short": int((short & resolved).sum()), "resolved": int(resolved.sum())}


def _count(results: Sequence[Result], **wanted: Any) -> tuple[int, int]:
    pairs = [
        (r.value["short"], r.value["resolved"])
        for r in results
        if all(r.case[k] == v for k, v in wanted.items())
    ]
    return sum(a for a, _ in pairs), sum(b for _, b in pairs)


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_population(results), _samples(results)])


def _population(results: Sequence[Result]) -> Claim:
    counts = {step: _count(results, tokens=None, step=step) for step in STEPS}
    words = ", ".join(f"{a} of {b} at η = {step:g}/‖M̃‖" for step, (a, b) in counts.items())
    return Claim(
        "For a small enough step size every step lowers the regularized loss [Lemma 2, a descent lemma, not stated].",
        f"Steps of the population's runs that fall short of (η/2)‖∇Q‖²: {words}.",
        _scale(results),
        counts[STEPS[0]][0] == 0,
        {f"{step:g}": list(pair) for step, pair in counts.items()},
        rows=("D7",),
    )


def _samples(results: Sequence[Result]) -> Claim:
    sizes = sorted({r.case["tokens"] for r in results if r.case["tokens"]})
    parts, totals = [], []
    for n in sizes:
        for start in ("gaussian", "spectral"):
            a, b = _count(results, tokens=n, start=start)
            totals.append((a, b))
            parts.append(f"n = {n}, {start} start: {a} of {b}")
    random = [r.value["values"] for r in results if r.case["tokens"] and r.case["start"] == "gaussian"]
    ends = [values[-1] <= values[0] for values in random]
    return Claim(
        "(ours) It lowers the population's regularized loss also when the gradient is a sample's.",
        f"Steps that fall short: {'; '.join(parts)}. From random starts {sum(ends)} of {len(ends)} runs end lower than "
        "they began; near the minimum the sample's own error rules.",
        _scale(results),
        all(a == 0 for a, _ in totals),
        {"short": [list(pair) for pair in totals]},
        rows=("D7",),
    )


def _scale(results: Sequence[Result]) -> str:
    seeds = len({r.case["seed"] for r in results})
    return f"d = m = 4, cond(Σ) = 10, cond(M) = 3, λ = {BALANCING:g}, {results[0].case['steps']} steps, {seeds} seeds"


def draw(results: Sequence[Result]) -> Figure:
    panels = []
    for start in ("gaussian", "spectral"):
        chosen = [r for r in results if r.case["start"] == start and r.case["step"] == STEPS[-1]]
        sizes = sorted({r.case["tokens"] for r in chosen}, key=lambda n: n or 10**9)
        curves = []
        for group, n in enumerate(sizes):
            values = np.median([r.value["values"] for r in chosen if r.case["tokens"] == n], axis=0)
            name, steps = (
                "population" if n is None else f"n = {n}",
                EVERY * np.arange(len(values), dtype=float),
            )
            curves.append(Curve(name, steps, values, group))
        title = f"{start} start".replace("gauss", "Gauss")
        panels.append(Panel(title, "step", "regularized loss of the population", tuple(curves), log_y=True))
    return Sheet(
        "Descent on the regularized loss, with the true gradient and with a sample's",
        tuple(panels),
        f"{_scale(results)}; medians at η = {STEPS[-1]:g}/‖M̃‖",
    ).draw()
