"""Gradient descent, stochastic gradient descent and Adam on softmax regression: what the method is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgewise.errors import BadInput
from edgewise.laboratory.regression import FiniteSample, Objective, Parameters


@dataclass(frozen=True)
class GradientDescent:
    """θ ← θ − η ∇L."""

    step: float

    def path(self, objective: Objective, start: Parameters) -> Iterator[Parameters]:
        here = start
        while True:
            yield here
            here = _moved(here, objective.gradient(here), self.step)


@dataclass(frozen=True)
class StochasticGradientDescent:
    """θ ← θ − η ∇L of `batch` random query tokens, drawn anew each step."""

    step: float
    batch: int = 32
    seed: int = 0

    def path(self, objective: Objective, start: Parameters) -> Iterator[Parameters]:
        if not isinstance(objective, FiniteSample):
            raise BadInput("stochastic gradients need finite data: use problem.sample(tokens, seed).")
        rng, here = np.random.default_rng(self.seed), start
        while True:
            yield here
            queries = rng.integers(len(objective.inputs), size=self.batch)
            here = _moved(here, objective.gradient(here, queries), self.step)


@dataclass(frozen=True)
class Adam:
    """m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², θ ← θ − η m̂/(√v̂ + ε) [Kingma 2015]."""

    step: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def path(self, objective: Objective, start: Parameters) -> Iterator[Parameters]:
        here, first, second = start, [0.0 * p for p in start], [0.0 * p for p in start]
        t = 0
        while True:
            yield here
            t += 1
            slope = objective.gradient(here)
            first = [self.beta1 * m + (1 - self.beta1) * g for m, g in zip(first, slope, strict=True)]
            second = [self.beta2 * v + (1 - self.beta2) * g**2 for v, g in zip(second, slope, strict=True)]
            moves = [
                (m / (1 - self.beta1**t)) / (np.sqrt(v / (1 - self.beta2**t)) + self.epsilon)
                for m, v in zip(first, second, strict=True)
            ]
            here = _moved(here, Parameters(*moves), self.step)


def _moved(here: Parameters, direction: Parameters, step: float) -> Parameters:
    return Parameters(*(p - step * g for p, g in zip(here, direction, strict=True)))
