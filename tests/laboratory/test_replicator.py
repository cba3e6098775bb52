"""Replicator flows against the gradient flow on the prompt, and how coherence bounds the decoupled form."""

from __future__ import annotations

import pytest
import torch

from edgewise.laboratory.descent import flow
from edgewise.laboratory.prompt_attention import PromptAttention, teacher_student
from edgewise.laboratory.replicator import (
    coherence,
    coupled,
    decoupled,
    follow,
    natural,
    orthogonal_keys,
    output_slope,
    prompt_flow,
)
from edgewise.softmax_jacobian import product

TIMES = [0.2, 1.0, 3.0]


def with_keys(keys: torch.Tensor, seed: int = 0) -> tuple[PromptAttention, torch.Tensor, torch.Tensor]:
    N, n, d = keys.shape
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, n, 3, generator=generator, dtype=torch.float64)
    V, p = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((3, 2), (d,)))
    return PromptAttention(X, keys, torch.randn(N, 2, generator=generator, dtype=torch.float64)), V, p


def test_coupled_rows_are_those_of_the_prompt_flow() -> None:
    """For any keys, also in the under-parametrized regime."""
    made = teacher_student(samples=6, tokens=4, width=3, ratio=30.0)
    model, V, p = made.model, made.teacher_value, made.prompt
    start = model.log_rows(p).exp()
    rows = flow(coupled(model.keys, output_slope(model, V)), start, TIMES)
    torch.testing.assert_close(rows, prompt_flow(model, V, p, TIMES), atol=1e-8, rtol=0)


def test_decoupled_rows_are_those_of_orthogonal_keys() -> None:
    model, V, p = with_keys(orthogonal_keys(3, 4, scale=1.7))
    slope, start = output_slope(model, V), model.log_rows(p).exp()
    expected = prompt_flow(model, V, p, TIMES)
    torch.testing.assert_close(flow(decoupled(slope, 1.7), start, TIMES), expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(follow(slope, start, TIMES, scale=1.7).exp(), expected, atol=1e-8, rtol=0)


def test_componentwise_form() -> None:
    """x_k' = -kappa x_k [ x_k (g_k - g) - sum_m x_m^2 (g_m - g) ], written as a loop."""
    x = torch.softmax(torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), -1)
    g = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mean = float(x @ g)
    total = sum(float(x[m]) ** 2 * (float(g[m]) - mean) for m in range(5))
    loop = [-2.0 * float(x[k]) * (float(x[k]) * (float(g[k]) - mean) - total) for k in range(5)]
    field = decoupled(lambda _: g, 2.0)(x)
    torch.testing.assert_close(field, torch.tensor(loop, dtype=torch.float64))


def test_natural_flow_of_a_linear_loss_is_exponential() -> None:
    """x(t) is the softmax of log x(0) - g t."""
    g = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    start = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    exact = torch.stack([torch.softmax(start.log() - g * t, -1) for t in TIMES])
    torch.testing.assert_close(flow(natural(lambda _: g), start, TIMES), exact, atol=1e-8, rtol=0)
    torch.testing.assert_close(
        follow(lambda _: g, start, TIMES, squared=False).exp(), exact, atol=1e-8, rtol=0
    )


@pytest.mark.parametrize("mixing", [0.0, 0.01, 0.1, 0.5])
def test_coherence_bounds_the_error_of_decoupling(mixing: float) -> None:
    """|coupled - decoupled| <= kappa deviation |J grad| / 2 for every state; zero for orthogonal keys."""
    keys = orthogonal_keys(4, 3, scale=2.0, mixing=mixing, seed=1)
    found = coherence(keys)
    generator = torch.Generator().manual_seed(2)
    worst = 0.0
    for _ in range(50):
        s = torch.softmax(2 * torch.randn(4, 3, generator=generator, dtype=torch.float64), -1)
        g = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        gap = coupled(keys, lambda _, g=g: g)(s) - decoupled(lambda _, g=g: g, found.scale)(s)
        share = float(gap.norm() / (found.scale * product(s, g).norm()))
        assert share <= 0.5 * found.deviation + 1e-12
        worst = max(worst, share)
    assert worst > 0.02 * found.deviation - 1e-12  # the bound is not idle


def test_too_few_dimensions_cannot_decouple() -> None:
    made = teacher_student(samples=10, tokens=6, width=8, ratio=10.0)
    assert coherence(made.model.keys).deviation >= 1


def test_keys_that_are_not_orthogonal_may_be_followed_in_logits_too() -> None:
    """One row with keys K: z' = -K K^T J grad l is the coupled flow of that row."""
    keys = orthogonal_keys(1, 3, mixing=0.6, seed=2)
    target = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    start = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
    expected = flow(coupled(keys, lambda s: s - target), start[None], TIMES)[:, 0]
    followed = follow(lambda s: s - target, start, TIMES, scale=keys[0] @ keys[0].T).exp()
    torch.testing.assert_close(followed, expected, atol=1e-8, rtol=0)
