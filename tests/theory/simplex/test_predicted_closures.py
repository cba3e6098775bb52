"""Closures behind predict: each equals the exact recursion where its own limit is exact, and only there."""

from __future__ import annotations

import numpy as np
import pytest

import edgewise
from edgewise.errors import BadInput

NETWORK = edgewise.transformer(
    depth=8, tokens=512, width=512, heads=1, head_width=4096, norm="post", score_gain=0.3
)


def test_large_n_is_right_for_flat_attention_and_wrong_for_sharp() -> None:
    exact, closed = (
        edgewise.predict(NETWORK, closure=name).blocks("separation") for name in ("exact", "large_n")
    )
    np.testing.assert_allclose(closed, exact, rtol=2e-3)
    sharp = NETWORK.replace(score_gain=2.0, tokens=64)
    exact, closed = (
        edgewise.predict(sharp, closure=name).blocks("separation") for name in ("exact", "large_n")
    )
    assert abs(closed[-1] / exact[-1] - 1) > 0.05


def test_random_energy_is_approached_with_more_tokens() -> None:
    gaps = []
    for tokens in (64, 1024):
        sharp = NETWORK.replace(depth=1, tokens=tokens, score_gain=2 * np.sqrt(2 * np.log(tokens)))
        exact, closed = (
            edgewise.predict(sharp, closure=c).blocks("separation")[1] for c in ("exact", "random_energy")
        )
        gaps.append(abs(closed / exact - 1))
    assert 0 < gaps[1] < gaps[0]


def test_frozen_attention_changes_gradients_only() -> None:
    sharp = NETWORK.replace(tokens=64, score_gain=4.0)
    exact, frozen = (edgewise.predict(sharp, closure=name) for name in ("exact", "frozen"))
    assert (exact.separation == frozen.separation).all()
    assert frozen.blocks("log_gradient")[0] < exact.blocks("log_gradient")[0] - 0.1


def test_impossible_closures_are_refused() -> None:
    with pytest.raises(BadInput, match="one of exact, large_n"):
        edgewise.predict(NETWORK, closure="large-n")
    with pytest.raises(BadInput, match="needs tokens that are all alike"):
        edgewise.predict(NETWORK.replace(causal=True), closure="large_n")
