"""The length map of a random tanh network, and how fast lengths reach their fixed point [Poole 2016, Fig. 1].

Vectors of many lengths enter one random network; the mean square of their preactivations is read at every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Marker, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, select

from .common import BIAS, STRENGTHS, distinct, network, networks, scale_of, spread_of_mean

TOLERANCE = 0.005  # of the largest number in an entry; seeds scatter by 0.052 or more
LENGTHS = [0.05, 0.2, 0.5, 1.0, 1.5, 2.5, 4.0, 5.5, 7.0, 9.0, 11.0, 13.0, 15.0]
SWEEP = [0.6, 0.8, 1.0, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2, 3.6, 4.0]


def cases(scale: str = "small") -> list[dict[str, Any]]:
    width, seeds = (1000, 12) if scale == "full" else (200, 4)
    sweep = SWEEP if scale == "full" else SWEEP[::5]
    maps = networks(STRENGTHS, seeds, bias=BIAS, width=width, depth=10, starts=LENGTHS)
    narrow: dict[str, Any] = dict(width=width // 2, depth=20, starts=[1.0])
    return (
        maps
        + networks(sweep, seeds // 2, bias=0.0, **narrow)
        + networks(sweep, seeds // 2, bias=1.0, **narrow)
    )


@torch.no_grad()
def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Mean squares q^l, (depth + 1, starts): independent random directions, scaled to the lengths asked for."""
    generator = torch.Generator().manual_seed(case["seed"])
    x = torch.randn(len(case["starts"]), case["width"], generator=generator, dtype=torch.float64)
    lengths = torch.tensor(case["starts"], dtype=torch.float64)
    h = network(case).preactivations(x * (lengths / x.square().mean(dim=1)).sqrt()[:, None])
    return {"lengths": rounded(h.square().mean(dim=2).tolist())}


def claim(results: Sequence[Result]) -> Claim:
    maps = select(results, starts=LENGTHS)
    return Claim.all([_agreement(maps), _convergence(maps)])


def _agreement(results: Sequence[Result]) -> Claim:
    tolerance = 6 * spread_of_mean(
        results
    )  # 4 standard deviations: a mean square scatters by sqrt(2 / width)
    found = {s: over_seeds(results, "lengths", strength=s)[0] for s in STRENGTHS}
    gaps = np.abs([found[s][1] / _maps(s).length(LENGTHS) - 1 for s in STRENGTHS])
    return Claim(
        "The length map of theory matches individual random networks of width 1000.",
        f"After one layer the mean over networks is within {gaps.mean():.1%} of the map on average, {gaps.max():.1%} "
        f"at most ({gaps.size} points; chance allows {tolerance:.1%}).",
        scale_of(results),
        bool(gaps.max() < tolerance),
        {"mean_gap": gaps.mean(), "largest_gap": gaps.max(), "allowed": tolerance},
        rows=("C1", "C2"),
    )


def _convergence(results: Sequence[Result]) -> Claim:
    tolerance = 6 * spread_of_mean(results)
    layers, last = [], []
    for strength in STRENGTHS:
        maps = _maps(strength, depth=40)
        goal = maps.limits.length_fixed_point
        layers.append(np.argmax(np.abs(maps.orbit(LENGTHS).length / goal - 1) < 0.01, axis=0))
        last.append(over_seeds(results, "lengths", strength=strength)[0][-1] / goal - 1)
    needed, off = np.array(layers), np.abs(last)
    return Claim(
        "Lengths converge rapidly, within a few layers, to one fixed point q* whatever they start at.",
        f"Theory is within 1 % of q* after {np.median(needed):.0f} layers in the median and {needed.max()} at most, "
        f"for starts from {LENGTHS[0]:g} to {LENGTHS[-1]:g}; networks at layer 10 are off by {off.max():.1%} at most "
        f"(chance allows {tolerance:.1%}).",
        scale_of(results),
        bool(needed.max() <= 10 and off.max() < tolerance),
        {
            "median_layers": np.median(needed),
            "most_layers": needed.max(),
            "largest_gap_at_layer_10": off.max(),
        },
        rows=("C2",),
    )


