"""Depth scales of random tanh networks, measured forward and backward [Schoenholz 2017, Fig. 2 and 4].

The correlation of two inputs approaches its limit as exp(-l / xi_c); the squared gradient changes as exp(l / xi_grad)
on its way back. Both are read from random networks and compared with theory over the weight variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.nets import RandomPerceptron, circle
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded
from edgewise.theory.perceptron.maps import PerceptronMaps

TOLERANCE = 0.004  # of the largest number in an entry; seeds scatter by 0.044 or more
BIAS_VARIANCE = 0.05
WEIGHTS = [1.0, 1.15, 1.3, 1.45, 1.6, 2.0, 2.3, 2.7, 3.2, 4.0]
SHOWN = (1.3, 1.6, 2.3, 4.0)
START = 0.9  # correlation of the two inputs


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    weights, width, seeds, depth = (WEIGHTS, 500, 10, 40) if full else (list(SHOWN), 200, 3, 24)
    sizes = {"width": width, "depth": depth}
    return [{"weight_variance": w, "seed": seed, **sizes} for w in weights for seed in range(seeds)]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """1 - c at every layer, started at q*, and the log of the squared gradient over that of the last layer."""
    w, depth, width = case["weight_variance"], case["depth"], case["width"]
    perceptron = edgewise.Perceptron("tanh", w, BIAS_VARIANCE, depth, width)
    network = RandomPerceptron(perceptron, seed=case["seed"] + 1000 * round(100 * w)).double()
    length = PerceptronMaps(perceptron).limits.length_fixed_point
    with torch.no_grad():
        h = network.preactivations(circle([0.0, math.acos(START)], width, length, seed=case["seed"]))
        apart = h / h.norm(dim=2, keepdim=True)
        separation = (apart[:, 0] - apart[:, 1]).square().sum(dim=1) / 2
        return {"separation": rounded(separation), "gradient": rounded(_gradients(network, h, case["seed"]))}


def _gradients(network: RandomPerceptron, h: torch.Tensor, seed: int) -> list[float]:
    """log |g_l|^2 / |g_L|^2 by g_(l-1) = phi'(h_(l-1)) W^T g_l, from two random output gradients; input first."""
    g = torch.randn(h.shape[1:], generator=torch.Generator().manual_seed(seed), dtype=h.dtype)
    sizes = [g.square().sum(dim=1)]
    for layer, below in zip(reversed(list(network.layers)), reversed(h[:-1]), strict=True):
        g = (g @ layer.weight) * (1 - torch.tanh(below).square())
        sizes.append(g.square().sum(dim=1))
    return [float((size / sizes[0]).log().mean()) for size in reversed(sizes)]


@lru_cache
def _maps(w: float, depth: int = 40) -> Any:
    return edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", w, BIAS_VARIANCE, depth))


def _weights(results: Sequence[Result]) -> list[float]:
    return sorted({r.case["weight_variance"] for r in results})


def _gaps(results: Sequence[Result], w: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """|c - c*| by layer: of theory, of the mean over networks, and the standard error of the latter."""
    maps = _maps(w, results[0].case["depth"])
    goal = maps.limits.correlation_fixed_point
    theory = np.abs(maps.orbit(maps.limits.length_fixed_point, START).correlation - goal)
    mean, error = over_seeds(results, "separation", weight_variance=w)
    return theory, np.abs(1 - mean - goal), error


def _forward_scales(results: Sequence[Result], w: float) -> tuple[float, float]:
    """xi_c of theory and of networks, each the slope of log |c - c*| over the same layers with the same weights.

    Layers (from the third until the distance is 5 % of its start) and weights (distance over standard error) come from
    theory's distance, so that a weak signal cannot choose its own range.
    """
    theory, measured, error = _gaps(results, w)
    last = max(int(np.sum(theory > 0.05 * theory[0])), 8)
    layers = np.arange(3, min(last, len(measured)))
    weights = theory[layers] / error[layers] if np.all(error[layers] > 0) else None
    slopes = [np.polyfit(layers, np.log(gap[layers]), 1, w=weights)[0] for gap in (theory, measured)]
    return float(-1 / slopes[0]), float(-1 / slopes[1])


def _backward_scale(results: Sequence[Result], w: float) -> tuple[float, float]:
    """xi_grad and its error from the growth over all layers, seed by seed."""
    depth = results[0].case["depth"]
    mean, error = over_seeds(results, "gradient", weight_variance=w)
    return abs(depth / mean[0]), abs(depth / mean[0]) * abs(error[0] / mean[0])


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_forward(results), _backward(results)])


