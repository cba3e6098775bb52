"""What is read off a simulated network, against its definition."""

from __future__ import annotations

import itertools

import pytest
import torch

from edgewise.nets.build import _separation


def test_separation_is_the_mean_over_pairs_of_one_minus_the_cosine() -> None:
    tokens = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.8
    pairs = [1 - torch.cosine_similarity(a, b, dim=0).item() for a, b in itertools.combinations(tokens, 2)]
    assert _separation(tokens) == pytest.approx(sum(pairs) / len(pairs), rel=1e-12)
