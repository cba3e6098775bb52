"""How deep a random tanh network can be and still train, against its depth scale [Schoenholz 2017, Fig. 5].

Networks of many depths and weight variances are trained on images by plain gradient descent, the rate chosen for each.
A network trains when its loss falls below half of that of guessing. EDGEWISE_IMAGES=fashion (if installed) or cifar10
(if fetched) replaces the digits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import edgewise
from edgewise.nets import RandomPerceptron
from edgewise.study import Claim, Result, rounded, select
from edgewise.study.tasks import Task, task
from edgewise.study.train import train
from edgewise.view import Curve, Map, Panel, Sheet

BIAS_VARIANCE = 0.05
PUBLISHED = 6.0
WEIGHTS = [1.0, 1.2, 1.4, 1.6, 1.76, 2.0, 2.4, 3.0, 4.0]
DEPTHS = [4, 8, 12, 18, 27, 40, 60]
RATES = [0.1, 0.03, 0.01]
SCALES = ("correlation", "shorter")
LONG_ENOUGH = 100  # steps: after fewer, hardly any network has trained, and the constant is undecided
STEPS = (50, 100, 200)  # at which the loss is read; the last is the length of the run


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    weights, depths, seeds = (WEIGHTS, DEPTHS, 1) if full else ([1.2, 1.76, 4.0], [4, 16], 1)
    training = {
        "width": 100 if full else 50,
        "batch": 32,
        "steps": list(STEPS if full else (10, 20)),
        "rates": RATES,
    }
    images = os.environ.get("EDGEWISE_IMAGES", "digits")
    return [
        {"task": images, "weight_variance": w, "depth": depth, "seed": seed, **training}
        for seed in range(seeds) for depth in depths for w in weights
    ]  # fmt: skip


class _Classifier(nn.Module):
    """A random perceptron between flattened images and classes."""

    def __init__(self, case: dict[str, Any], images: Task) -> None:
        super().__init__()
        w, depth, width = case["weight_variance"], case["depth"], case["width"]
        perceptron = edgewise.Perceptron("tanh", w, BIAS_VARIANCE, depth, width)
        self.body = RandomPerceptron(
            perceptron, inputs=_pixels(images), outputs=images.outputs, seed=case["seed"]
        )

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor]:
        return (nn.functional.cross_entropy(self.body(inputs.flatten(1)), labels),)


def _pixels(images: Task) -> int:
    return int(images.train[0][0].numel())


def _descent(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Plain gradient descent, as in the paper."""
    return torch.optim.SGD(model.parameters(), rate, fused=True)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Training loss of the best rate, averaged over the ten steps before each mark; None where it diverged."""
    images = task(case["task"])

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        return images.batches(case["batch"], case["seed"])

    best = train(lambda: _Classifier(case, images), batches, optimizer=_descent, rates=case["rates"],
                 steps=case["steps"][-1]).best  # fmt: skip
    losses = [
        float(np.mean(best.losses[mark - 10 : mark])) if len(best.losses) >= mark else None
        for mark in case["steps"]
    ]
    return {
        "loss": [x if x is None else rounded(x, 4) for x in losses],
        "rate": best.rate,
        "chance": images.chance,
    }


@lru_cache
def _limits(weight_variance: float) -> Any:
    return edgewise.perceptron_maps(edgewise.Perceptron("tanh", weight_variance, BIAS_VARIANCE)).limits


def _excess(results: Sequence[Result], w: float, depth: int, mark: int = -1) -> float:
    """log(loss / half of chance), averaged over seeds; a run that diverged counts as guessing."""
    rows = [r.value for r in select(results, weight_variance=w, depth=depth)]
    losses = [v["chance"] if v["loss"][mark] is None else min(v["loss"][mark], v["chance"]) for v in rows]
    return float(np.mean([math.log(x / (v["chance"] / 2)) for x, v in zip(losses, rows, strict=True)]))


def _trainable(results: Sequence[Result], w: float, mark: int = -1) -> float:
    """The depth at which the loss passes half of chance, between two depths of the grid; nan if outside it.

    One unlucky run must not decide: the loss is first made monotone in depth, half way between the smallest
    increasing curve above it and the largest below.
    """
    depths = sorted({r.case["depth"] for r in results})
    excess = np.array([_excess(results, w, depth, mark) for depth in depths])
    excess = (np.maximum.accumulate(excess) + np.minimum.accumulate(excess[::-1])[::-1]) / 2
    fails = int(np.argmax(excess > 0))
    if fails == 0:  # the shallowest fails, or none does
        return float("nan")
    share = -excess[fails - 1] / (excess[fails] - excess[fails - 1])
    return float(depths[fails - 1] * (depths[fails] / depths[fails - 1]) ** share)


def _weights(results: Sequence[Result]) -> list[float]:
    return sorted({r.case["weight_variance"] for r in results})


def _seeds(results: Sequence[Result]) -> list[int]:
    return sorted({r.case["seed"] for r in results})


def _constants(results: Sequence[Result], scale: str, mark: int = -1) -> list[tuple[float, float]]:
    """(weight variance, trainable depth over a depth scale) of every seed, where the scale is within the depths run.

    scale: "correlation" for xi_c, "shorter" for the shorter of xi_c and xi_grad.
    """
    found, deepest = [], max(r.case["depth"] for r in results)
    for w in _weights(results):
        limits = _limits(w)
        xi = limits.depth_scale_correlation
        xi = min(xi, limits.depth_scale_gradient) if scale == "shorter" else xi
        depths = [_trainable(select(results, seed=seed), w, mark) for seed in _seeds(results)]
        found += [(w, depth / xi) for depth in depths if math.isfinite(depth) and xi < deepest]
    return found


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_peak(results), *_six(results)])


def _scale(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len(_seeds(results))
    training = (
        f"plain SGD, batch {case['batch']}, {case['steps'][-1]} steps, best of {len(case['rates'])} rates"
    )
    return f"tanh, width {case['width']}, {case['task']}, {training}, {seeds} seed{'s' * (seeds > 1)}"


def _peak(results: Sequence[Result]) -> Claim:
    """Where the grid's deepest networks train, the peak is the middle of that range."""
    weights, deepest = _weights(results), max(r.case["depth"] for r in results)
    mean = {
        w: np.mean([_excess(results, w, d) for d in sorted({r.case["depth"] for r in results})])
        for w in weights
    }
    best = min(mean, key=lambda w: mean[w])
    edge = _limits(weights[0]).boundary_weight_variance
    return Claim(
        "The deepest networks train at the edge of chaos.",
        f"Averaged over depths to {deepest}, the loss is lowest at weight variance {best:g}; the edge is {edge:.2f}.",
        _scale(results), bool(abs(best - edge) <= 0.25), {"best": best, "edge": edge},
    )  # fmt: skip


