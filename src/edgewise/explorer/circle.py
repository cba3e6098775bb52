"""A circle of inputs inside one random perceptron: where it lies after every layer, and how long it has become."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.explorer.flow import rounded
from edgewise.nouns.perceptron import Perceptron
from edgewise.theory.perceptron.maps import PerceptronMaps

LARGEST_SIGNAL = 1e60
NEAR = 1e-7  # radians
WIDTH, ANGLES = 256, 240  # of the random network, and points on its circle


def drawn_circle(network: Perceptron, length: float, pair: float, seed: int) -> dict[str, Any]:
    """The circle after every layer, in its two widest directions, with its length and a pair on it."""
    layers, speeds = simulated(network, length, pair, seed)
    with np.errstate(all="ignore"):
        theory = PerceptronMaps(network).circle(angles=np.zeros(1), start_length=length).euclidean_length
    return {
        "layers": [[[round(float(a), 4), round(float(b), 4)] for a, b in view] for view in views(layers)],
        "stretched": rounded(speeds / speeds[0]),
        "theory": rounded(theory[: len(layers)] / theory[0]),
        "pair": rounded(cosines(layers)),
    }


def simulated(network: Perceptron, length: float, pair: float, seed: int) -> tuple[Array, Array]:
    """Every layer's circle and the pair after it (L + 1, ANGLES + 3, N), and mean speeds along it, while finite.

    Speeds are those of points next to each other (NEAR): a finely folded curve needs no fine sampling.
    """
    import torch

    from edgewise.nets.perceptron import RandomPerceptron, circle

    angles = np.concatenate([np.linspace(0, 2 * np.pi, ANGLES + 1), [0.0, pair]])
    both = torch.from_numpy(np.concatenate([angles, angles + NEAR]))
    with torch.no_grad():
        model = RandomPerceptron(network, seed=seed).double()
        layers, beside = np.split(model.preactivations(circle(both, WIDTH, length, seed)).numpy(), 2, axis=1)
    with np.errstate(all="ignore"):
        speeds = np.linalg.norm((beside - layers)[:, :ANGLES], axis=-1).mean(1) / NEAR
    inside = np.isfinite(speeds) & (np.abs(layers).max((1, 2)) < LARGEST_SIGNAL)
    count = len(layers) if inside.all() else int(np.argmin(inside))
    return layers[:count], speeds[:count]


def views(layers: Array) -> list[Array]:
    """Each layer in its two widest directions, of one size, turned to lie as the layer before does."""
    drawn: list[Array] = []
    for layer in layers:
        curve = layer - layer[:ANGLES].mean(0)
        _, _, directions = np.linalg.svd(curve[:ANGLES:4], full_matrices=False)
        flat = curve @ directions[:2].T
        flat /= max(float(np.abs(flat).max()), 1e-300)
        if drawn:
            left, _, right = np.linalg.svd(flat.T @ drawn[-1])
            flat = flat @ (left @ right)
        drawn.append(flat)
    return drawn


def cosines(layers: Array) -> Array:
    """How alike the two inputs of the pair are after every layer; nan once a signal is gone."""
    one, other = layers[:, -2], layers[:, -1]
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(1) / np.where(sizes > 0, sizes, np.nan))
