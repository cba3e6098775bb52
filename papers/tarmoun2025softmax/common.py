"""What the figures of this paper share: thinned curves, per-sample gradients, and names of sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgewise import softmax_jacobian as jacobian
from edgewise.laboratory.prompt_attention import PromptAttention, log_mean_ratio
from edgewise.study import Result


def thinned(losses: Tensor, count: int = 60) -> tuple[list[int], list[float]]:
    """Steps (evenly spaced in their logarithm) and the losses there, six digits."""
    last = len(losses) - 1
    steps = sorted({0, last, *np.unique(np.geomspace(1, max(last, 1), count).astype(int)).tolist()})
    return steps, [float(f"{float(losses[t]):.6g}") for t in steps if t <= last]


def portrait(model: PromptAttention, p: Tensor, V: Tensor) -> dict[str, float]:
    """A point of the landscape: its length, sharpness, gradients per sample, and the Hessian G^T G of a zero loss."""
    rows = jacobian.checked(model.log_rows(p))
    G = model.prompt_jacobian(p, V)
    sizes, values = G.norm(dim=-1), torch.linalg.svdvals(G).square()
    condition = jacobian.extremes_of_rows(rows).condition
    found = {
        "prompt_norm": float(p.norm()),
        "log10_mean_ratio": log_mean_ratio(model, p) / math.log(10),
        "saturated": float(jacobian.saturated(rows).double().mean()),
        "gradient_spread": float(sizes.amax() / sizes.median()),
        "row_condition": float(condition.median().exp()),
        "hessian_largest": float(values[0]),
        "hessian_smallest": float(values[-1]),
    }
    return {name: float(f"{value:.6g}") for name, value in found.items()}


def mean_of(results: Sequence[Result], name: str, place: str = "") -> float:
    """Mean over the given results of a number, or of a number inside a portrait."""
    return float(np.mean([r.value[place][name] if place else r.value[name] for r in results]))


def middle_of(results: Sequence[Result], name: str, place: str = "") -> float:
    """The median, for numbers that spread over decades."""
    return float(np.median([r.value[place][name] if place else r.value[name] for r in results]))


def seeds_of(results: Sequence[Result]) -> int:
    return len({r.case["seed"] for r in results})


def distinct(results: Sequence[Result], name: str) -> list[Any]:
    """The values that a knob takes, in increasing order."""
    return sorted({r.case[name] for r in results if name in r.case})


def decided(held: bool, results: Sequence[Result], least: int, knob: str = "steps") -> bool | None:
    """The outcome, or None where the runs are too small to tell (the small scale only shows that all works)."""
    return bool(held) if min(r.case[knob] for r in results) >= least else None


def below(gaps: np.ndarray) -> bool | None:
    """Whether the mean over seeds is below zero; None within two standard errors of it."""
    mean, error = gaps.mean(), gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    return bool(mean < 0) if abs(mean) > 2 * error else None


def finals(results: Sequence[Result]) -> np.ndarray:
    """Logarithms of the final losses, in the order of the seeds."""
    return np.log([r.value["final"] for r in sorted(results, key=lambda r: r.case["seed"])])


def shown(name: str) -> str:
    """A method or loss as it is written in a picture."""
    for word, spelled in (
        ("sgd", "SGD"),
        ("adam", "Adam"),
        ("gauss-newton", "Gauss-Newton"),
        ("huber", "Huber"),
    ):
        name = name.replace(word, spelled)
    return name
