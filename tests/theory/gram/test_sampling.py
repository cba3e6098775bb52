"""Draws that go on as one: where they may, and that the answer is that of draws which stay apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgewise.nouns.architecture import Architecture, transformer
from edgewise.theory.gram import drive, heads
from edgewise.theory.gram.drive import propagate_gram
from edgewise.theory.gram.state import simplex


def network(**knobs: Any) -> Architecture:
    return transformer(
        **{"depth": 16, "tokens": 24, "width": 256, "heads": 4, "causal": True, "norm": "pre"} | knobs
    )


def steps(monkeypatch: pytest.MonkeyPatch, made: Architecture, **options: Any) -> int:
    """How many branches are gone through."""
    begun: list[int] = []
    through = drive.step
    monkeypatch.setattr(drive, "step", lambda *a: (begun.append(1), through(*a))[1])
    propagate_gram(made, **options)
    monkeypatch.setattr(drive, "step", through)
    return len(begun)


def test_draws_join_where_the_first_blocks_overwrite_most(monkeypatch: pytest.MonkeyPatch) -> None:
    made = network(embedding_norm=1e-3)
    assert 32 < steps(monkeypatch, made) < 48
    assert steps(monkeypatch, made, samples=2) == steps(monkeypatch, network(norm="post")) == 64
    assert steps(monkeypatch, made, draws=1) == 32


def test_joined_draws_answer_like_draws_that_stay_apart() -> None:
    made = network(embedding_norm=1e-3, score_gain=2.0)
    joined, apart = propagate_gram(made), propagate_gram(made, samples=32, seed=3)
    for one, other in zip(joined.total_changes("token"), apart.total_changes("token"), strict=True):
        assert one / made.depth == pytest.approx(other / made.depth, abs=0.004)
    assert joined.norm[0, -1] != joined.norm[1, -1]  # each keeps what the first blocks made of it
    change = joined.norm[:, -1] / joined.norm[:, -6]
    assert change[0] == pytest.approx(change[1], rel=1e-9)
    assert np.isfinite(joined.log_gradient).all() and np.isfinite(joined.attention_entropy[:, 1::2]).all()


def test_settled_weighs_what_is_left_against_what_was() -> None:
    assert heads.settled(np.array([3.0, 0.1]), 12)
    assert not heads.settled(np.array([3.0, 1.0]), 12)
    assert not heads.settled(np.array([1.0] * 11), 12)  # a twelfth of all
    assert not heads.settled(np.array([np.inf, 0.0]), 4)  # without a skip


def test_blocks_that_differ_in_more_than_what_they_see_stay_apart() -> None:
    alike = network(window=(None, 8) * 8).blocks
    assert heads.blocks_alike(alike) and alike[0] != alike[1]
    assert not heads.blocks_alike(network(mlp_branch=tuple(np.linspace(1.0, 0.5, 16))).blocks)


def test_an_orbit_that_goes_on_as_another_keeps_its_own_level() -> None:
    own, trunk = (drive.GramOrbit(simplex(4, q, 0.5), 1, 4, np.float32, 8, 0) for q in (1.0, 2.0))
    trunk.norm[2:], trunk.separation[2:] = [4.0, 6.0], [0.25, 0.125]
    trunk.log_gradient[:] = [0.0, 1.0, 2.0, 3.0]
    own.take(trunk)
    assert own.norm[1:] == pytest.approx([1.0, 2.0, 3.0])
    assert own.separation[1:] == pytest.approx([0.5, 0.25, 0.125])
    assert own.log_gradient[2:].tolist() == [2.0, 3.0] and np.isnan(own.log_gradient[1])
