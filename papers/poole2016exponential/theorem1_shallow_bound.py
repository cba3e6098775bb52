"""Depth against one wide layer: how long a random network can make a circle [Poole 2016, theorem 1].

One hidden layer of N1 tanh units cannot make a closed curve of activations longer than 4 N1 from a circle, whatever
its weights. Chaotic deep networks of fixed width pass this bound after a depth that grows with log N1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.nets import circle_derivatives
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, select
from edgewise.theory.perceptron.maps import PerceptronMaps

from .common import BIAS, STRENGTHS, distinct, network, networks, perceptron, scale_of

TOLERANCE = 0.0008  # of the largest number in an entry; seeds scatter by 0.0081 or more
GAINS = [0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0]
SHALLOW = (100, 300)
RIVALS = [1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000]


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    width, seeds, depth = (500, 2, 26) if full else (150, 2, 10)
    deep = networks(STRENGTHS, seeds, kind="deep", bias=BIAS, width=width, depth=depth)
    wide, gains = (SHALLOW, GAINS) if full else (SHALLOW[:1], GAINS[::3])
    shallow: dict[str, Any] = dict(
        kind="shallow", bias=0.0, depth=1
    )  # these hardly scatter: two seeds suffice
    return deep + [case for n in wide for case in networks(gains, 2, width=n, **shallow)]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Length of the closed curve of activations phi(h): at every layer of a deep network, or of one wide layer."""
    return {"length": rounded(_deep(case) if case["kind"] == "deep" else _shallow(case))}


def _deep(case: dict[str, Any]) -> list[float]:
    """Integral of |phi'(h) v| over the circle, layer by layer; v exact, so 16 angles suffice."""
    length = PerceptronMaps(perceptron(case)).limits.length_fixed_point
    angles = torch.arange(16, dtype=torch.float64) * (2 * math.pi / 16)
    h, v, _ = circle_derivatives(network(case), angles, length, seed=case["seed"])
    speed = ((1 - torch.tanh(h).square()) * v).norm(dim=2)
    return (2 * math.pi * speed.mean(dim=1)).tolist()


def _shallow(case: dict[str, Any]) -> float:
    """Sum of chords of phi(W x): never above the length itself, and close to it when few units turn in one chord."""
    generator = torch.Generator().manual_seed(case["seed"])
    weights = torch.randn(case["width"], 2, generator=generator, dtype=torch.float64) * case["strength"]
    steps = 40 * case["width"]
    angles = torch.arange(steps + 1, dtype=torch.float64) * (2 * math.pi / steps)
    total = 0.0
    for part in range(0, steps, 2000):  # in pieces: 40,001 points of 1000 units are 320 MB
        t = angles[part : part + 2001]
        x = torch.tanh(torch.stack([torch.cos(t), torch.sin(t)], dim=1) @ weights.T)
        total += float((x[1:] - x[:-1]).norm(dim=1).sum())
    return total


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_bound(select(results, kind="shallow")), _depth(select(results, kind="deep"))])


def _bound(results: Sequence[Result]) -> Claim:
    shares = [r.value["length"] / (4 * r.case["width"]) for r in results]
    return Claim(
        "One hidden layer of N1 units cannot make the circle longer than of order N1. (The paper's bound for an open "
        "curve is (1 + s) R N1; ours for a closed one is s R N1 = 4 N1 for tanh.)",
        f"{len(shares)} shallow networks with weights up to {max(distinct(results, 'strength')):g}: the longest "
        f"reaches {max(shares):.1%} of 4 N1, so the bound is nearly met and never passed.",
        scale_of(results),
        bool(max(shares) <= 1),
        {"largest_share_of_bound": max(shares)},
        rows=("C10",),
    )


def _depth(results: Sequence[Result]) -> Claim:
    """Growth per layer against sqrt(chi_1), and the layers needed to pass each bound against theory."""
    rows, misses = {}, []
    for strength in STRENGTHS:
        mean = over_seeds(results, "length", strength=strength)[0]
        rate = float((mean[-1] / mean[1]) ** (1 / (len(mean) - 2)))
        rows[strength] = (rate, math.sqrt(_maps(results, strength).limits.chi_1))
        misses += [abs(found - expected) for _, found, expected in _needed(results, strength)]
    words = ", ".join(f"{rate:.3f} ({root:.3f})" for rate, root in rows.values())
    close = all(abs(rate / root - 1) < 0.05 for rate, root in rows.values())
    return Claim(
        "Chaotic networks of fixed width lengthen the circle exponentially with depth; ordered ones do not.",
        f"Factor per layer (sqrt chi_1) for sigma_w = 1.3, 2.5, 4: {words}. The layer at which a bound is passed "
        f"differs from theory by at most {max(misses, default=0)} in {len(misses)} cases.",
        scale_of(results),
        bool(close and misses and max(misses) <= 1),
        {"factors": {str(s): row for s, row in rows.items()}, "layers_off": misses},
        rows=("C10",),
    )


