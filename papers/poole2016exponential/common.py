"""What the figures of this paper share: tanh networks of three weight strengths, and the scale they were run at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import edgewise
from edgewise.nets import RandomPerceptron
from edgewise.study import Result

BIAS = 0.3  # sigma_b of the paper's figures
STRENGTHS = (1.3, 2.5, 4.0)  # its sigma_w: ordered, chaotic, more chaotic


def perceptron(case: dict[str, Any]) -> edgewise.Perceptron:
    """The case in the library's words: variances instead of standard deviations."""
    return edgewise.Perceptron("tanh", case["strength"] ** 2, case["bias"] ** 2, case["depth"], case["width"])


def network(case: dict[str, Any]) -> RandomPerceptron:
    """The random network of a case; no two strengths share their weights."""
    return RandomPerceptron(
        perceptron(case), seed=case["seed"] + 1000 * round(100 * case["strength"])
    ).double()


def networks(strengths: Sequence[float], seeds: int, **others: Any) -> list[dict[str, Any]]:
    """One case per strength and seed."""
    return [{"strength": s, "seed": seed, **others} for s in strengths for seed in range(seeds)]


def distinct(results: Sequence[Result], name: str) -> list[Any]:
    """The values that a knob takes, in increasing order."""
    return sorted({r.case[name] for r in results})


def scale_of(results: Sequence[Result]) -> str:
    """Width and number of seeds, for the claim and the foot of the figure."""
    widths, seeds = distinct(results, "width"), len(distinct(results, "seed"))
    return f"tanh, width {' and '.join(str(w) for w in widths)}, {seeds} random networks per point"


def spread_of_mean(results: Sequence[Result]) -> float:
    """1/sqrt(width * seeds): how far an average of that many networks scatters, up to a factor near one."""
    return 1 / float(np.sqrt(min(distinct(results, "width")) * len(distinct(results, "seed"))))
