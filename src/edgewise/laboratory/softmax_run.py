"""The certificate after the fact: what a run of gradient descent on prompt attention really did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.laboratory.descent import Descent, descend, gradient_descent
from edgewise.laboratory.prompt_attention import PromptAttention
from edgewise.laboratory.prompt_theorem import Observation, observe


@dataclass(frozen=True, eq=False)
class Account:
    """Along one run: the worst constants seen, what they would certify, and what was observed."""

    run: Descent
    step: float
    observations: tuple[Observation, ...]
    prompt_path: float  # sum of |p_{t+1} - p_t|
    value_path: float

    @property
    def polyak_lojasiewicz(self) -> float:
        """mu: the smallest seen."""
        return min(seen.polyak_lojasiewicz for seen in self.observations)

    @property
    def smoothness(self) -> float:
        """L: the largest seen."""
        return max(seen.smoothness for seen in self.observations)

    @property
    def promised(self) -> float:
        """1 - 2 eta mu (1 - eta L/2): the factor per step if the seen constants hold in between."""
        return 1 - 2 * self.step * self.polyak_lojasiewicz * (1 - 0.5 * self.step * self.smoothness)

    @property
    def contraction(self) -> Tensor:
        """Loss_{t+1}/Loss_t for every step."""
        return self.run.losses[1:] / self.run.losses[:-1]

    @property
    def mean_contraction(self) -> float:
        """Geometric mean over the run."""
        losses = self.run.losses
        return math.exp((math.log(float(losses[-1])) - math.log(float(losses[0]))) / (len(losses) - 1))


def along_the_run(
    model: PromptAttention, p: Tensor, v: Tensor, step: float, steps: int, looks: int = 8, until: float = 0.0
) -> Account:
    """Gradient descent on (p, v) with `looks` evenly spaced measurements of the constants."""
    problem, start = model.joint(), model.join(p, v)
    lengths = [0.0, 0.0]
    update = gradient_descent(problem, step)

    def measured(theta: Tensor) -> Tensor:
        new = update(theta)
        for i, moved in enumerate(model.split(new - theta)):
            lengths[i] += float(moved.norm())
        return new

    every = range(0, steps + 1, max(1, steps // looks))
    run = descend(problem, start, measured, steps, until, keep=every)
    points: Sequence[tuple[int, Tensor]] = [*run.kept.items(), (len(run.losses) - 1, run.last)]
    finite = {t: theta for t, theta in points if bool(torch.isfinite(theta).all())}
    seen = tuple(observe(model, theta, start, t) for t, theta in finite.items())
    return Account(run, step, seen, *lengths)