def _maps(results: Sequence[Result], strength: float) -> Any:
    return edgewise.critical.perceptron_maps(perceptron({**results[0].case, "strength": strength}))


def _needed(results: Sequence[Result], strength: float) -> list[tuple[int, int, int]]:
    """(N1, layer at which the measured mean passes 4 N1, the same by theory), where it happens within the depth."""
    mean, maps = over_seeds(results, "length", strength=strength)[0], _maps(results, strength)
    passed = [(n, mean > maps.shallow_length_bound(n), maps.depth_beyond_shallow(n)) for n in RIVALS]
    return [
        (n, int(np.argmax(over)), int(layers))
        for n, over, layers in passed
        if over.any() and math.isfinite(layers)
    ]


def draw(results: Sequence[Result]) -> Figure:
    deep, shallow = select(results, kind="deep"), select(results, kind="shallow")
    title = "A few dozen chaotic layers make a curve that no single layer of a million units can"
    foot = f"lines: theory, points: {scale_of(deep)}, σ_b = 0.3; shallow: {scale_of(shallow)}; bars: standard error"
    return Sheet(title, (_growth_panel(deep), _shallow_panel(shallow), _needed_panel(deep)), foot).draw()


def _growth_panel(results: Sequence[Result]) -> Panel:
    curves, depth, width = [], results[0].case["depth"], results[0].case["width"]
    for group, strength in enumerate(STRENGTHS):
        maps = edgewise.critical.perceptron_maps(
            perceptron({**results[0].case, "strength": strength, "depth": depth + 1})
        )
        theory = 2 * np.pi * np.sqrt(width * maps.circle(np.zeros(1)).metric[1:]) / strength  # |v'|^2 / sw2
        mean, error = over_seeds(results, "length", strength=strength)
        curves.append(Curve(f"σ_w = {strength}", np.arange(depth + 1), theory, group))
        curves.append(Curve("_", np.arange(depth + 1), mean, group, "points", error))
    for n, name in ((1000, "10³"), (1_000_000, "10⁶")):
        bound = np.full(2, _maps(results, STRENGTHS[0]).shallow_length_bound(n))
        curves.append(Curve(f"one layer, N₁ = {name}", np.array([0, depth]), bound, 6, "third"))
    return Panel(
        f"A  deep, {width} units per layer",
        "layer",
        "length of the circle of activations",
        tuple(curves),
        log_y=True,
    )


def _shallow_panel(results: Sequence[Result]) -> Panel:
    gains, one = np.geomspace(GAINS[0], GAINS[-1], 41), edgewise.Perceptron("tanh", 1.0, 0.0, depth=1)
    curves = [Curve("bound 4 N₁", gains[[0, -1]], np.ones(2), 6, "third")]
    for group, n in enumerate(distinct(results, "width"), start=3):
        line = [
            edgewise.critical.perceptron_maps(one).circle(np.zeros(1), gain**2).metric[1] for gain in gains
        ]
        at = np.array(distinct(results, "strength"))
        rows = [over_seeds(results, "length", width=n, strength=s) for s in at]
        mean, error = (np.array([row[k] for row in rows]) / (4 * n) for k in (0, 1))
        curves.append(Curve(f"N₁ = {n}", gains, 2 * np.pi * np.sqrt(n * np.array(line)) / (4 * n), group))
        curves.append(Curve("_", at, mean, group, "points", error))
    return Panel(
        "B  one hidden layer, any weights",
        "weight strength σ_w",
        "length / 4 N₁",
        tuple(curves),
        log_x=True,
        log_y=True,
    )


def _needed_panel(results: Sequence[Result]) -> Panel:
    curves = []
    for group, strength in enumerate(STRENGTHS[1:], start=1):
        layers = [_maps(results, strength).depth_beyond_shallow(int(n)) for n in np.geomspace(1e3, 1e6, 61)]
        curves.append(Curve(f"σ_w = {strength}", np.geomspace(1e3, 1e6, 61), np.array(layers), group))
        if rows := _needed(results, strength):
            n, found, _ = (np.array(column) for column in zip(*rows, strict=True))
            curves.append(Curve("_", n, found, group, "points"))
    return Panel(
        "C  layers needed to outgrow one wide layer",
        "width N₁ of the single layer",
        "layers",
        tuple(curves),
        log_x=True,
    )