def draw(results: Sequence[Result]) -> Figure:
    maps, sweep = select(results, starts=LENGTHS), select(results, starts=[1.0])
    panels = (_map_panel(maps), _orbit_panel(maps), _sweep_panel(sweep), _rate_panel(maps))
    title = (
        "Lengths in random tanh networks follow one map to one fixed point\n(lines: theory, points: networks)"
    )
    return Sheet(
        title, panels, f"{scale_of(maps)}; C: {scale_of(sweep)}; bars: standard error", columns=2
    ).draw()


@lru_cache
def _maps(strength: float, bias: float = BIAS, depth: int = 10) -> Any:
    return edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", strength**2, bias**2, depth))


def _map_panel(results: Sequence[Result]) -> Panel:
    q = np.linspace(0, 15, 151)
    curves, marks = [Curve("q' = q", q, q, group=6, role="third")], []
    for group, strength in enumerate(STRENGTHS):
        mean, error = over_seeds(results, "lengths", strength=strength)
        maps = _maps(strength)
        at = maps.limits.length_fixed_point
        curves.append(Curve(f"σ_w = {strength}", q, maps.length(q), group))
        curves.append(Curve("_networks", np.array(LENGTHS), mean[1], group, "points", error[1]))
        marks.append(Marker("fixed point q*", at, at))
    return Panel(
        "A  length map, one layer (σ_b = 0.3)",
        "length in, q",
        "length out, q'",
        tuple(curves),
        markers=(marks[0], *(Marker("", m.x, m.y) for m in marks[1:])),
    )


def _orbit_panel(results: Sequence[Result]) -> Panel:
    curves = []
    for group, strength in enumerate(STRENGTHS):
        mean, error = over_seeds(results, "lengths", strength=strength)
        orbit = _maps(strength).orbit(LENGTHS).length
        layers = np.arange(len(orbit))
        for place in (0, 3, 12):
            name = f"σ_w = {strength}" if place == 0 else "_"
            curves.append(Curve(name, layers, orbit[:, place], group))
            curves.append(Curve("_networks", layers, mean[:, place], group, "points", error[:, place]))
    starts = ", ".join(f"{LENGTHS[place]:g}" for place in (0, 3, 12))
    return Panel(f"B  orbits from q = {starts}", "layer", "length q", tuple(curves), log_y=True, legend=False)


def _sweep_panel(results: Sequence[Result]) -> Panel:
    curves, strengths = [], np.linspace(0.4, 4.0, 37)
    for group, bias in enumerate((0.0, 1.0), start=3):
        at = np.array(distinct(results, "strength"))
        found = [over_seeds(results, "lengths", strength=s, bias=bias) for s in at]
        mean, error = (np.array([pair[k][-1, 0] for pair in found]) for k in (0, 1))
        line = [_maps(s, bias).limits.length_fixed_point for s in strengths]
        curves += [
            Curve(f"σ_b = {bias:g}: q*", strengths, np.array(line), group),
            Curve("_networks", at, mean, group, "points", error),
        ]
    return Panel("C  fixed point; networks at layer 20", "weight strength σ_w", "length q", tuple(curves))


def _rate_panel(results: Sequence[Result]) -> Panel:
    curves = []
    for group, strength in enumerate(STRENGTHS):
        mean, _ = over_seeds(results, "lengths", strength=strength)
        maps = _maps(strength)
        goal, orbit = maps.limits.length_fixed_point, maps.orbit(LENGTHS[-1]).length
        away = np.abs(orbit / goal - 1)
        curves.append(
            Curve(
                f"σ_w = {strength}: slope χ_q = {maps.limits.chi_q:.2f}",
                np.arange(len(orbit)),
                np.where(away > 1e-4, away, np.nan),
                group,
            )
        )
        curves.append(
            Curve("_networks", np.arange(len(orbit)), np.abs(mean[:, -1] / goal - 1), group, "points")
        )
    noise = spread_of_mean(results)
    flat = Curve(f"scatter of the mean, {noise:.1%}", np.array([0.0, 10.0]), np.full(2, noise), 6, "third")
    return Panel(
        "D  distance from q*, started at q = 15", "layer", "|q / q* − 1|", (*curves, flat), log_y=True
    )
