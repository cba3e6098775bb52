"""Length and curvature of a circle through random tanh networks [Poole 2016, Fig. 4].

The derivatives of the curve are carried exactly through the network, so a curve folded thousands of times needs no
finely sampled angles. Per neuron: g is the squared speed, k the squared curvature, both averaged over the circle.

Space filling, fixed before the run: the number of dimensions that the circle explores is the participation ratio of
its principal components, (sum of variances)^2 / sum of squares, of many angles in a narrow network. It is filled where
this is three quarters of what as many independent points have there. That failed (a quarter to a third), and a control
was missing: as many unrelated inputs through the same networks, fixed before it was run with the same three quarters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.nets import circle, circle_derivatives
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded
from edgewise.theory.perceptron.maps import PerceptronMaps

from .common import BIAS, STRENGTHS, network, networks, perceptron, scale_of

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.015 or more
CLOSE = 0.03  # mean relative difference over layers; networks of width 800 scatter by 0.01 to 0.02
WIDE = 500  # narrower networks scatter by more than that
FILLED, FLAT = (
    0.75,
    0.1,
)  # of the dimensions that independent points explore; change of the curvature meanwhile
QUANTITIES = {
    "euclidean": ("A  Euclidean length", "length / √N"),
    "curvature": ("B  extrinsic curvature", "curvature × √N"),
    "grassmannian": ("C  length of the tangent's path (Grassmannian)", "length"),
}


def cases(scale: str = "small") -> list[dict[str, Any]]:
    width, seeds, depth = (800, 6, 15) if scale == "full" else (200, 3, 8)
    narrow = (
        {"width": 100, "depth": 30, "angles": 800, "control": True}
        if scale == "full"
        else {"width": 30, "depth": 8, "angles": 60, "control": True}
    )
    return networks(STRENGTHS, seeds, bias=BIAS, width=width, depth=depth) + networks(
        STRENGTHS, seeds, bias=BIAS, **narrow
    )


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """L_E / sqrt(N), sqrt(N) kappa and L_G at every layer; kappa = |v x a| / |v|^3 in any dimension."""
    maps = PerceptronMaps(perceptron(case))
    if "angles" in case:
        length = maps.limits.length_fixed_point
        return {
            "dimensions": rounded(_dimensions(case, length)),
            "unrelated": rounded(_dimensions(case, length, unrelated=True)),
        }
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


@torch.no_grad()
def _dimensions(case: dict[str, Any], length: float, unrelated: bool = False) -> list[float]:
    """Participation ratio of the circle, or of as many random inputs of its length, at every layer."""
    angles = (2 * np.pi * np.arange(case["angles"]) / case["angles"]).tolist()
    start = circle(angles, case["width"], length, seed=case["seed"])
    if unrelated:
        generator = torch.Generator().manual_seed(case["seed"])
        start = math.sqrt(length) * torch.randn(start.shape, generator=generator, dtype=torch.float64)
    layers = network(case).preactivations(start)
    grams = [(x - x.mean(0)).T @ (x - x.mean(0)) for x in layers]
    return [float(g.trace() ** 2 / g.square().sum()) for g in grams]


def _narrow(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if "angles" in r.case]


def _wide(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if "angles" not in r.case]


def _theory(results: Sequence[Result], strength: float) -> dict[str, np.ndarray]:
    case = results[0].case
    orbit = edgewise.critical.perceptron_maps(perceptron({**case, "strength": strength})).circle(np.zeros(1))
    return {
        "euclidean": orbit.euclidean_length / math.sqrt(case["width"]),
        "curvature": np.sqrt(orbit.curvature),
        "grassmannian": orbit.grassmannian_length,
    }


def claim(results: Sequence[Result]) -> Claim:
    wide = _wide(results)
    return Claim.all([_agreement(wide), _growth(wide), _filling(results), _as_unrelated(results)])


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


def _filling(results: Sequence[Result]) -> Claim:
    """Dimensions of narrow networks, beside the curvature of wide ones over the last two thirds of their layers."""
    wide, narrow, rows = _wide(results), _narrow(results), {}
    case = narrow[0].case
    most = 1 / (1 / case["width"] + 1 / case["angles"])  # of independent points
    for strength in STRENGTHS:
        found = over_seeds(narrow, "dimensions", strength=strength)[0]
        curvature = over_seeds(wide, "curvature", strength=strength)[0]
        late = curvature[len(curvature) // 3 :]
        rows[strength] = {
            "first": float(found[0]),
            "last": float(found[-1]),
            "share": float(found[-1] / most),
            "curvature_change": float(late.max() / late.min() - 1),
        }
    words = "; ".join(
        f"sigma_w = {s}: {row['first']:.1f} to {row['last']:.1f} dimensions ({row['share']:.0%} of what independent "
        f"points explore), curvature within {row['curvature_change']:.1%} over the last two thirds of the layers"
        for s, row in rows.items()
    )
    ordered, chaotic = rows[STRENGTHS[0]], [rows[s] for s in STRENGTHS[1:]]
    held = ordered["share"] < 0.2 and all(
        row["share"] >= FILLED and row["curvature_change"] < FLAT for row in chaotic
    )
    return Claim(
        "The curvature of the circle does not change, and it becomes space filling as it winds around at a constant "
        "curvature [talk].",
        f"Width {case['width']}, {case['angles']} angles, {case['depth']} layers. {words}. Held: in chaotic networks "
        f"at least {FILLED:.0%} of the dimensions while the curvature stays within {FLAT:.0%}; in ordered ones below "
        "20 %. The curvature is that of the curve in space; a curve has no curvature of its own.",
        f"{scale_of(wide)}; {scale_of(narrow)}",
        bool(held) if wide[0].case["width"] >= WIDE else None,
        {str(s): row for s, row in rows.items()},
        rows=("C9",),
    )


def _as_unrelated(results: Sequence[Result]) -> Claim:
    """Against unrelated inputs through the same networks, which no single curve can exceed."""
    narrow, rows = _narrow(results), {}
    for strength in STRENGTHS:
        found, most = (over_seeds(narrow, name, strength=strength)[0] for name in ("dimensions", "unrelated"))
        rows[strength] = {
            "circle": float(found[-1]),
            "unrelated": float(most[-1]),
            "share": float(found[-1] / most[-1]),
        }
    words = "; ".join(
        f"sigma_w = {s}: {row['circle']:.1f} of {row['unrelated']:.1f} ({row['share']:.0%})"
        for s, row in rows.items()
    )
    held = all(rows[s]["share"] >= FILLED for s in STRENGTHS[1:])
    return Claim(
        "The circle becomes space filling [talk]; read as: in a chaotic network it explores as many dimensions as "
        "unrelated inputs do.",
        f"Dimensions at the last layer, circle and unrelated inputs through the same networks: {words}. Held: at least "
        f"{FILLED:.0%} in both chaotic ones.",
        scale_of(narrow),
        bool(held) if narrow[0].case["depth"] >= 20 else None,
        {str(s): row for s, row in rows.items()},
        rows=("C9",),
    )


def _rate(values: np.ndarray) -> float:
    half = len(values) // 2
    return float((values[-1] / values[half]) ** (1 / (len(values) - 1 - half)))


def draw(results: Sequence[Result]) -> Figure:
    wide = _wide(results)
    panels = (*(_panel(wide, name) for name in QUANTITIES), _space(_narrow(results)))
    title = "Chaotic networks stretch a circle exponentially at constant curvature; ordered ones shrink it"
    return Sheet(
        title,
        panels,
        f"A to C: lines: theory, points: {scale_of(wide)}; D: {scale_of(_narrow(results))}; σ_b = 0.3; bars: standard "
        "error",
        columns=2,
    ).draw()


def _panel(results: Sequence[Result], name: str) -> Panel:
    heading, label = QUANTITIES[name]
    curves = []
    for group, strength in enumerate(STRENGTHS):
        theory, (mean, error) = _theory(results, strength)[name], over_seeds(results, name, strength=strength)
        curves.append(Curve(f"σ_w = {strength}", np.arange(len(theory)), theory, group))
        curves.append(Curve("_", np.arange(len(mean)), mean, group, "points", error))
    return Panel(heading, "layer", label, tuple(curves), log_y=True)


def _space(results: Sequence[Result]) -> Panel:
    case, curves = results[0].case, []
    for group, strength in enumerate(STRENGTHS):
        mean, error = over_seeds(results, "dimensions", strength=strength)
        curves.append(Curve(f"σ_w = {strength}", np.arange(len(mean)), mean, group, "orbit", error))
        control = over_seeds(results, "unrelated", strength=strength)[0]
        curves.append(
            Curve("unrelated inputs" if group == 0 else "_", np.arange(len(mean)), control, group, "third")
        )
    most = 1 / (1 / case["width"] + 1 / case["angles"])
    return Panel(
        "D  dimensions that the circle explores",
        "layer",
        "participation ratio",
        tuple(curves),
        f"dotted: independent points at width {case['width']}",
        log_y=True,
        levels=(most,),
    )
