"""How deep a random tanh network can be and still train, against its depth scale [Schoenholz 2017, Fig. 5].

Networks of many depths and weight variances are trained on images by plain gradient descent, the rate chosen for each.
A network trains when its loss falls below half of that of guessing. Full scale: width 300, 6 to 200 layers, three seeds
of every point, not only of those near the edge. Recorded on Fashion-MNIST (the Debian package
dataset-fashion-mnist); EDGEWISE_IMAGES=digits needs no files, cifar10 those that were fetched.
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
from scipy.stats import spearmanr
from torch import Tensor, nn

import edgewise
from edgewise.nets import RandomPerceptron
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select
from edgewise.study.tasks import Task, task
from edgewise.study.train import train

TOLERANCE = 0.006  # of the largest number in an entry; seeds scatter by 0.06 or more
BIAS_VARIANCE = 0.05
PUBLISHED = 6.0
FACTOR = 1.5  # a constant within this factor of 6 is "about 6"
WEIGHTS = [1.0, 1.2, 1.4, 1.6, 1.76, 2.0, 2.4, 3.0, 4.0]
DEPTHS = [6, 9, 12, 17, 25, 35, 50, 70, 100, 140, 200]
AROUND = (1.5, 13.0)  # depths that are run, in units of the shorter scale
AT_THE_EDGE = 5  # depths that are run where the scale is longer than all of them: the deepest
RATES = (3.0, 1.0, 0.3)  # over the depth: deep networks need smaller steps
SEEDS = 3  # of every point, near the edge and away from it
SCALES = ("correlation", "shorter")
LONG_ENOUGH = 100  # steps: after fewer, hardly any network has trained, and the constant is undecided
STEPS = (50, 100, 200)  # at which the loss is read; the last is the length of the run
TRIAL = 0.15  # of the steps that every rate gets
CLOSER = -0.8  # rank correlation of trainable depth with the distance from the edge, at most, in each phase


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Around the depth at which each weight variance should stop training; full: Fashion-MNIST, three seeds."""
    full = scale == "full"
    grid = {w: _depths(w) for w in WEIGHTS} if full else {w: [4, 16] for w in (1.2, 1.76, 4.0)}
    training = {"width": 300 if full else 50, "batch": 32, "steps": list(STEPS if full else (10, 20))}
    images = os.environ.get("EDGEWISE_IMAGES", "fashion" if full else "digits")
    return [
        {
            "task": images,
            "weight_variance": w,
            "depth": depth,
            "seed": seed,
            "rates": [round(rate / depth, 5) for rate in RATES],
            **training,
        }
        for seed in range(SEEDS if full else 1)
        for w, depths in grid.items()
        for depth in depths
    ]


def _depths(w: float) -> list[int]:
    limits = _limits(w)
    low, high = (k * min(limits.depth_scale_correlation, limits.depth_scale_gradient) for k in AROUND)
    return [depth for depth in DEPTHS if low <= depth <= high] or DEPTHS[-AT_THE_EDGE:]


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

    torch.set_num_threads(1)
    best = train(
        lambda: _Classifier(case, images),
        batches,
        optimizer=_descent,
        rates=case["rates"],
        steps=case["steps"][-1],
        trial=TRIAL,
    ).best
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
    return edgewise.critical.perceptron_maps(
        edgewise.Perceptron("tanh", weight_variance, BIAS_VARIANCE)
    ).limits


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
    depths = _depths_of(results, w)
    excess = np.array([_excess(results, w, depth, mark) for depth in depths])
    excess = (np.maximum.accumulate(excess) + np.minimum.accumulate(excess[::-1])[::-1]) / 2
    fails = int(np.argmax(excess > 0))
    if fails == 0:  # the shallowest fails, or none does
        return float("nan")
    share = -excess[fails - 1] / (excess[fails] - excess[fails - 1])
    return float(depths[fails - 1] * (depths[fails] / depths[fails - 1]) ** share)


def _depths_of(results: Sequence[Result], w: float) -> list[int]:
    return sorted({r.case["depth"] for r in select(results, weight_variance=w)})


def _reach(results: Sequence[Result], w: float) -> float:
    """The trainable depth; the deepest that was run where all train, the shallowest where none does.

    Every weight variance is run at depths that train and depths that do not, so that neither end is common.
    """
    depth, depths = _trainable(results, w), _depths_of(results, w)
    if math.isfinite(depth):
        return depth
    return float(depths[-1] if _excess(results, w, depths[-1]) <= 0 else depths[0])


def _weights(results: Sequence[Result]) -> list[float]:
    return sorted({r.case["weight_variance"] for r in results})


def _seeds(results: Sequence[Result]) -> list[int]:
    return sorted({r.case["seed"] for r in results})


def _has(results: Sequence[Result], w: float, seed: int) -> bool:
    return any((r.case["weight_variance"], r.case["seed"]) == (w, seed) for r in results)


