"""Order and chaos in the plane of weight and bias variance, measured on random networks [Poole 2016, Fig. 2].

How fast a small difference of inputs grows from layer to layer, and how fast a gradient grows on its way back, are
read from random networks after the length has settled. Theory says that both are chi_1, and that chi_1 = 1 is a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.nets import RandomPerceptron, circle, circle_derivatives
from edgewise.present import Curve, Dots, Panel, Sheet, perceptron_plane
from edgewise.study import Claim, Result, over_seeds, rounded

from .common import distinct, scale_of

TOLERANCE = 0.005  # of the largest number in an entry; seeds scatter by 0.054 or more
WEIGHTS = [0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0]
BIASES = [0.0, 0.05, 0.1, 0.2, 0.3]
SETTLE = 10  # layers before rates are read
CLOSE, LARGEST = 0.015, 0.05  # of log chi_1, mean and largest gap: fixed before the run at width 400


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale == "full":
        sizes = dict(width=400, depth=20, seeds=4, weights=WEIGHTS, biases=BIASES)
    else:
        sizes = dict(width=100, depth=12, seeds=2, weights=WEIGHTS[::3], biases=BIASES[1::3])
    width, depth, seeds, weights, biases = sizes.values()
    return [
        {"weight_variance": sw2, "bias_variance": sb2, "width": width, "depth": depth, "seed": seed}
        for sb2 in biases
        for sw2 in weights
        for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Mean logarithmic growth per layer of a squared small difference (forward) and of a squared gradient (back)."""
    knobs = {name: case[name] for name in ("weight_variance", "bias_variance", "width")}
    seed = case["seed"] + 1000 * round(100 * case["weight_variance"])  # no two points share their weights
    network = RandomPerceptron(edgewise.Perceptron("tanh", depth=SETTLE + case["depth"], **knobs), seed=seed)
    angles = torch.arange(8, dtype=torch.float64) * (math.pi / 4)
    h, v, _ = circle_derivatives(network.double(), angles, 1.0, seed=case["seed"])
    forward = (v[-1].square().sum(dim=1) / v[SETTLE].square().sum(dim=1)).log().mean() / case["depth"]
    backward = _backward(network, h, case["seed"]) / case["depth"]
    return {"forward": rounded(float(forward)), "backward": rounded(backward)}


def _backward(network: RandomPerceptron, h: torch.Tensor, seed: int) -> float:
    """log |g_S|^2 / |g_L|^2 for random output gradients of unit size, S the layer after which lengths are settled."""
    upper = network.layers[SETTLE:]
    start = h[SETTLE].clone().requires_grad_()
    x = start
    for layer in upper:
        x = layer(torch.tanh(x))
    out = circle(torch.zeros(len(x)), x.shape[1], 1.0, seed=seed + 1)
    (g,) = torch.autograd.grad(x, start, out)
    return float((g.square().sum(dim=1) / out.square().sum(dim=1)).log().mean())


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_line(results), _both_ways(results)])


def _line(results: Sequence[Result]) -> Claim:
    rows = _crossings(results)
    off = [row["measured"] - row["finite"] for row in rows]
    from_line = {f"{row['bias_variance']:g}": row["measured"] - row["line"] for row in rows}
    largest, allowed = max(map(abs, off)), 0.05 + 4 * _chance(results)
    return Claim(
        "The line chi_1 = 1 separates order from chaos in networks of finite width.",
        f"The weight variance at which the measured growth crosses zero differs from that of theory over the same "
        f"layers by {np.mean(np.abs(off)):.3f} on average and {largest:.3f} at most ({len(off)} bias variances), and "
        f"from the line itself by {max(map(abs, from_line.values())):.3f} at most.",
        scale_of(results),
        bool(largest < allowed),
        {
            "from_theory_over_the_same_layers": off,
            "from_the_line_by_bias_variance": from_line,
            "allowed": allowed,
        },
        rows=("C4", "C11"),
    )


def _both_ways(results: Sequence[Result]) -> Claim:
    points = [
        _point(results, *at) for at in _grid(results)
    ]  # some have not settled: without bias, at the edge
    forward, backward, theory = (np.array([p[k] for p in points]) for k in ("forward", "backward", "theory"))
    gaps = {"forward": np.abs(forward - theory), "backward": np.abs(backward - theory)}
    largest, mean = max(gap.max() for gap in gaps.values()), max(gap.mean() for gap in gaps.values())
    decided = results[0].case["width"] >= 400
    return Claim(
        "One number, chi_1, is the growth per layer of small differences forward and of gradients backward.",
        f"log chi_1 of the same layers over {len(points)} points of the plane, where it goes from {theory.min():.2f} "
        f"to {theory.max():.2f}: differences are off by {gaps['forward'].mean():.4f} on "
        f"average and {gaps['forward'].max():.3f} at most, gradients by {gaps['backward'].mean():.4f} and "
        f"{gaps['backward'].max():.3f}. Held: below {CLOSE:g} on average and {LARGEST:g} at most.",
        scale_of(results),
        bool(mean < CLOSE and largest < LARGEST) if decided else None,
        {name: {"mean": gap.mean(), "largest": gap.max()} for name, gap in gaps.items()},
        rows=("C4", "C6"),
    )


