"""The spectral start: the linear map of Gaussian data, in one matrix pair and in the heads of torch's attention."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.optim import spectral_initialize_


def data(n: int, d: int, m: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=generator) / d**0.5 + torch.eye(d)
    x = torch.randn(n, d, generator=generator) @ mix
    target = torch.randn(m, d, generator=generator) / d**0.5
    return x, x @ target.T, target


def test_value_and_score_are_the_best_linear_map() -> None:
    """V Σ Aᵀ = M exactly with the sample covariance, and ‖Σ^{1/2} A Σ^{1/2}‖ ≤ radius."""
    x, y, target = data(500, 5, 3)
    layer = SimpleNamespace(value=torch.empty(3, 5), score=torch.empty(5, 5))
    assert spectral_initialize_(layer, x, y, radius=0.5) is layer
    sigma = x.T @ x / len(x)
    torch.testing.assert_close(layer.value @ sigma @ layer.score.T, target, rtol=1e-3, atol=1e-4)
    root = torch.linalg.cholesky(sigma)
    assert float(torch.linalg.matrix_norm(root.T @ layer.score @ root, 2)) <= 0.5 + 1e-4


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_torch_attention_starts_near_the_answer(heads: int) -> None:
    """Against its own random start, on 2,000 tokens; what is left is the noise of a softmax average."""
    torch.manual_seed(0)
    x, y, _ = data(2000, 8, 8)
    attention = nn.MultiheadAttention(8, heads, batch_first=True)
    with torch.no_grad():
        spectral_initialize_(attention, x, y, radius=0.5)
        prediction = attention(x, x, x, need_weights=False)[0]
    assert float((prediction - y).square().mean()) < 0.1 * float(y.square().mean())


@pytest.mark.parametrize(
    "layer, shapes, words",
    [
        (SimpleNamespace(value=torch.empty(3, 5)), ((50, 5), (50, 3)), "value"),
        (SimpleNamespace(value=torch.empty(3, 5), score=torch.empty(4, 4)), ((50, 5), (50, 3)), "expected"),
        (SimpleNamespace(value=torch.empty(3, 5), score=torch.empty(5, 5)), ((3, 5), (3, 3)), "span"),
        (SimpleNamespace(value=torch.empty(3, 5), score=torch.empty(5, 5)), ((50, 5), (40, 3)), "tokens"),
        (nn.MultiheadAttention(8, 2), ((50, 5), (50, 3)), "width 8"),
    ],
)
def test_refusals(layer: object, shapes: tuple[tuple[int, int], tuple[int, int]], words: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(BadInput, match=words):
        spectral_initialize_(layer, *(torch.randn(shape, generator=generator) for shape in shapes))


def test_biases_are_zero_afterwards() -> None:
    x, y, _ = data(200, 4, 4)
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    for bias in (layer.in_proj_bias, layer.out_proj.bias):
        nn.init.ones_(bias)
    spectral_initialize_(layer, x, y)
    assert not layer.in_proj_bias.any() and not layer.out_proj.bias.any()
