"""Length and curvature of a circle through random tanh networks [Poole 2016, Fig. 4].

The derivatives of the curve are carried exactly through the network, so a curve folded thousands of times needs no
finely sampled angles. Per neuron: g is the squared speed, k the squared curvature, both averaged over the circle.
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
from edgewise.study import Claim, Result, over_seeds, rounded
from edgewise.theory.perceptron.maps import PerceptronMaps

from .common import BIAS, STRENGTHS, network, networks, perceptron, scale_of

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.015 or more
CLOSE = 0.03  # mean relative difference over layers; networks of width 800 scatter by 0.01 to 0.02
WIDE = 500  # narrower networks scatter by more than that
QUANTITIES = {
    "euclidean": ("A  Euclidean length", "length / √N"),
    "curvature": ("B  extrinsic curvature", "curvature × √N"),
    "grassmannian": ("C  length of the tangent's path (Grassmannian)", "length"),
}


def cases(scale: str = "small") -> list[dict[str, Any]]:
    width, seeds, depth = (800, 6, 15) if scale == "full" else (200, 3, 8)
    return networks(STRENGTHS, seeds, bias=BIAS, width=width, depth=depth)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """L_E / sqrt(N), sqrt(N) kappa and L_G at every layer; kappa = |v x a| / |v|^3 in any dimension."""
    maps = PerceptronMaps(perceptron(case))
    angles = torch.arange(24, dtype=torch.float64) * (2 * math.pi / 24)
    _, v, a = circle_derivatives(network(case), angles, maps.limits.length_fixed_point, seed=case["seed"])
    root = math.sqrt(case["width"])
    speed = v.norm(dim=2)
    bend = (a - v * ((a * v).sum(dim=2) / speed**2)[..., None]).norm(
        dim=2
    )  # what turns, without what speeds up
    found = {
        "euclidean": 2 * math.pi * speed.mean(dim=1) / root,
        "curvature": root * (bend / speed**2).mean(dim=1),
        "grassmannian": 2 * math.pi * (bend / speed).mean(dim=1),
    }
    return {name: rounded(values) for name, values in found.items()}


def _theory(results: Sequence[Result], strength: float) -> dict[str, np.ndarray]:
    case = results[0].case
    orbit = edgewise.critical.perceptron_maps(perceptron({**case, "strength": strength})).circle(np.zeros(1))
    return {
        "euclidean": orbit.euclidean_length / math.sqrt(case["width"]),
        "curvature": np.sqrt(orbit.curvature),
        "grassmannian": orbit.grassmannian_length,
    }


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_agreement(results), _growth(results)])


def _agreement(results: Sequence[Result]) -> Claim:
    gaps = {}
    for name in QUANTITIES:
        pairs = [(over_seeds(results, name, strength=s)[0], _theory(results, s)[name]) for s in STRENGTHS]
        gaps[name] = np.abs([np.log(measured / theory) for measured, theory in pairs])
    average = max(float(gap.mean()) for gap in gaps.values())
    decided = results[0].case["width"] >= WIDE
    words = "; ".join(f"{name} {gap.mean():.1%} and {gap.max():.1%}" for name, gap in gaps.items())
    return Claim(
        "Theory of length and curvature matches simulated networks at every layer.",
        f"Mean and largest difference over all layers: {words}. Held: means below {CLOSE:.0%}, so that a theory that "
        "is wrong "
        "by 4 % would not be.",
        scale_of(results),
        bool(average < CLOSE) if decided else None,
        {name: {"mean": gap.mean(), "largest": gap.max()} for name, gap in gaps.items()},
        rows=("C9",),
    )


def _growth(results: Sequence[Result]) -> Claim:
    """Growth per layer over the last half, as a factor, against sqrt(chi_1)."""
    rows = {}
    for strength in STRENGTHS:
        chi = edgewise.critical.perceptron_maps(
            edgewise.Perceptron("tanh", strength**2, BIAS**2)
        ).limits.chi_1
        found = [_rate(over_seeds(results, name, strength=strength)[0]) for name in QUANTITIES]
        rows[strength] = dict(zip(QUANTITIES, found, strict=True)) | {"root_chi_1": math.sqrt(chi)}
    words = "; ".join(
        f"sigma_w = {s}: L_E {row['euclidean']:.3f}, L_G {row['grassmannian']:.3f}, curvature {row['curvature']:.3f}, "
        f"sqrt(chi_1) {row['root_chi_1']:.3f}"
        for s, row in rows.items()
    )
    chaotic = [row for row in rows.values() if row["root_chi_1"] > 1]
    lengths = ("euclidean", "grassmannian")
    close = all(abs(row[name] / row["root_chi_1"] - 1) < 0.05 for row in chaotic for name in lengths)
    ordered = rows[STRENGTHS[0]]
    shape = ordered["euclidean"] < 1 < ordered["curvature"] and all(
        abs(row["curvature"] - 1) < 0.05 for row in chaotic
    )
    return Claim(
        "Chaotic: both lengths grow exponentially while the curvature tends to a constant. Ordered: the curve shrinks "
        "and its curvature grows.",
        f"Factor per layer over the last half of the layers: {words}.",
        scale_of(results),
        bool(close and shape),
        {str(s): row for s, row in rows.items()},
        rows=("C9",),
    )


def _rate(values: np.ndarray) -> float:
    half = len(values) // 2
    return float((values[-1] / values[half]) ** (1 / (len(values) - 1 - half)))


def draw(results: Sequence[Result]) -> Figure:
    panels = tuple(_panel(results, name) for name in QUANTITIES)
    title = "Chaotic networks stretch a circle exponentially at constant curvature; ordered ones shrink it"
    return Sheet(
        title, panels, f"lines: theory, points: {scale_of(results)}, σ_b = 0.3; bars: standard error"
    ).draw()


def _panel(results: Sequence[Result], name: str) -> Panel:
    heading, label = QUANTITIES[name]
    curves = []
    for group, strength in enumerate(STRENGTHS):
        theory, (mean, error) = _theory(results, strength)[name], over_seeds(results, name, strength=strength)
        curves.append(Curve(f"σ_w = {strength}", np.arange(len(theory)), theory, group))
        curves.append(Curve("_", np.arange(len(mean)), mean, group, "points", error))
    return Panel(heading, "layer", label, tuple(curves), log_y=True)
