"""The correlation map of a random tanh network and its transition from order to chaos [Poole 2016, Fig. 2].

Pairs of inputs of length q* and chosen correlation enter one random network; their cosine is read at every layer.
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
from edgewise.nets import circle
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, select
from edgewise.theory.perceptron.maps import PerceptronMaps

from .common import BIAS, STRENGTHS, distinct, network, networks, perceptron, scale_of, spread_of_mean

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.024 or more
STARTS = [-0.9, -0.6, -0.3, 0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97]
SWEEP = [0.8, 1.0, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0]
DEEP = 60
LATE = 40  # layers from here on are averaged: a pair of finite networks wanders around c*
SWEPT = 0.6  # correlation from which every strength of the sweep starts


def cases(scale: str = "small") -> list[dict[str, Any]]:
    width, seeds = (1000, 12) if scale == "full" else (200, 4)
    sweep = SWEEP if scale == "full" else SWEEP[::4]
    maps = networks(STRENGTHS, seeds, bias=BIAS, width=width, depth=12, starts=STARTS)
    return maps + networks(sweep, seeds // 2, bias=BIAS, width=width // 2, depth=DEEP, starts=[SWEPT])


@torch.no_grad()
def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Separations 1 - c^l, (depth + 1, starts), of a fixed vector and others at the angles arccos c0 from it.

    Of a deep network only their means over the late layers, (starts,).
    """
    length = PerceptronMaps(perceptron(case)).limits.length_fixed_point
    angles = [0.0, *(math.acos(c) for c in case["starts"])]
    h = network(case).preactivations(circle(angles, case["width"], length, seed=case["seed"]))
    directions = h / h.norm(dim=2, keepdim=True)
    separations = (directions[:, 1:] - directions[:, :1]).square().sum(dim=2) / 2
    if case["depth"] == DEEP:
        return {"late": rounded(separations[LATE:].mean(dim=0), 5)}
    return {"separations": rounded(separations, 5)}


def claim(results: Sequence[Result]) -> Claim:
    maps, sweep = select(results, starts=STARTS), select(results, starts=[SWEPT])
    return Claim.all([_agreement(maps), _transition(sweep)])


def _agreement(results: Sequence[Result]) -> Claim:
    tolerance = 4 * spread_of_mean(results)
    found = {s: over_seeds(results, "separations", strength=s)[0] for s in STRENGTHS}
    gaps = np.abs([1 - found[s][1] - _maps(s).correlation(STARTS) for s in STRENGTHS])
    return Claim(
        "The correlation map of theory matches random networks of width 1000.",
        f"After one layer the mean cosine over networks is within {gaps.mean():.4f} of the map on average, "
        f"{gaps.max():.4f} at most ({gaps.size} points; chance allows {tolerance:.4f}).",
        scale_of(results),
        bool(gaps.max() < tolerance),
        {"mean_gap": gaps.mean(), "largest_gap": gaps.max(), "allowed": tolerance},
        rows=("C3",),
    )


def _transition(results: Sequence[Result]) -> Claim:
    """Ordered: every pair merges. Chaotic: it stops at c* < 1. Judged away from the edge, where 60 layers suffice."""
    ordered, chaotic = [], []
    for strength in distinct(results, "strength"):
        limits = _maps(strength).limits
        if limits.depth_scale_correlation < DEEP / 4:
            last = float(over_seeds(results, "late", strength=strength)[0][0])
            (ordered if limits.chi_1 < 1 else chaotic).append(
                (last, abs(1 - last - limits.correlation_fixed_point))
            )
    merged, off = max(gap for gap, _ in ordered), max(gap for _, gap in chaotic)
    tolerance = 6 * spread_of_mean(results)
    return Claim(
        "Below chi_1 = 1 all inputs merge (c* = 1); above it c = 1 is unstable and pairs go to c* < 1.",
        f"Over layers {LATE} to {DEEP}, away from the edge: 1 - c is at most {merged:.1e} below it, and c is "
        f"within {off:.3f} of c* above it (chance allows {tolerance:.3f}).",
        scale_of(results),
        bool(merged < 0.05 and off < tolerance),
        {"largest_separation_ordered": merged, "largest_gap_chaotic": off, "allowed": tolerance},
        rows=("C3", "C5"),
    )


def draw(results: Sequence[Result]) -> Figure:
    maps, sweep = select(results, starts=STARTS), select(results, starts=[SWEPT])
    panels = (_map_panel(maps), _orbit_panel(maps), _sweep_panel(sweep))
    title = "Two inputs merge below the edge of chaos and part above it\n(lines: theory, points: networks)"
    return Sheet(title, panels, f"{scale_of(maps)}; C: {scale_of(sweep)}; bars: standard error").draw()


@lru_cache
def _maps(strength: float, depth: int = 12) -> Any:
    return edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", strength**2, BIAS**2, depth))


def _map_panel(results: Sequence[Result]) -> Panel:
    c = np.linspace(-1, 1, 101)
    curves = [Curve("c' = c", c, c, group=6, role="third")]
    for group, strength in enumerate(STRENGTHS):
        mean, error = over_seeds(results, "separations", strength=strength)
        maps = _maps(strength)
        curves.append(Curve(f"σ_w = {strength}: χ₁ = {maps.limits.chi_1:.2f}", c, maps.correlation(c), group))
        curves.append(Curve("_networks", np.array(STARTS), 1 - mean[1], group, "points", error[1]))
    return Panel(
        "A  correlation map at q* (σ_b = 0.3)", "correlation in, c", "correlation out, c'", tuple(curves)
    )


def _orbit_panel(results: Sequence[Result]) -> Panel:
    curves = []
    for group, strength in enumerate(STRENGTHS):
        mean, error = over_seeds(results, "separations", strength=strength)
        maps = _maps(strength)
        orbit = maps.orbit(maps.limits.length_fixed_point, STARTS).correlation
        layers = np.arange(len(orbit))
        for place in (0, 4, 9):
            name = f"σ_w = {strength}: c* = {maps.limits.correlation_fixed_point:.2f}" if place == 0 else "_"
            curves.append(Curve(name, layers, orbit[:, place], group))
            curves.append(Curve("_networks", layers, 1 - mean[:, place], group, "points", error[:, place]))
    starts = ", ".join(f"{STARTS[place]:g}" for place in (0, 4, 9))
    return Panel(f"B  orbits from c = {starts}", "layer", "correlation c", tuple(curves))


def _sweep_panel(results: Sequence[Result]) -> Panel:
    strengths = np.linspace(0.8, 4.0, 33)
    deep = [_maps(s, DEEP) for s in strengths]
    finite = np.array([m.orbit(m.limits.length_fixed_point, SWEPT).correlation[LATE:].mean() for m in deep])
    at = np.array(distinct(results, "strength"))
    found = [over_seeds(results, "late", strength=s) for s in at]
    mean, error = (np.array([pair[k][0] for pair in found]) for k in (0, 1))
    edge = math.sqrt(_maps(1.0).limits.boundary_weight_variance)
    curves = (
        Curve("limit c*", strengths, np.array([m.limits.correlation_fixed_point for m in deep])),
        Curve(f"theory, layers {LATE} to {DEEP}", strengths, finite, 1, "second"),
        Curve(f"networks, layers {LATE} to {DEEP}", at, 1 - mean, 1, "points", error),
        Curve(f"χ₁ = 1 at σ_w = {edge:.3f}", np.full(2, edge), np.array([0.0, 1.0]), 6, "third"),
    )
    return Panel("C  order to chaos (σ_b = 0.3)", "weight strength σ_w", "correlation c", curves)
