"""Geometry of streams against the Gram matrix, and where the Gram matrix loses its digits."""

from __future__ import annotations

import math

import pytest
import torch

from edgewise import BadInput
from edgewise.probe.geometry import mean_square, pair_separation, separation


def stream(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_gram(x: torch.Tensor) -> float:
    unit = x / x.norm(dim=-1, keepdim=True)
    gram = unit @ unit.transpose(-1, -2)
    n = x.shape[-2]
    off = gram.sum((-1, -2)) - gram.diagonal(dim1=-1, dim2=-2).sum(-1)
    return float((1 - off / (n * (n - 1))).mean())


def test_the_sum_trick_is_the_gram_matrix() -> None:
    x = stream(3, 17, 11)
    assert separation(x) == pytest.approx(by_gram(x), rel=1e-12)


def test_nearly_identical_tokens_keep_their_digits() -> None:
    """Tokens e_0 + d e_a: 1 - cos = d^2/(1 + d^2) for every pair; one minus a mean cosine would return noise."""
    d, n = 1e-9, 5
    x = torch.zeros(1, n, n + 1, dtype=torch.float64)
    x[..., 0] = 1.0
    x[0, :, 1:] = d * torch.eye(n)
    assert separation(x) == pytest.approx(d * d / (1 + d * d), rel=1e-9)
    assert abs(by_gram(x) / (d * d) - 1) > 0.5


def test_zero_tokens_count_as_orthogonal() -> None:
    x = torch.eye(4, dtype=torch.float64)[None].clone()
    assert separation(x) == pytest.approx(1.0)
    x[0, 2] = 0.0
    assert separation(x) == pytest.approx(1.0)


def test_padding_is_left_out() -> None:
    x = stream(2, 9, 6)
    kept = torch.ones(2, 9, dtype=torch.bool)
    kept[:, 6:] = False
    assert separation(x, kept) == pytest.approx(separation(x[:, :6]), rel=1e-12)
    assert mean_square(x, kept) == pytest.approx(float(x[:, :6].square().mean()), rel=1e-12)


def test_pairs_of_runs() -> None:
    x = stream(2, 5, 7)
    assert pair_separation(x, 3.0 * x) == pytest.approx(0.0, abs=1e-15)
    assert pair_separation(x, -x) == pytest.approx(2.0)
    y = stream(2, 5, 7, seed=1)
    cosine = torch.nn.functional.cosine_similarity(x, y, dim=-1)
    assert pair_separation(x, y) == pytest.approx(1 - float(cosine.mean()), rel=1e-12)


def test_one_token_is_refused() -> None:
    with pytest.raises(BadInput, match="two"):
        separation(stream(1, 1, 4))


def test_low_precision_streams_are_read_in_double() -> None:
    x = stream(1, 8, 16).to(torch.bfloat16)
    assert math.isclose(separation(x), by_gram(x.double()), rel_tol=1e-12)
