"""A circle through a chaotic tanh network as t-SNE shows it: more wiggles with every layer? [talk; Poole 2016]

The picture of the talk: the circle at several layers, embedded in a plane by t-SNE [Maaten 2008]. Counted is how often
the embedded curve turns around: its total turning over 2 pi, and the number of its pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.nets import circle
from edgewise.study import Claim, Result, over_seeds, rounded
from edgewise.theory.perceptron.maps import PerceptronMaps
from edgewise.view import Curve, Panel, Sheet

from .common import BIAS, network, perceptron, scale_of

STRENGTH = 4.0  # of the weights: chaotic
LAYERS = (0, 2, 4, 6)


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    sizes = {"width": 300, "angles": 240} if full else {"width": 50, "angles": 40}
    return [{"strength": STRENGTH, "bias": BIAS, "depth": LAYERS[-1], "seed": seed, **sizes}
            for seed in range(3 if full else 1)]  # fmt: skip


@torch.no_grad()
def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Per layer: total turning over 2 pi of the embedded curve, and for the first seed the curve itself."""
    from sklearn.manifold import TSNE

    angles = (2 * np.pi * np.arange(case["angles"]) / case["angles"]).tolist()
    length = PerceptronMaps(perceptron(case)).limits.length_fixed_point
    h = network(case).preactivations(circle(angles, case["width"], length, seed=case["seed"]))
    plane = [TSNE(perplexity=8, init="pca", random_state=0, max_iter=500).fit_transform(h[layer].numpy())
             for layer in LAYERS]  # fmt: skip
    value = {"turns": rounded([turning(x) for x in plane])}
    return value | ({"curves": rounded([x.T for x in plane], 3)} if case["seed"] == 0 else {})


def turning(curve: np.ndarray) -> float:
    """Sum of the angles between successive steps of a closed curve, over 2 pi: 1 for a convex one."""
    step = np.roll(curve, -1, axis=0) - curve
    direction = np.arctan2(step[:, 1], step[:, 0])
    change = np.angle(np.exp(1j * (np.roll(direction, -1) - direction)))
    return float(np.abs(change).sum() / (2 * np.pi))


def claim(results: list[Result]) -> Claim:
    mean, error = over_seeds(results, "turns")
    said = ", ".join(f"{m:.1f} ± {e:.1f}" for m, e in zip(mean, error, strict=True))
    more = bool(np.all(np.diff(mean) > 2 * np.hypot(error[1:], error[:-1])))
    return Claim(
        "In a t-SNE plot of the circle through multiple layers you get more and more wiggles [talk].",
        f"Total turning of the embedded curve over 2 pi at layers {', '.join(map(str, LAYERS))}: {said}. Held: more "
        "at every "
        "one, by two standard errors.",
        scale_of(results), more if len(results) > 1 else None, {"turns": mean.tolist(), "error": error.tolist()},
        rows=("C8",),
    )  # fmt: skip


def draw(results: list[Result]) -> Figure:
    curves = next(r.value["curves"] for r in results if "curves" in r.value)
    mean, _ = over_seeds(results, "turns")
    panels = []
    for layer, xy, turns in zip(LAYERS, curves, mean, strict=True):
        x, y = (np.append(row, row[0]) for row in np.array(xy))
        curve, note = Curve("", x, y, 6, "orbit"), f"turns {turns:.1f} times"
        panels.append(Panel(f"layer {layer}", "t-SNE 1", "t-SNE 2", (curve,), note, legend=False))
    title = "A circle through a chaotic network, embedded by t-SNE"
    foot = f"{scale_of(results)}, σ_w = {STRENGTH:g}, {results[0].case['angles']} angles"
    return Sheet(title, tuple(panels), foot).draw()