def _chance(results: Sequence[Result]) -> float:
    """Standard deviation of a mean log-growth: one layer scatters by about sqrt(5 / width), as a fourth moment of a
    saturating slope does; layers and seeds average."""
    case, seeds = results[0].case, len(distinct(results, "seed"))
    return math.sqrt(5 / case["width"] / case["depth"] / seeds)


def _grid(results: Sequence[Result]) -> list[tuple[float, float]]:
    return [(x, y) for y in distinct(results, "bias_variance") for x in distinct(results, "weight_variance")]


def _point(results: Sequence[Result], sw2: float, sb2: float) -> dict[str, float]:
    where = {"weight_variance": sw2, "bias_variance": sb2}
    depth = results[0].case["depth"]
    maps = edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", sw2, sb2, SETTLE + depth))
    found = {name: float(over_seeds(results, name, **where)[0]) for name in ("forward", "backward")}
    return found | {"theory": math.log(maps.orbit().gradient[SETTLE]) / depth}


def _crossings(results: Sequence[Result]) -> list[dict[str, float]]:
    """Per bias variance: where growth crosses zero in networks, in theory over the same layers, and on the line.

    Without bias they differ: at the edge the length falls as 1 / layer, so 30 layers are far from its limit.
    """
    weights, depth, found = distinct(results, "weight_variance"), results[0].case["depth"], []
    for sb2 in distinct(results, "bias_variance"):
        rows = [over_seeds(results, "forward", weight_variance=w, bias_variance=sb2) for w in weights]
        rates, errors = (np.array([row[k] for row in rows]) for k in (0, 1))
        maps = [
            edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", w, sb2, SETTLE + depth))
            for w in weights
        ]
        finite = np.array([math.log(m.orbit().gradient[SETTLE]) for m in maps]) / depth
        at, slope = _zero(weights, rates)
        error = float(np.sqrt(np.mean(errors**2)) / slope)
        line = maps[0].limits.boundary_weight_variance
        row = {
            "bias_variance": sb2,
            "measured": at,
            "error": error,
            "finite": _zero(weights, finite)[0],
            "line": line,
        }
        found.append(row)
    return found


def _zero(x: Sequence[float], y: np.ndarray) -> tuple[float, float]:
    """Where an increasing curve crosses zero, by a parabola through the three nearest points, and its slope there."""
    near = int(np.clip(np.argmax(y > 0), 1, len(y) - 2))
    part = slice(near - 1, near + 2)
    inverse = np.polyfit(y[part], np.asarray(x)[part], 2)  # x as a function of y: its value at y = 0
    return float(inverse[2]), float(1 / inverse[1])


def draw(results: Sequence[Result]) -> Figure:
    title = "Random tanh networks turn chaotic on the line χ₁ = 1\n(map and lines: theory, points: networks)"
    foot = f"{scale_of(results)}; rates over {results[0].case['depth']} layers after {SETTLE}; bars: standard error"
    return Sheet(title, (_plane(results), _rates(results)), foot).draw()


def _plane(results: Sequence[Result]) -> Panel:
    top = 1.2 * distinct(results, "bias_variance")[-1]
    plane = perceptron_plane("tanh", (0.3, 4.2, 79), (0.0, top, 56)).panels[0]
    at = np.array(_grid(results))
    values = np.array([over_seeds(results, "forward", weight_variance=x, bias_variance=y)[0] for x, y in at])
    rows = _crossings(results)
    sb2, sw2, error = (
        np.array([row[name] for row in rows]) for name in ("bias_variance", "measured", "error")
    )
    crossing = Curve("measured growth crosses zero", sw2, sb2, 1, "hollow", x_error=error)
    dots = Dots("networks: growth of differences", at[:, 0], at[:, 1], values)
    note = "line: χ₁ = 1, edge of chaos; circles: differences\nin networks; squares: where their growth crosses zero"
    return replace(
        plane, title="A  phases", dots=dots, curves=(*plane.curves, crossing), note=note, legend=False
    )


def _rates(results: Sequence[Result]) -> Panel:
    biases = distinct(results, "bias_variance")
    curves, weights = [], np.linspace(0.4, 4.1, 38)
    at = np.array(distinct(results, "weight_variance"))
    for group, sb2 in enumerate(biases[:: max(1, len(biases) // 2)]):
        line = [
            edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", w, sb2)).limits.chi_1
            for w in weights
        ]
        curves.append(Curve(f"σ_b² = {sb2:g}", weights, np.log(line), group))
        for name, role in (("forward", "points"), ("backward", "hollow")):
            rows = [over_seeds(results, name, weight_variance=w, bias_variance=sb2) for w in at]
            mean, error = (np.array([row[k] for row in rows]) for k in (0, 1))
            label = (
                {"forward": "differences, forward", "backward": "gradients, backward"}[name]
                if group == 0
                else "_"
            )
            curves.append(Curve(label, at, mean, group, role, error))
    return Panel("B  growth per layer, forward and back", "weight variance σ_w²", "log χ₁", tuple(curves))
