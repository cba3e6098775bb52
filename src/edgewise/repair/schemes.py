"""Published schemes as goals: the standard deviation each gives to a matrix, so that schemes can be compared.

L blocks, each with two branches; fan_in and fan_out of the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from edgewise.errors import BadInput


@dataclass(frozen=True)
class Matrix:
    """What a scheme needs to know: sizes, whether it writes into the stream, whether it makes attention scores."""

    fan_in: int
    fan_out: int
    depth: int
    writes: bool
    scores: bool


@dataclass(frozen=True)
class Scheme:
    """std of a matrix, how it is drawn, its source, and what of it weights alone cannot do."""

    std: Callable[[Matrix], float]
    draw: str
    reason: str
    note: Callable[[int], str] = lambda depth: ""
    zero_biases: bool = True


def _xavier(m: Matrix) -> float:
    return math.sqrt(2 / (m.fan_in + m.fan_out))


def _deepnorm(m: Matrix) -> float:
    return _xavier(m) * (1.0 if m.scores else (8 * m.depth) ** -0.25)


def _deepnorm_note(depth: int) -> str:
    return (
        f"DeepNorm also multiplies the skips by (2L)^(1/4) = {(2 * depth) ** 0.25:.3g}; the plan leaves the skips "
        "alone, so this is the half of it that weights can do."
    )


SCHEMES: dict[str, Scheme] = {
    "deepnorm": Scheme(
        _deepnorm,
        "normal",
        "DeepNorm [Wang 2022]: Xavier, times (8L)^(-1/4) but for queries and keys",
        _deepnorm_note,
    ),
    "depth-mup": Scheme(
        lambda m: (m.depth**-0.5 if m.writes else 1.0) / math.sqrt(m.fan_in),
        "normal",
        "depth-muP [Yang 2023, Bordelon 2023]: gain 1, branches over sqrt(L)",
    ),
    "gpt2": Scheme(
        lambda m: 0.02 * ((2 * m.depth) ** -0.5 if m.writes else 1.0),
        "normal",
        "GPT-2 [Radford 2019]: 0.02, branches over sqrt(2L)",
    ),
    "xavier": Scheme(_xavier, "normal", "Xavier [Glorot 2010]: 2 / (fan_in + fan_out)"),
    "torch": Scheme(
        lambda m: 1 / math.sqrt(3 * m.fan_in),
        "uniform",
        "torch.nn.Linear: uniform within 1/sqrt(fan_in)",
        zero_biases=False,
    ),
    "orthogonal": Scheme(
        lambda m: 1 / math.sqrt(m.fan_in),
        "orthogonal",
        "orthogonal [Saxe 2014], delta-orthogonal filters [Xiao 2018]",
    ),
}
GOALS = ("critical", *SCHEMES)


def refuse_goal(goal: str) -> None:
    if goal not in GOALS:
        raise BadInput(f"goal must be one of {', '.join(GOALS)}, got {goal!r}.")
