"""A circle of inputs through random tanh networks: autocorrelation and principal components [Poole 2016, Fig. 3].

Theory for the components: on a circle all statistics depend on the difference of two angles, so the principal
components are its harmonics, and their shares of the variance the Fourier coefficients of the autocorrelation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.nets import circle
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded
from edgewise.theory.perceptron.maps import PerceptronMaps

from .common import BIAS, STRENGTHS, network, networks, perceptron, scale_of, spread_of_mean

TOLERANCE = 0.0008  # of the largest number in an entry; seeds scatter by 0.0077 or more
POINTS = 128
ANGLES = 2 * np.pi * np.arange(POINTS) / POINTS
LAYERS = (0, 2, 5, 10)
COMPONENTS = 16
FINE = {
    1.3: 200,
    2.5: 900,
    4.0: 2400,
}  # angles of the curves that are shown: folds are 1/sqrt(chi_1)^10 of a turn


def cases(scale: str = "small") -> list[dict[str, Any]]:
    width, seeds = (1000, 8) if scale == "full" else (200, 2)
    return networks(STRENGTHS, seeds, bias=BIAS, width=width, depth=LAYERS[-1])


@torch.no_grad()
def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Autocorrelation (layers, 65 offsets), shares of the components (layers, 16), one curve on the first two."""
    h = _layers(case, ANGLES)
    gram = np.einsum("lan,lbn->lab", h, h)
    mean = np.array([[np.trace(np.roll(g, -k, axis=1)) for k in range(POINTS // 2 + 1)] for g in gram])
    shares, axes = zip(*(_components(x - x.mean(axis=0)) for x in h), strict=True)
    value = {"autocorrelation": rounded(mean / mean[:, :1], 4), "shares": rounded(shares, 4)}
    return value | ({"curves": rounded(_curves(case, axes[2:]), 3)} if case["seed"] == 0 else {})


def _layers(case: dict[str, Any], angles: np.ndarray) -> np.ndarray:
    """The circle at the chosen layers, (layers, angles, N)."""
    length = PerceptronMaps(perceptron(case)).limits.length_fixed_point
    start = circle(angles.tolist(), case["width"], length, seed=case["seed"])
    return network(case).preactivations(start)[list(LAYERS)].numpy()


def _components(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variance shares (16,) and the first two directions (2, N)."""
    _, s, directions = np.linalg.svd(x, full_matrices=False)
    return (s**2 / np.sum(s**2))[:COMPONENTS], directions[:2]


def _curves(case: dict[str, Any], axes: Sequence[np.ndarray]) -> np.ndarray:
    """The circle at layers 5 and 10 on its first two components, (2, 2, angles), per neuron."""
    count = FINE[case["strength"]]
    h = _layers(case, 2 * np.pi * np.arange(count) / count)[2:]
    centred = h - h.mean(axis=1, keepdims=True)
    return np.stack([u @ x.T for u, x in zip(axes, centred, strict=True)]) / np.sqrt(case["width"])


def _theory(strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Autocorrelation (layers, 128) and shares (layers, 16) at infinite width, on the same angles."""
    maps = edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", strength**2, BIAS**2, LAYERS[-1]))
    correlation = maps.circle(ANGLES).autocorrelation[list(LAYERS)]
    power = np.fft.fft(correlation, axis=1).real[:, 1:]  # without the mean, which centring removes
    shares = -np.sort(-power, axis=1) / power.sum(axis=1, keepdims=True)
    return correlation, shares[:, :COMPONENTS]


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_autocorrelation(results), _spreading(results), _shares(results)])


def _autocorrelation(results: Sequence[Result]) -> Claim:
    measured = [over_seeds(results, "autocorrelation", strength=s)[0] for s in STRENGTHS]
    gaps = np.abs([m - _theory(s)[0][:, : POINTS // 2 + 1] for m, s in zip(measured, STRENGTHS, strict=True)])
    allowed = 4 * spread_of_mean(results)
    return Claim(
        "The autocorrelation of the circle follows the correlation map, applied angle by angle.",
        f"Over layers {', '.join(map(str, LAYERS))} and 65 offsets it is off by "
        f"{gaps.mean():.4f} on average and {gaps.max():.4f} at most "
        f"(chance allows {allowed:.4f}).",
        scale_of(results),
        bool(gaps.max() < allowed),
        {"mean_gap": gaps.mean(), "largest_gap": gaps.max()},
        rows=("C7",),
    )


def _spreading(results: Sequence[Result]) -> Claim:
    """Share of the first two components at the last layer: a circle in a plane has 1."""
    first = [float(over_seeds(results, "shares", strength=s)[0][-1, :2].sum()) for s in STRENGTHS]
    expected = [float(_theory(s)[1][-1, :2].sum()) for s in STRENGTHS]
    words = ", ".join(f"{x:.2f} (theory {y:.2f})" for x, y in zip(first, expected, strict=True))
    return Claim(
        "With strong weights the circle spreads over many components; with weak ones it stays nearly flat.",
        f"Share of the first two components at layer {LAYERS[-1]} for sigma_w = 1.3, 2.5, 4: {words}.",
        scale_of(results),
        bool(first[0] > 0.7 and first[0] > first[1] > first[2] and first[2] < 0.3),
        {"measured": first, "theory": expected},
        rows=("C7",),
    )


def _shares(results: Sequence[Result]) -> Claim:
    """Ours: harmonics predict the components as long as few of them matter. A flat spectrum of 128 points in 1000
    dimensions is spread by chance alone [Marchenko 1967], by sqrt(128 / 1000) up and down in singular value."""
    measured = np.array([over_seeds(results, "shares", strength=s)[0] for s in STRENGTHS])
    theory = np.array([_theory(s)[1] for s in STRENGTHS])
    ratio = measured[:, :, 0] / theory[:, :, 0]
    edge = (1 + np.sqrt(POINTS / results[0].case["width"])) ** 2
    return Claim(
        "(ours) The shares are the Fourier coefficients of the autocorrelation.",
        f"The largest share over its prediction is between {ratio.min():.2f} and {ratio.max():.2f}; it is worst where "
        f"the spectrum is flat, where random directions alone give up to {edge:.2f}.",
        scale_of(results),
        bool(ratio.max() < 1.15 * edge),
        {"ratios": ratio.tolist(), "edge": edge},
        rows=("C7",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = [panel for strength in STRENGTHS for panel in _row(results, strength)]
    title = "A circle of inputs stays simple in ordered networks and tangles in chaotic ones"
    foot = f"lines: theory, points: {scale_of(results)}, σ_b = 0.3, {POINTS} angles; bars: standard error"
    return Sheet(title, tuple(panels), foot, columns=4).draw()


def _row(results: Sequence[Result], strength: float) -> list[Panel]:
    curves = next(
        r.value["curves"] for r in results if r.case["strength"] == strength and r.case["seed"] == 0
    )
    correlation, shares = _theory(strength)
    return [
        *(
            _projection(strength, layer, np.array(curve))
            for layer, curve in zip(LAYERS[2:], curves, strict=True)
        ),
        _decay(strength, correlation, *over_seeds(results, "autocorrelation", strength=strength)),
        _spectrum(strength, shares, *over_seeds(results, "shares", strength=strength)),
    ]


def _projection(strength: float, layer: int, at: np.ndarray) -> Panel:
    x, y = np.concatenate([at, at[:, :1]], axis=1)
    curve = Curve("", x, y, 6)
    return Panel(
        f"σ_w = {strength}, layer {layer}", "component 1 / √N", "component 2 / √N", (curve,), legend=False
    )


def _decay(strength: float, theory: np.ndarray, mean: np.ndarray, error: np.ndarray) -> Panel:
    degrees, every, curves = np.degrees(ANGLES[: POINTS // 2 + 1]), slice(0, None, 4), []
    for group, layer in enumerate(LAYERS):
        curves.append(Curve(f"layer {layer}", degrees, theory[group, : len(degrees)], group))
        curves.append(Curve("_", degrees[every], mean[group, every], group, "points", error[group, every]))
    return Panel(
        f"σ_w = {strength}: autocorrelation", "angle Δθ (degrees)", "correlation c(Δθ)", tuple(curves)
    )


def _spectrum(strength: float, theory: np.ndarray, mean: np.ndarray, error: np.ndarray) -> Panel:
    rank, curves = np.arange(1, COMPONENTS + 1), []
    for group, layer in enumerate(LAYERS[1:], start=1):
        curves.append(Curve(f"layer {layer}", rank, np.maximum(theory[group], 1e-5), group))
        curves.append(Curve("_", rank, np.maximum(mean[group], 1e-5), group, "points", error[group]))
    return Panel(
        f"σ_w = {strength}: principal components", "component", "share of variance", tuple(curves), log_y=True
    )
