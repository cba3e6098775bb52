"""Teacher and student prompts: data whose attention is as sharp as wanted [Tarmoun 2025, experiments of the talk].

X ~ N(0, 1), W ~ N(0, 1/d); the teacher's direction is random and its length gives a mean ratio max s / min s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.laboratory.prompt_attention import PromptAttention


@dataclass(frozen=True, eq=False)
class TeacherStudent:
    """A problem that the teacher solves exactly, and where the student starts."""

    model: PromptAttention
    teacher_prompt: Tensor
    teacher_value: Tensor
    prompt: Tensor
    value: Tensor


def log_ratios(model: PromptAttention, p: Tensor) -> Tensor:
    """log(max s / min s) of every sample, the range of its logits, (N,)."""
    z = model.keys @ p
    return z.amax(-1) - z.amin(-1)


def log_mean_ratio(model: PromptAttention, p: Tensor) -> float:
    """log of the mean over samples of max s / min s."""
    ratios = log_ratios(model, p)
    return float(torch.logsumexp(ratios, 0)) - math.log(len(ratios))


def teacher_student(
    samples: int, tokens: int, width: int, ratio: float, seed: int = 0, outputs: int = 1
) -> TeacherStudent:
    """N samples of n tokens; ratio: the teacher's mean max s / min s, above 1."""
    if not ratio > 1:
        raise BadInput(f"ratio = {ratio!r} is not possible: max s / min s is above 1.")
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    X, W = normal(samples, tokens, width), normal(width, width) / math.sqrt(width)
    p0, v0, v, direction = (normal(width, 1 if i in (0, 3) else outputs) / math.sqrt(width) for i in range(4))
    bare = PromptAttention(X, X @ W, torch.zeros(samples, outputs, dtype=torch.float64))
    p = prompt_of_ratio(bare, direction[:, 0], ratio)
    model = PromptAttention(X, bare.keys, bare.predictions(p, v))
    return TeacherStudent(model, p, v, p0[:, 0], v0)


def prompt_of_ratio(model: PromptAttention, direction: Tensor, ratio: float) -> Tensor:
    """The direction at the length where the mean ratio is as wanted; it grows with the length."""
    unit, wanted = direction / direction.norm(), math.log(ratio)
    low, high = 0.0, 1.0
    while log_mean_ratio(model, high * unit) < wanted:
        high *= 2
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if log_mean_ratio(model, middle * unit) < wanted else (low, middle)
    return 0.5 * (low + high) * unit
