"""A circle through a chaotic tanh network as t-SNE shows it: more wiggles with every layer? [talk; Poole 2016]

The picture of the talk: the circle at several layers, embedded in a plane by t-SNE [Maaten 2008] at its usual
perplexity. Counted is the total turning of the embedded curve over 2 pi, after a mean over a fiftieth of the circle
that takes away the scatter from point to point. t-SNE folds any long chain of neighbours by itself, so the plain circle
(layer 0) is counted, too, and the circle is sampled twice as finely beside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.nets import circle
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded
from edgewise.theory.perceptron.maps import PerceptronMaps

from .common import BIAS, network, perceptron

TOLERANCE = 0.004  # of the largest number in an entry; seeds scatter by 0.038 or more
NOT_COMPARED = ("turns", "curves")  # t-SNE amplifies rounding: for points 1e-7 apart turns differ by 8 %
STRENGTH = 4.0  # of the weights: chaotic
LAYERS = (0, 2, 4, 6, 8)
SEEDS = {1200: range(1, 6), 2400: range(1, 9)}  # by angles; seed 0 was the trial in which they were chosen
NEIGHBOURS = 50  # a mean is over this part of the circle


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    return [
        {
            "strength": STRENGTH,
            "bias": BIAS,
            "depth": LAYERS[-1],
            "width": 300 if full else 50,
            "angles": angles,
            "steps": 1000 if full else 250,
            "seed": seed,
        }
        for angles, seeds in (SEEDS if full else {60: range(1)}).items()
        for seed in seeds
    ]


@torch.no_grad()
def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Per layer: total turning over 2 pi of the embedded curve; for the picture the curve itself."""
    from sklearn.manifold import TSNE

    angles = (2 * np.pi * np.arange(case["angles"]) / case["angles"]).tolist()
    length = PerceptronMaps(perceptron(case)).limits.length_fixed_point
    h = network(case).preactivations(circle(angles, case["width"], length, seed=case["seed"]))
    plane = [
        TSNE(
            perplexity=20 if case["angles"] < 100 else 30, init="pca", random_state=0, max_iter=case["steps"]
        ).fit_transform(h[layer].numpy())
        for layer in LAYERS
    ]
    value = {"turns": rounded([turning(smooth(x)) for x in plane])}
    shown = case["angles"] <= 1200 and case["seed"] <= 1
    return value | ({"curves": rounded([x.T for x in plane], 4)} if shown else {})


def smooth(curve: np.ndarray) -> np.ndarray:
    """Mean over neighbouring points of a closed curve."""
    side = len(curve) // NEIGHBOURS // 2
    return np.asarray(np.mean([np.roll(curve, k, axis=0) for k in range(-side, side + 1)], axis=0))


def turning(curve: np.ndarray) -> float:
    """Sum of the angles between successive steps of a closed curve, over 2 pi: 1 for a convex one."""
    step = np.roll(curve, -1, axis=0) - curve
    direction = np.arctan2(step[:, 1], step[:, 0])
    change = np.angle(np.exp(1j * (np.roll(direction, -1) - direction)))
    return float(np.abs(change).sum() / (2 * np.pi))


def claim(results: list[Result]) -> Claim:
    return Claim.all([_more(results), _finer(results)])


def _sampled(results: list[Result], angles: int) -> list[Result]:
    return [r for r in results if r.case["angles"] == angles]


def _scale(results: list[Result]) -> str:
    angles = " and ".join(f"{n:,}" for n in sorted({r.case["angles"] for r in results}))
    return f"tanh, width {results[0].case['width']}, {angles} angles, {_networks(results)}"


def _networks(results: list[Result]) -> str:
    counts = [len(_sampled(results, angles)) for angles in sorted({r.case["angles"] for r in results})]
    return f"{' and '.join(map(str, counts))} random networks"


def _said(mean: np.ndarray, error: np.ndarray) -> str:
    return ", ".join(f"{m:.1f} ± {e:.1f}" for m, e in zip(mean, error, strict=True))


def _more(results: list[Result]) -> Claim:
    few = _sampled(results, min(r.case["angles"] for r in results))
    mean, error = over_seeds(few, "turns")
    more = bool(np.all(np.diff(mean) > 2 * np.hypot(error[1:], error[:-1])))
    return Claim(
        "In a t-SNE plot of the circle through multiple layers you get more and more wiggles [talk].",
        f"Total turning of the embedded curve over 2 pi at layers {', '.join(map(str, LAYERS))}, "
        f"{few[0].case['angles']:,} angles: {_said(mean, error)}. Held: more at every one, by two standard errors.",
        _scale(results),
        more if len(few) > 1 else None,
        {"turns": mean.tolist(), "error": error.tolist()},
        rows=("C8",),
    )


def _finer(results: list[Result]) -> Claim:
    """Wiggles of the network, not of t-SNE, would be there however finely the circle is sampled."""
    rises, words = [], []
    for angles in sorted({r.case["angles"] for r in results}):
        mean, error = over_seeds(_sampled(results, angles), "turns")
        rise, scatter = float(mean[-1] - mean[0]), float(np.hypot(error[0], error[-1]))
        rises.append((rise, scatter))
        words.append(
            f"{angles:,} angles: {mean[0]:.1f} at layer 0, {rise:+.1f} ± {scatter:.1f} to layer {LAYERS[-1]}"
        )
    return Claim(
        "(ours) The wiggles are the network's: they grow however finely the circle is sampled.",
        f"{'; '.join(words)}. A circle has 1. Held: they grow by two standard errors at both.",
        _scale(results),
        all(rise > 2 * error for rise, error in rises) if len(rises) > 1 else None,
        {"rises": rises},
        rows=("C8",),
    )


def draw(results: list[Result]) -> Figure:
    shown = next(r for r in results if "curves" in r.value)
    mean, _ = over_seeds(_sampled(results, shown.case["angles"]), "turns")
    panels = []
    for layer, xy, turns in zip(LAYERS, shown.value["curves"], mean, strict=True):
        x, y = (np.append(row, row[0]) for row in np.array(xy))
        curve, note = Curve("", x, y, 6), f"turns {turns:.1f} times, mean of networks"
        panels.append(Panel(f"layer {layer}", "t-SNE 1", "t-SNE 2", (curve,), note, legend=False))
    title = "A circle through a chaotic network, embedded by t-SNE"
    foot = (
        f"{_scale(results)}, σ_w = {STRENGTH:g}, perplexity 30; curves: the first of the networks with "
        f"{shown.case['angles']:,} angles"
    )
    return Sheet(title, (*panels, _turns(results)), foot, columns=3).draw()


def _turns(results: list[Result]) -> Panel:
    """How often the curve turns, by layer and by how finely the circle is sampled."""
    curves = []
    for group, angles in enumerate(sorted({r.case["angles"] for r in results})):
        mean, error = over_seeds(_sampled(results, angles), "turns")
        curves.append(Curve(f"{angles:,} angles", np.array(LAYERS, float), mean, group, "orbit", error))
    return Panel(
        "all networks",
        "layer",
        "turns of the embedded curve",
        tuple(curves),
        "dotted: a circle turns once",
        levels=(1.0,),
    )
