"""Iterated self-attention as interacting particles: our random recursion beside the clustering flow in continuous time.

The flow on the sphere [Geshkovski 2023]: dx_i/dt = P_i sum_j softmax_j(beta x_i.x_j) x_j, P_i the projection away from
x_i. From tokens of equal overlaps g these stay equal, with
    dg/dt = 2 e^(beta g) (1 - g) (1 + (n - 1) g) / (e^beta + (n - 1) e^(beta g)).
Attention with random matrices and skips sqrt(1 - a^2) has, for small a and in the time a^2 per block,
    dc/dt = (1 - c) (S11 + c (1 - S2)),
S2 and S11 the moments of the softmax at the overlap c: both end in one cluster, by e^(-2t) and by e^(-t).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, seed_count, select

from .common import paper_block
from .streams import cosines, random_stack, tokens_of

TOLERANCE = 0.003  # of the largest number in an entry; seeds scatter by 0.028 or more
SHARP = (1.0, 4.0, 9.0)  # beta of the flow; the random networks have score gains of its root
STEP, ATTENTION = 0.05, 0.3
COLLAPSED = 0.05  # 1 - overlap below which the particles are one cluster
FOLLOWS = 0.01  # of overlaps, between particles and the equation for g


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = {"tokens": 12, "width": 96, "time": 5.0} if full else {"tokens": 4, "width": 24, "time": 1.0}
    flows = [
        {"model": "flow", "sharp": beta, "start": start, "seed": seed, **size}
        for beta in SHARP
        for start in ("orthogonal", "random")
        for seed in range(2 if full else 1)
    ]
    random = [
        {"model": "random", "sharp": beta, "start": "random", "seed": seed, **size}
        for beta in SHARP
        for seed in range(4 if full else 1)
    ]
    return flows + random


@torch.no_grad()
def measure(case: dict[str, Any]) -> dict[str, Any]:
    """1 - mean cosine over time: steps of the flow, or blocks of a random network."""
    return _flow(case) if case["model"] == "flow" else _random(case)


def _flow(case: dict[str, Any]) -> dict[str, Any]:
    n, d, beta = case["tokens"], case["width"], case["sharp"]
    g = torch.Generator().manual_seed(case["seed"])
    x, common = (torch.randn(m, d, generator=g, dtype=torch.float64) for m in (n, 1))
    x = torch.linalg.qr(x.T)[0].T if case["start"] == "orthogonal" else x + common
    x = x / x.norm(dim=-1, keepdim=True)
    apart = [float(1 - cosines(x).mean())]
    for _ in range(round(case["time"] / STEP)):
        x = _runge_kutta(x, beta)
        apart.append(float(1 - cosines(x).mean()))
    return {"time": rounded(np.arange(len(apart)) * STEP, 4), "apart": rounded(apart, 5)}


def _velocity(x: torch.Tensor, beta: float) -> torch.Tensor:
    v = torch.softmax(beta * x @ x.T, -1) @ x
    return v - (v * x).sum(-1, keepdim=True) * x


def _runge_kutta(x: torch.Tensor, beta: float) -> torch.Tensor:
    """One classical step of fourth order, and back to the sphere."""
    a = _velocity(x, beta)
    b = _velocity(x + STEP / 2 * a, beta)
    c = _velocity(x + STEP / 2 * b, beta)
    x = x + STEP / 6 * (a + 2 * b + 2 * c + _velocity(x + STEP * c, beta))
    return x / x.norm(dim=-1, keepdim=True)


def _knobs(case: dict[str, Any]) -> dict[str, Any]:
    return paper_block(
        ATTENTION,
        0.0,
        score_gain=math.sqrt(case["sharp"]),
        depth=round(case["time"] / ATTENTION**2),
        tokens=case["tokens"],
        width=case["width"],
    )


def _random(case: dict[str, Any]) -> dict[str, Any]:
    start = tokens_of(torch.eye(case["tokens"]), case["width"], case["seed"])
    streams = random_stack(_knobs(case), 100 + case["seed"]).streams(start)
    apart = [float(1 - cosines(x[0]).mean()) for x in streams]
    return {"time": rounded(np.arange(len(apart)) * ATTENTION**2, 4), "apart": rounded(apart, 5)}


@cache
def flow_theory(n: int, beta: float, time: float) -> np.ndarray:
    """1 - g at every step of the flow, from g = 0."""

    def slope(g: float) -> float:
        top = 2 * math.exp(beta * g) * (1 - g) * (1 + (n - 1) * g)
        return top / (math.exp(beta) + (n - 1) * math.exp(beta * g))

    g, found = 0.0, [1.0]
    for _ in range(round(time / STEP)):
        a = slope(g)
        b = slope(g + STEP / 2 * a)
        c = slope(g + STEP / 2 * b)
        g += STEP / 6 * (a + 2 * b + 2 * c + slope(g + STEP * c))
        found.append(1 - g)
    return np.array(found)


def random_theory(case: dict[str, Any]) -> np.ndarray:
    return _predicted(tuple(_knobs(case).items()))


@cache
def _predicted(knobs: tuple[tuple[str, Any], ...]) -> np.ndarray:
    return np.asarray(edgewise.predict(edgewise.transformer(**dict(knobs))).blocks("separation"))


def half_time(time: np.ndarray, apart: np.ndarray) -> float:
    """When 1 - overlap has fallen to half of its start."""
    below = np.flatnonzero(apart < apart[0] / 2)
    return float(time[below[0]]) if len(below) else math.inf


def claim(results: list[Result]) -> Claim:
    return Claim.all([_consistent(results), _equation(results), _sharpness(results)])


def _scale(results: list[Result]) -> str:
    case = results[0].case
    return (
        f"n = {case['tokens']}, d = {case['width']}, time {case['time']:g}, random networks of attention strength "
        f"{ATTENTION:g}, {seed_count(results)} seeds"
    )


def _decided(results: list[Result]) -> bool:
    return bool(results[0].case["time"] > 4)


def _consistent(results: list[Result]) -> Claim:
    ends = {
        f"{m}, beta {b:g}": max(r.value["apart"][-1] for r in select(results, model=m, sharp=b))
        for m in ("flow", "random")
        for b in SHARP
    }
    falling = all(r.value["apart"][-1] < r.value["apart"][0] for r in results if r.case["start"] == "random")
    words = ", ".join(f"{k} {v:.3g}" for k, v in ends.items())
    return Claim(
        "Our results are consistent with the particle models of iterated self-attention where they overlap: tokens "
        "attract "
        "each other and collapse [talk].",
        f"1 - mean overlap at the end, the worst seed: {words}; it {'falls' if falling else 'does not fall'} "
        "in every one. "
        f"Held: it falls in both models, to below {COLLAPSED:g} at beta = 1.",
        _scale(results),
        falling and max(ends[f"{m}, beta 1"] for m in ("flow", "random")) < COLLAPSED
        if _decided(results)
        else None,
        ends,
        rows=("C42",),
    )


def _equation(results: list[Result]) -> Claim:
    gap, case = 0.0, results[0].case
    for beta in SHARP:
        line = flow_theory(case["tokens"], beta, case["time"])
        for r in select(results, model="flow", sharp=beta, start="orthogonal"):
            gap = max(gap, float(np.abs(np.array(r.value["apart"]) - line).max()))
    random = [select(results, model="random", sharp=b) for b in SHARP]
    ours = max(
        float(np.abs(over_seeds(rows, "apart")[0] - random_theory(rows[0].case)).max()) for rows in random
    )
    return Claim(
        "(ours) One equation for the overlap describes each: the flow's from orthogonal tokens, ours from random "
        "ones.",
        f"Off by at most {gap:.2g} (flow) and {ours:.3f} (random networks at this width). Held: below {FOLLOWS:g} "
        "and 0.05.",
        _scale(results),
        gap < FOLLOWS and ours < 0.05 if seed_count(results) > 1 else None,
        {"flow": gap, "random": ours},
        rows=("C42",),
    )


def _sharpness(results: list[Result]) -> Claim:
    found = {}
    for model in ("flow", "random"):
        rows = [select(results, model=model, sharp=b, start="random")[0] for b in SHARP]
        means = [over_seeds(results, "apart", model=model, sharp=b, start="random")[0] for b in SHARP]
        found[model] = [half_time(np.array(r.value["time"]), m) for r, m in zip(rows, means, strict=True)]
    words = "; ".join(f"{m} {', '.join(f'{t:.2f}' for t in times)}" for m, times in found.items())
    ratio = {m: times[-1] / times[0] for m, times in found.items()}
    return Claim(
        "(ours) They differ in what sharp attention does: it holds the flow's particles apart, since each attends to "
        "itself, "
        "and not those of a random network, whose tokens attend to others.",
        f"Time in which 1 - overlap halves, for beta = 1, 4, 9: {words}. Held: the last is more than 3 times the "
        "first in the "
        "flow, and less than 2 times in random networks.",
        _scale(results),
        ratio["flow"] > 3 and ratio["random"] < 2 if _decided(results) else None,
        found,
        rows=("C42",),
    )


def draw(results: list[Result]) -> Figure:
    panels = (_flow_panel(results), _random_panel(results))
    title = "Two models of iterated self-attention: particles in continuous time, and random matrices"
    return Sheet(title, panels, f"{_scale(results)}; lines: the equation for the overlap").draw()


def _flow_panel(results: list[Result]) -> Panel:
    curves, case = [], results[0].case
    for group, beta in enumerate(SHARP):
        r = select(results, model="flow", sharp=beta, start="orthogonal")[0]
        t, apart = np.array(r.value["time"]), np.array(r.value["apart"])
        curves += [
            Curve(f"β = {beta:g}", t, flow_theory(case["tokens"], beta, case["time"]), group),
            Curve("_", t[::6], apart[::6], group, "points"),
        ]
    return Panel("the flow, from orthogonal tokens", "time", "1 − overlap", tuple(curves), log_y=True)


def _random_panel(results: list[Result]) -> Panel:
    curves = []
    for group, beta in enumerate(SHARP):
        rows = select(results, model="random", sharp=beta)
        mean, error = over_seeds(rows, "apart")
        t = np.array(rows[0].value["time"])
        curves += [
            Curve(f"score gain {np.sqrt(beta):g}", t, random_theory(rows[0].case), group),
            Curve("_", t[::5], mean[::5], group, "points", error[::5]),
        ]
    return Panel(
        "random attention, from random tokens", "time: a² × blocks", "1 − overlap", tuple(curves), log_y=True
    )