def _scale(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    return (
        f"tanh, width {case['width']}, {case['depth']} layers, {seeds} random networks per point, σ_b² = 0.05"
    )


def _forward(results: Sequence[Result]) -> Claim:
    pairs = [_forward_scales(results, w) for w in _weights(results)]
    off = np.array([measured / theory - 1 for theory, measured in pairs])
    networks = results[0].case["width"] * len({r.case["seed"] for r in results})
    allowed = 0.1
    visible = networks >= 2000  # fewer units in all leave a floor under |c - c*| that hides its decay
    held = bool(np.mean(np.abs(off)) < allowed) if visible else None
    return Claim(
        "Correlations decay exponentially with the depth scale xi_c of theory.",
        f"Over {len(off)} weight variances the fitted scale differs from theory over the same layers by "
        f"{np.mean(np.abs(off)):.1%} on average (allowed {allowed:.0%}) and {np.max(np.abs(off)):.1%} at most.",
        _scale(results),
        held,
        {"relative_differences": off.tolist()},
        rows=("C3", "C12"),
    )


def _backward(results: Sequence[Result]) -> Claim:
    weights = _weights(results)
    rates = np.array([over_seeds(results, "gradient", weight_variance=w)[0][0] for w in weights])
    expected = np.log([_maps(w).limits.chi_1 for w in weights])
    off = rates / results[0].case["depth"] - expected
    signs = bool(np.all(np.sign(rates) == np.sign(expected)))
    return Claim(
        "Gradients vanish in the ordered and explode in the chaotic phase, by chi_1 per layer.",
        f"log chi_1 per layer is off by {np.mean(np.abs(off)):.4f} on average and {np.max(np.abs(off)):.3f} at most; "
        f"the sign is {'right' if signs else 'not right'} at all {len(weights)} weight variances.",
        _scale(results),
        signs,
        {"differences": off.tolist()},
        rows=("C6",),
    )


def draw(results: Sequence[Result]) -> Figure:
    title = "The depth to which a random network carries a signal diverges at the edge of chaos"
    foot = f"lines: theory, points: {_scale(results)}; bars: standard error"
    return Sheet(title, (_orbits(results), _gradient_panel(results), _scales(results)), foot).draw()


def _orbits(results: Sequence[Result]) -> Panel:
    curves = []
    for group, w in enumerate(SHOWN):
        theory, measured, error = _gaps(results, w)
        seen = np.flatnonzero(theory > 1e-3)
        curves.append(Curve(f"σ_w² = {w}", seen, theory[seen], group))
        curves.append(Curve("_", seen, measured[seen], group, "points", error[seen]))
    return Panel("A  correlation approaches its limit", "layer", "|c − c*|", tuple(curves), log_y=True)


def _gradient_panel(results: Sequence[Result]) -> Panel:
    curves, depth = [], results[0].case["depth"]
    for group, w in enumerate(SHOWN):
        maps = _maps(w, depth)
        mean, error = over_seeds(results, "gradient", weight_variance=w)
        theory = np.log10(maps.orbit(maps.limits.length_fixed_point).gradient)
        curves.append(Curve(f"σ_w² = {w}", np.arange(depth + 1), theory, group))
        shown = slice(0, None, 3)
        curves.append(
            Curve(
                "_",
                np.arange(depth + 1)[shown],
                (mean / np.log(10))[shown],
                group,
                "points",
                (error / np.log(10))[shown],
            )
        )
    return Panel("B  gradient on its way back", "layer", "log₁₀ |g_l|² / |g_L|²", tuple(curves))


def _scales(results: Sequence[Result]) -> Panel:
    edge = _maps(1.0).limits.boundary_weight_variance
    fine = np.concatenate([np.linspace(1.0, edge - 0.04, 18), [np.nan], np.linspace(edge + 0.04, 4.0, 26)])
    limits = [_maps(w).limits if math.isfinite(w) else None for w in fine]
    lines = {
        name: np.array([getattr(x, f"depth_scale_{name}") if x else np.nan for x in limits])
        for name in ("correlation", "gradient")
    }
    at = np.array(_weights(results))
    back = np.array([_backward_scale(results, w) for w in at]).T
    fitted = np.array([_forward_scales(results, w) for w in at])
    curves = (
        Curve("ξ_c", fine, lines["correlation"]),
        Curve("ξ_∇", fine, lines["gradient"], 1, "second"),
        Curve(f"ξ_c over {results[0].case['depth']} layers", at, fitted[:, 0], 0, "third"),
        Curve("ξ_c of networks", at, fitted[:, 1], 0, "points"),
        Curve("ξ_∇ of networks", at, back[0], 1, "hollow", back[1]),
    )
    note = f"edge of chaos at σ_w² = {edge:.3f}"
    return Panel("C  depth scales", "weight variance σ_w²", "layers", curves, note, log_y=True)
