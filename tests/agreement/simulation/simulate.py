"""Push tokens through random networks and gradients back, and record what the theory predicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.agreement.simulation.knobs import Knobs
from tests.agreement.simulation.network import block, draw_weights, gaussian

Graph = tuple[Tensor, dict[str, Tensor], Tensor]  # block input, weights, block output

MEMORY_LIMIT = 1.5e9  # bytes of weights kept between forward and backward; above it each block is drawn again


def start_tokens(knobs: Knobs, overlap: float, generator: np.random.Generator, dtype: torch.dtype) -> Tensor:
    """Gaussian tokens x_a = sqrt(q) (sqrt(c0) common + sqrt(1 - c0) own_a)."""
    common = gaussian(generator, 1, knobs.width, dtype=dtype)
    own = gaussian(generator, knobs.tokens, knobs.width, dtype=dtype)
    return sqrt(knobs.embedding_norm) * (sqrt(overlap) * common + sqrt(1 - overlap) * own)


def output_gradient(knobs: Knobs, readout: str, generator: np.random.Generator, dtype: torch.dtype) -> Tensor:
    """dLoss/dx at the output, E|g_a|^2 = 1: independent per token, or one vector shared by all (pooled)."""
    if readout not in ("token", "pooled"):
        raise ValueError(f"readout {readout!r}: expected token or pooled")
    rows = knobs.tokens if readout == "token" else 1
    g = gaussian(generator, rows, knobs.width, std=1 / sqrt(knobs.width), dtype=dtype)
    return g.expand(knobs.tokens, -1)


def mean_square(x: Tensor) -> float:
    """q = mean over tokens and coordinates of x^2."""
    return x.double().square().mean().item()


def separation(x: Tensor) -> float:
    """Mean of 1 - cosine over pairs: sum_a |u_a - mean u|^2 / (n - 1) for unit u, free of cancellation."""
    unit = x.double()
    unit = unit / unit.norm(dim=-1, keepdim=True)
    return ((unit - unit.mean(0)).square().sum() / (len(x) - 1)).item()


class Run:
    """One seed: the block inputs with their graphs (or without, when the weights would not fit in memory)."""

    def __init__(self, knobs: Knobs, seed: int, dtype: torch.dtype, weight_gradients: bool) -> None:
        self.knobs, self.seed, self.dtype, self.weight_gradients = knobs, seed, dtype, weight_gradients
        first = knobs.at(0)
        per_block = 2 * knobs.width * (2 * knobs.heads * first.head_width + 1.5 * first.mlp_width)
        self.keep = knobs.depth * per_block * dtype.itemsize < MEMORY_LIMIT

    def forward(self, layer: int, x: Tensor) -> Graph:
        """Block `layer` at x with its graph: (input, weights, output). Same seed and layer, same weights."""
        knobs = self.knobs.at(layer)
        weights = draw_weights(knobs, np.random.Generator(np.random.SFC64([self.seed, layer])), self.dtype)
        for weight in weights.values():
            weight.requires_grad_(self.weight_gradients)
        entry = x.detach().requires_grad_()
        return entry, weights, block(entry, weights, knobs)

    def backward(self, graph: Graph, g: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Gradient at the block's input, and |dLoss/dW|^2 of every matrix when asked for."""
        entry, weights, out = graph
        matrices = {name: w for name, w in weights.items() if name != "bias"} if self.weight_gradients else {}
        gradient, *rest = torch.autograd.grad(out, [entry, *matrices.values()], g)
        squares = [each.double().square().sum().item() for each in rest]
        return gradient, dict(zip(matrices, squares, strict=True))

    def record(self, start_overlap: float, readout: str) -> dict[str, np.ndarray]:
        """Forward then backward through all layers; arrays of length depth + 1 (weights: depth)."""
        depth = self.knobs.depth
        generator = np.random.Generator(np.random.SFC64([self.seed, depth]))
        x = start_tokens(self.knobs, start_overlap, generator, self.dtype)
        states, graphs = [x], []
        for layer in range(depth):
            graph = self.forward(layer, x)
            x = graph[2].detach()
            states.append(x)
            graphs.append(graph if self.keep else None)
        g = output_gradient(self.knobs, readout, generator, self.dtype)
        squares, weight_squares = [mean_square(g)], []
        for layer in reversed(range(depth)):
            graph = graphs.pop() or self.forward(layer, states[layer])
            g, matrices = self.backward(graph, g)
            squares.append(mean_square(g))
            weight_squares.append(matrices)
        found = {
            "norm": np.array([mean_square(x) for x in states]),
            "separation": np.array([separation(x) for x in states]),
            "gradient_norm": np.array(squares[::-1]) / squares[0],
        }
        output_square = squares[0] * self.knobs.width  # mean over tokens of |g_a|^2 at the output
        for name in weight_squares[0]:
            found[name] = np.array([matrices[name] for matrices in weight_squares[::-1]]) / output_square
        return found


def simulate(
    knobs: Mapping[str, Any],
    seeds: int | Iterable[int],
    start_overlap: float = 0.0,
    readout: str = "token",
    weight_gradients: bool = False,
    dtype: torch.dtype = torch.float32,
) -> dict[str, np.ndarray]:
    """Arrays (seed, depth + 1) read from real random networks, block by block, input first, no final norm.

    norm            mean square per coordinate, q
    separation      mean over token pairs of 1 - cosine
    gradient_norm   mean_a |g_a^l|^2 / mean_a |g_a^L|^2
    W_Q ... W_2     |dLoss/dW|_F^2 for mean_a |g_a^L|^2 = 1, (seed, depth), with `weight_gradients`
    """
    network = Knobs(**knobs)
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    runs = [Run(network, seed, dtype, weight_gradients).record(start_overlap, readout) for seed in numbers]
    return {name: np.stack([run[name] for run in runs]) for name in runs[0]}