def _six(results: Sequence[Result]) -> list[Claim]:
    """The published constant with xi_c, and ours with the shorter scale; near means within a factor 1.5 of 6."""
    numbers, steps = _all_constants(results), results[0].case["steps"][-1]
    published = {
        "correlation": "Networks train up to a depth of about 6 xi_c, in both phases.",
        "shorter": "(ours) The scale that counts is the shorter of xi_c and xi_grad, with the same constant 6.",
    }
    claims = []
    for scale, sentence in published.items():
        found = {phase: numbers[f"{scale}, {phase}, {steps} steps"] for phase in ("ordered", "chaotic")}
        words = ", ".join(f"{phase} {_text(row)}" for phase, row in found.items())
        close = [_is_near(row["median"]) for row in found.values()]
        decided = steps >= LONG_ENOUGH and None not in close
        claims.append(Claim(
            sentence, f"Median (range) of the constant over weight variances: {words}. Held: both within a factor 1.5.",
            _scale(results), all(close) if decided else None, numbers if scale == "correlation" else {},
        ))  # fmt: skip
    return claims


def _is_near(median: float | None) -> bool | None:
    return None if median is None else bool(PUBLISHED / 1.5 <= median <= PUBLISHED * 1.5)


def _all_constants(results: Sequence[Result]) -> dict[str, Any]:
    """Median, range and count of the constant by scale, phase and number of steps."""
    edge, numbers = _limits(1.0).boundary_weight_variance, {}
    for mark, steps in enumerate(results[0].case["steps"]):
        for scale in SCALES:
            rows = _constants(results, scale, mark)
            numbers[f"{scale}, ordered, {steps} steps"] = _summary([x for w, x in rows if w < edge])
            numbers[f"{scale}, chaotic, {steps} steps"] = _summary([x for w, x in rows if w > edge])
    return numbers


def _text(found: dict[str, Any]) -> str:
    return "unknown" if found["median"] is None else "{median:.1f} ({low:.1f} to {high:.1f})".format(**found)


def _summary(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"median": None, "low": None, "high": None, "count": 0}
    return {"median": np.median(values), "low": min(values), "high": max(values), "count": len(values)}


def draw(results: Sequence[Result]) -> Figure:
    title = "How deep a network trains follows the shorter of its two depth scales"
    return Sheet(title, (_map(results), _ratios(results)), _scale(results)).draw()


def _map(results: Sequence[Result]) -> Panel:
    weights, depths = _weights(results), sorted({r.case["depth"] for r in results})
    values = np.array([[_excess(results, w, d) for w in weights] for d in depths]) / math.log(2)
    fine = np.linspace(weights[0], weights[-1], 61)
    limits = [_limits(w) for w in fine]
    six = np.array([PUBLISHED * x.depth_scale_correlation for x in limits])
    shorter = np.array([PUBLISHED * min(x.depth_scale_correlation, x.depth_scale_gradient) for x in limits])
    six, shorter = (np.where(line < 1.3 * depths[-1], line, np.nan) for line in (six, shorter))
    curves = [Curve("6 ξ_c", fine, six, 6), Curve("6 min(ξ_c, ξ_∇)", fine, shorter, 6, "third")]
    at = [(w, _trainable(results, w)) for w in weights]
    curves.append(Curve("loss passes half of chance", *np.array(at).T, 2, "hollow"))
    background = Map("log₂ (loss / half of chance)", np.array(weights), np.array(depths), values, 1.0)
    return Panel(f"A  training loss after {results[0].case['steps'][-1]} steps", "weight variance σ_w² (σ_b² = 0.05)",
                 "depth (layers)", tuple(curves), background=background)  # fmt: skip


def _ratios(results: Sequence[Result]) -> Panel:
    marks, curves = results[0].case["steps"], []
    for mark, steps in enumerate(marks):
        at = np.array(_constants(results, "shorter", mark)).reshape(-1, 2)
        curves.append(Curve(f"{steps} steps", at[:, 0], at[:, 1], mark, "hollow"))
    at = np.array(_constants(results, "correlation")).reshape(-1, 2)
    curves.append(Curve(f"{marks[-1]} steps, over ξ_c", at[:, 0], at[:, 1], len(marks) - 1, "points"))
    ends = np.array(_weights(results))[[0, -1]]
    six = Curve("6, as published", ends, np.full(2, PUBLISHED), 6, "third")
    x_label, y_label = "weight variance σ_w²", "trainable depth / min(ξ_c, ξ_∇)"
    return Panel("B  the constant, re-estimated", x_label, y_label, (*curves, six))
