"""Batch and spectral norm in the recursions: what the talk's theory, which has neither, becomes with them.

Spectral norm divides a square Gaussian matrix by its largest singular value, twice its standard deviation: with gain g
the recursion is the plain one at sigma_w = g/2. Batch norm takes the mean and the size of the weights out: the gradient
grows by E[phi'^2] / Var[phi] per layer, whatever the weights, times (B-1)(B-2) / (B(B-3)) in a batch of B (two
directions of B are taken out, and 1/variance averages to more than one). Fixed after a pilot, before the run:
both rates within 0.02 of random networks on average; batch-normed gradients explode at every weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, select

from .common import distinct

TOLERANCE = 0.01  # of the largest number in an entry
SETTLE = 4  # layers before rates are read
GAINS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)  # of spectral norm
WEIGHTS = (0.5, 1.0, 2.0, 4.0)  # sigma_w of batch-normed networks
CLOSE = 0.02  # of a mean log-rate per layer


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = {"width": 400, "depth": 16, "batch": 64} if full else {"width": 60, "depth": 8, "batch": 16}
    knobs = [("spectral", g) for g in GAINS] + [("batch", w) for w in WEIGHTS]
    return [
        {"norm": norm, "knob": knob, "seed": seed, **size}
        for norm, knob in knobs
        for seed in range(6 if full else 1)
    ]


def _layers(case: dict[str, Any]) -> Callable[[Tensor], list[Tensor]]:
    """Preactivations of every layer; batch norm over the inputs that go through together."""
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * round(10 * case["knob"]))
    N, spectral = case["width"], case["norm"] == "spectral"
    matrices = []
    for _ in range(case["depth"]):
        W = torch.randn(N, N, generator=generator, dtype=torch.float64) / math.sqrt(N)
        matrices.append(case["knob"] * (W / torch.linalg.matrix_norm(W, 2) if spectral else W))

    def forward(h: Tensor) -> list[Tensor]:
        found = [h]
        for W in matrices:
            h = torch.tanh(h) @ W.T
            if not spectral:
                h = h - h.mean(0)
                h = h / h.square().mean(0).sqrt()
            found.append(h)
        return found

    return forward


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Mean logarithmic growth per layer of a squared gradient on its way back, after the first layers."""
    generator = torch.Generator().manual_seed(1000 + case["seed"])
    start = torch.randn(
        case["batch"], case["width"], generator=generator, dtype=torch.float64
    ).requires_grad_()
    layers = _layers(case)(start)
    out = torch.randn(layers[-1].shape, generator=generator, dtype=torch.float64)
    squares = [float(g.square().sum()) for g in torch.autograd.grad(layers[-1], layers[SETTLE:-1], out)]
    depth = case["depth"] - SETTLE
    return {"rate": rounded(math.log(squares[0] / float(out.square().sum())) / depth, 5)}


def expected(case: dict[str, Any]) -> float:
    """The same by the recursions."""
    depth = case["depth"]
    if case["norm"] == "spectral":
        maps = edgewise.critical.perceptron_maps(
            edgewise.Perceptron("tanh", (case["knob"] / 2) ** 2, 0.0, depth)
        )
        return math.log(maps.orbit().gradient[SETTLE]) / (depth - SETTLE)
    x, weight = np.polynomial.hermite_e.hermegauss(80)
    weight, phi = weight / weight.sum(), np.tanh(x)
    finite = (case["batch"] - 1) * (case["batch"] - 2) / (case["batch"] * (case["batch"] - 3))
    return math.log(finite * (weight @ (1 - phi**2) ** 2) / (weight @ phi**2))


def _table(results: Sequence[Result], norm: str) -> dict[float, tuple[float, float, float]]:
    """By knob: measured rate, its error, and the expected one."""
    runs = select(results, norm=norm)
    return {
        knob: (*map(float, over_seeds(runs, "rate", knob=knob)), expected(select(runs, knob=knob)[0].case))
        for knob in distinct(runs, "knob")
    }


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_spectral(results), _batch(results)])


def _scale(results: Sequence[Result]) -> str:
    case = results[0].case
    return (
        f"tanh, width {case['width']}, {case['depth']} layers, batches of {case['batch']} random inputs, "
        f"{len(distinct(results, 'seed'))} random networks per point"
    )


def _spectral(results: Sequence[Result]) -> Claim:
    table = _table(results, "spectral")
    gap = float(np.mean([abs(found - theory) for found, _, theory in table.values()]))
    said = ", ".join(
        f"{found:+.3f} ({theory:+.3f}) at {gain:g}" for gain, (found, _, theory) in table.items()
    )
    return Claim(
        "(ours; the talk's recursions have layer norm, not batch or spectral norm) With spectral norm of gain g they "
        "are those of sigma_w = g/2: the edge is at a gain of 2, and the usual gain of 1 is deep in the ordered phase.",
        f"Log-growth of squared gradients per layer, measured (recursion), by gain: {said}; off by {gap:.3f} on "
        f"average. Held: below {CLOSE:g}.",
        _scale(results),
        gap < CLOSE if results[0].case["width"] >= 400 else None,
        {f"{gain:g}": list(row) for gain, row in table.items()},
        rows=("C26",),
    )


def _batch(results: Sequence[Result]) -> Claim:
    table = _table(results, "batch")
    gap = float(np.mean([abs(found - theory) for found, _, theory in table.values()]))
    said = ", ".join(f"{found:+.3f} at {weight:g}" for weight, (found, _, _) in table.items())
    theory = table[WEIGHTS[0]][2]
    grows = all(found > 3 * error for found, error, _ in table.values())
    return Claim(
        "(ours) With batch norm there is no edge to choose: gradients explode at one rate whatever the weights.",
        f"Log-growth of squared gradients per layer by sigma_w: {said}; recursion {theory:+.3f}. "
        f"Held: above zero by three standard errors at every weight, and within {CLOSE:g} of the recursion on average.",
        _scale(results),
        bool(grows and gap < CLOSE) if results[0].case["width"] >= 400 else None,
        {f"{weight:g}": list(row) for weight, row in table.items()},
        rows=("C26",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = []
    for group, (norm, label) in enumerate((("spectral", "gain of spectral norm"), ("batch", "weights, σ_w"))):
        table = _table(results, norm)
        x = np.array(list(table))
        found, error, theory = np.array(list(table.values())).T
        curves = (
            Curve("recursion", x, theory, group),
            Curve("networks", x, found, group, "points", error),
        )
        panels.append(
            Panel(f"{norm} norm", label, "log-growth of squared gradients per layer", curves, levels=(0.0,))
        )
    return Sheet(
        "Spectral norm moves the edge of chaos, batch norm removes it", tuple(panels), _scale(results)
    ).draw()