def _constants(results: Sequence[Result], scale: str, mark: int = -1) -> list[tuple[float, float]]:
    """(weight variance, trainable depth over a depth scale) of every seed, where the scale is within the depths run.

    scale: "correlation" for xi_c, "shorter" for the shorter of xi_c and xi_grad.
    """
    found, deepest = [], max(r.case["depth"] for r in results)
    for w in _weights(results):
        limits = _limits(w)
        xi = limits.depth_scale_correlation
        xi = min(xi, limits.depth_scale_gradient) if scale == "shorter" else xi
        seeds = [seed for seed in _seeds(results) if _has(results, w, seed)]
        depths = [_trainable(select(results, seed=seed), w, mark) for seed in seeds]
        found += [(w, depth / xi) for depth in depths if math.isfinite(depth) and xi < deepest]
    return found


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_peak(results), _closer(results), *_six(results)])


def _scale(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len(_seeds(results))
    training = (
        f"plain SGD, batch {case['batch']}, {case['steps'][-1]} steps, best of {len(case['rates'])} rates"
    )
    deepest = max(r.case["depth"] for r in results)
    images = {"fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}.get(case["task"], case["task"])
    sizes = f"tanh, width {case['width']}, up to {deepest} layers, {images}"
    return f"{sizes}, {training}, {seeds} seed{'s' if seeds > 1 else ''}"


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{x:g}" for x in numbers)


def _peak(results: Sequence[Result]) -> Claim:
    """By seed, the weight variance with the largest trainable depth, of those that the seed has on both sides."""
    weights = _weights(results)
    edge = _limits(weights[0]).boundary_weight_variance
    nearest = min(weights, key=lambda w: abs(w - edge))
    seeds = [seed for seed in _seeds(results) if all(_has(results, w, seed) for w in weights)]
    reach = {seed: {w: _reach(select(results, seed=seed), w) for w in weights} for seed in seeds}
    best = [max(row, key=lambda w: row[w]) for row in reach.values()]
    depths = {w: [round(row[w]) for row in reach.values()] for w in sorted({nearest, *best})}
    said = "; ".join(f"{w:g}: {_listed(row)} layers" for w, row in depths.items())
    return Claim(
        "The deepest networks train at the edge of chaos [Schoenholz 2017, Fig. 5].",
        f"Largest trainable depth, by seed, at weight variance {_listed(best) or 'unknown'}; the edge is {edge:.2f} "
        f"({said or 'unknown'}). Held: at the weight variance nearest to the edge for every seed that has all.",
        _scale(results),
        all(w == nearest for w in best) if len(best) > 1 else None,
        {"best": best, "edge": edge, "reach": {f"{w:g}": row for w, row in depths.items()}},
        rows=("C12",),
    )


def _closer(results: Sequence[Result]) -> Claim:
    """Per seed and phase, the rank correlation of the trainable depth with the distance |log chi_1| from the edge."""
    edge, found = _limits(1.0).boundary_weight_variance, {}
    for phase, inside in (("ordered", lambda w: w < edge), ("chaotic", lambda w: w > edge)):
        weights = [w for w in _weights(results) if inside(w)]
        seeds = [s for s in _seeds(results) if all(_has(results, w, s) for w in weights)]
        away = [abs(math.log(_limits(w).chi_1)) for w in weights]
        found[phase] = (
            [
                float(spearmanr(away, [_reach(select(results, seed=seed), w) for w in weights]).statistic)
                for seed in seeds
            ]
            if len(weights) > 3
            else []
        )
    words = ", ".join(f"{phase} {' / '.join(f'{x:+.2f}' for x in row)}" for phase, row in found.items())
    enough = all(len(row) > 1 for row in found.values())
    return Claim(
        "The closer you initialize to the edge of chaos, the deeper a network you can train [talk].",
        f"Rank correlation of the trainable depth with the distance from the edge, by seed: {words or 'unknown'}. "
        f"Held: at most {CLOSER} for every seed, in both phases.",
        _scale(results),
        all(x <= CLOSER for row in found.values() for x in row) if enough else None,
        found,
        rows=("C12",),
    )


def _six(results: Sequence[Result]) -> list[Claim]:
    """The published constant with xi_c, and ours with the shorter scale; undecided where seeds straddle the limit."""
    numbers, steps = _all_constants(results), results[0].case["steps"][-1]
    published = {
        "correlation": "Networks train up to a depth of about 6 xi_c, in both phases [Schoenholz 2017].",
        "shorter": "(ours) The scale that counts is the shorter of xi_c and xi_grad, with the same constant 6.",
    }
    claims = []
    for scale, sentence in published.items():
        found = {phase: numbers[f"{scale}, {phase}, {steps} steps"] for phase in ("ordered", "chaotic")}
        words = ", ".join(f"{phase} {_text(row)}" for phase, row in found.items())
        close = [_is_near(row) for row in found.values()]
        held = False if False in close else None if None in close else True
        claims.append(
            Claim(
                sentence,
                f"Median (range over weight variances, standard error over seeds) of the constant: {words}. "
                f"Held: both within a factor {FACTOR:g} of 6; undecided if that limit lies within two standard errors.",
                _scale(results),
                held if steps >= LONG_ENOUGH else None,
                numbers if scale == "correlation" else {},
                rows=("C12",),
            )
        )
    return claims


def _is_near(row: dict[str, Any]) -> bool | None:
    """None where it is unknown, or one seed or the error decides."""
    if row["median"] is None or row["error"] is None:
        return None
    off = abs(math.log(row["median"] / PUBLISHED)) - math.log(FACTOR)
    return None if abs(off) < 2 * row["error"] / row["median"] else bool(off < 0)


def _all_constants(results: Sequence[Result]) -> dict[str, Any]:
    """Median, range and error of the constant by scale, phase and number of steps."""
    edge, numbers = _limits(1.0).boundary_weight_variance, {}
    for mark, steps in enumerate(results[0].case["steps"]):
        for scale in SCALES:
            rows = [_constants(select(results, seed=seed), scale, mark) for seed in _seeds(results)]
            numbers[f"{scale}, ordered, {steps} steps"] = _summary(
                [[x for w, x in row if w < edge] for row in rows]
            )
            numbers[f"{scale}, chaotic, {steps} steps"] = _summary(
                [[x for w, x in row if w > edge] for row in rows]
            )
    return numbers


def _text(found: dict[str, Any]) -> str:
    if found["median"] is None:
        return "unknown"
    error = "" if found["error"] is None else f", ± {found['error']:.1f}"
    return "{median:.1f} ({low:.1f} to {high:.1f}{error})".format(**found | {"error": error})


def _summary(by_seed: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Of all seeds together; the error is that of the seeds' medians."""
    values, medians = [x for row in by_seed for x in row], [float(np.median(row)) for row in by_seed if row]
    if not values:
        return {"median": None, "low": None, "high": None, "error": None, "count": 0}
    error = float(np.std(medians, ddof=1) / math.sqrt(len(medians))) if len(medians) > 1 else None
    return {
        "median": np.median(values),
        "low": min(values),
        "high": max(values),
        "error": error,
        "count": len(values),
    }


def draw(results: Sequence[Result]) -> Figure:
    title = "The closer a network starts to the edge of chaos, the deeper it trains"
    return Sheet(title, (_map(results), _ratios(results)), _scale(results)).draw()


def _map(results: Sequence[Result]) -> Panel:
    """Every weight variance and depth that was run, by the share of seeds that train."""
    weights, deepest = _weights(results), max(r.case["depth"] for r in results)
    fine = np.linspace(weights[0], weights[-1], 61)
    limits = [_limits(w) for w in fine]
    lines = {
        "6 ξ_c": [PUBLISHED * x.depth_scale_correlation for x in limits],
        "6 × the shorter of ξ_c and ξ_∇": [
            PUBLISHED * min(x.depth_scale_correlation, x.depth_scale_gradient) for x in limits
        ],
    }
    curves = [
        Curve(name, fine, np.where(np.array(line) < 1.2 * deepest, line, np.nan), 6, role)
        for (name, line), role in zip(lines.items(), ("line", "third"), strict=True)
    ]
    shares = np.array([(w, d, _share(results, w, d)) for w in weights for d in _depths_of(results, w)])
    kinds = (
        ("all seeds train", 0, "points", shares[:, 2] == 1),
        ("none trains", 1, "cross", shares[:, 2] == 0),
        ("some train", 5, "hollow", (shares[:, 2] > 0) & (shares[:, 2] < 1)),
    )
    curves += [Curve(name, *shares[at, :2].T, group, role) for name, group, role, at in kinds if at.any()]
    title = f"A  which networks train in {results[0].case['steps'][-1]} steps"
    return Panel(
        title,
        "weight variance σ_w² (σ_b² = 0.05)",
        "depth (layers)",
        tuple(curves),
        log_y=True,
        legend_at="upper right",
    )


def _share(results: Sequence[Result], w: float, depth: int) -> float:
    """Of the seeds, how many train."""
    rows = select(results, weight_variance=w, depth=depth)
    return float(np.mean([_excess([row], w, depth) <= 0 for row in rows]))


def _ratios(results: Sequence[Result]) -> Panel:
    marks, curves = results[0].case["steps"], []
    for mark, steps in enumerate(marks):
        at = np.array(_constants(results, "shorter", mark)).reshape(-1, 2)
        curves.append(Curve(f"{steps} steps", at[:, 0], at[:, 1], mark, "hollow"))
    at = np.array(_constants(results, "correlation")).reshape(-1, 2)
    curves.append(Curve(f"{marks[-1]} steps, over ξ_c", at[:, 0], at[:, 1], len(marks) - 1, "points"))
    ends = np.array(_weights(results))[[0, -1]]
    six = Curve("6, as published", ends, np.full(2, PUBLISHED), 6, "third")
    x_label, y_label = "weight variance σ_w²", "trainable depth / shorter scale"
    return Panel("B  the constant, re-estimated", x_label, y_label, (*curves, six))
