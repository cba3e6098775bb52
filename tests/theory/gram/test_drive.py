"""The Gram recursion keeps its digits, repeats, reports, and refuses bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import edgewise
from edgewise.errors import BadInput, VanishedStream
from edgewise.nouns.architecture import transformer
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Kind, Outcome
from edgewise.theory.gram import heads as gram
from edgewise.theory.gram.drive import propagate_gram
from edgewise.theory.gram.heads import default_samples, fewer_samples
from edgewise.theory.gram.state import from_overlaps
from edgewise.theory.simplex.drive import propagate_simplex
from tests.support.some_tokens import small


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_post_norm_collapse_keeps_its_digits(dtype: type) -> None:
    """48 post-norm layers: 1 - c falls below 1e-6 and follows the exact recursion."""
    made = transformer(
        depth=48,
        tokens=32,
        width=4096,
        heads=2,
        head_width=512,
        mlp_width=2048,
        norm="post",
        activation="tanh",
        attention_skip=0.9,
        mlp_skip=0.9,
        mlp_in_gain=0.7,
    )
    exact = propagate_simplex(made, 0.1)
    dense = propagate_gram(made, start_overlap=0.1, samples=8, draws=2, dtype=dtype)
    assert exact.separation[0, -1] < 1e-6
    assert np.log(dense.separation.mean(0)) == pytest.approx(np.log(exact.separation[0]), abs=0.02)
    assert dense.log_gradient is not None
    assert exact.log_gradient is not None
    assert dense.log_gradient[0].mean(0) == pytest.approx(exact.log_gradient[0, 0], abs=0.05)
    keys = dense.statistics["weight_gradient.key"].mean(0)
    assert keys == pytest.approx(exact.statistics["weight_gradient.key"][0], abs=0.4, nan_ok=True)


def test_explosion_does_not_overflow() -> None:
    """A squared gradient beyond the largest floating point number, e^709; the growth per layer in closed form."""
    made = transformer(
        depth=120,
        tokens=8,
        width=64,
        heads=1,
        norm="none",
        attention_branch=0.0,
        causal=True,
        activation="erf",
        mlp_in_gain=1000.0,
        mlp_skip=0.0,
    )
    trace = propagate_gram(made, draws=1)
    q = 1e6 * 2 / math.pi * math.asin(2e6 / (1 + 2e6))  # of the preactivation, from the second layer on
    growth = math.log(1e6 * 4 / math.pi / math.sqrt(1 + 4 * q))
    assert trace.log_gradient is not None
    assert trace.log_gradient[0, 0, 2] == pytest.approx(119 * growth, rel=1e-3)
    assert 119 * growth > 709
    assert np.isfinite(trace.separation).all()


def same(first: Trace, second: Trace, tolerance: float = 0.0) -> bool:
    a, b = first.log_gradient, second.log_gradient
    assert a is not None
    assert b is not None
    return np.allclose(a, b, rtol=0, atol=tolerance) and np.allclose(first.norm, second.norm, rtol=tolerance)


def test_seeds_repeat_and_draws_differ() -> None:
    first = propagate_gram(small(), draws=2, seed=5)
    assert same(first, propagate_gram(small(), draws=2, seed=5))
    assert not same(first, propagate_gram(small(), draws=2, seed=6))
    assert first.norm[0, -1] != first.norm[1, -1]
    assert first.source == "theory: gram recursion, 32 heads x 2 draws"


def test_heads_held_or_drawn_again_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    held = propagate_gram(small(alibi=True, qk_norm=True), draws=1)
    monkeypatch.setattr(gram, "HELD", 0.0)
    assert same(held, propagate_gram(small(alibi=True, qk_norm=True), draws=1), 1e-6)


def test_a_measured_gram_matrix_is_followed_token_by_token() -> None:
    """A simplex given as a matrix is the default start; a token nearer to all others changes what comes out."""
    matrix = np.full((12, 12), 0.4) + 0.6 * np.eye(12)
    given = propagate_gram(small(), start=matrix, draws=1)
    assert same(given, propagate_gram(small(), start_overlap=0.4, draws=1), 1e-5)
    matrix[0, 1:] = matrix[1:, 0] = 0.6
    assert not same(given, propagate_gram(small(), start=torch.from_numpy(matrix), draws=1), 1e-3)
    state = from_overlaps(matrix)
    np.testing.assert_allclose(state.overlaps, matrix, rtol=1e-7, atol=1e-7)


def test_progress_reaches_one() -> None:
    seen: list[float] = []
    propagate_gram(small(), draws=2, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_default_samples_fall_with_length_and_depth() -> None:
    assert [
        fewer_samples(edgewise.describe("gpt2", tokens=n), default_samples(n, 12)) for n in (64, 128)
    ] == [32, 2]
    assert fewer_samples(edgewise.describe("llama-2-7b"), 8) == 8
    shapes = ((64, 12), (127, 32), (128, 32), (256, 32), (1024, 32))
    assert [default_samples(*shape) for shape in shapes] == [32, 17, 4, 2, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": np.eye(11)}, r"shape \(11, 11\)"),
        ({"start": np.triu(np.ones((12, 12)))}, "not symmetric"),
        ({"start": np.full((12, 12), np.nan)}, "not finite"),
        ({"start": 3 * np.eye(12) - 1}, "eigenvalue"),
        ({"start": np.diag([0.0] + [1.0] * 11)}, "token 0"),
        ({"start": np.eye(12), "start_overlap": 0.5}, "both"),
        ({"start_overlap": -0.5}, "start_overlap"),
        ({"start_overlap": math.nan}, "start_overlap"),
        ({"readout": "mean"}, "readout"),
        ({"samples": 0}, "samples"),
        ({"draws": 1.5}, "draws"),
        ({"dtype": np.float16}, "dtype"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        propagate_gram(small(), **options)


def test_a_norm_of_nothing_is_refused() -> None:
    with pytest.raises(VanishedStream, match="divide by zero"):
        propagate_gram(small(norm="sandwich", value_gain=0.0), draws=1)


@pytest.mark.parametrize(
    ("skip", "end", "dtype"),
    [
        (1e3, math.inf, np.float32),
        (1e-4, 0.0, np.float32),
        (1e100, math.inf, np.float64),
    ],
)
def test_a_stream_out_of_range_is_an_answer(skip: float, end: float, dtype: type) -> None:
    """The norm follows skip^2 per layer exactly until it cannot be drawn, then is infinite or 0; no gradient."""
    made = small(norm="none", mlp_width=0, attention_skip=skip, attention_branch=0.0, depth=12)
    trace = propagate_gram(made, draws=1, dtype=dtype)
    held = int(np.argmax(trace.norm[0] == end))
    expected = made.embedding_norm * skip ** (2.0 * np.arange(held))
    np.testing.assert_allclose(trace.norm[0, :held], expected, rtol=1e-5)
    assert held > 0 and (trace.norm[0, held:] == end).all() and trace.log_gradient is None
    verdict = edgewise.judge(trace)
    assert verdict.outcome is Outcome.FAILS and verdict.findings[0].kind is Kind.STREAM_OUT_OF_RANGE


def test_few_heads_are_enough_where_scores_hardly_vary() -> None:
    """GPT-2's scores have variance 0.09: four heads and thirty-two give the same exponents to 5e-4."""
    network = edgewise.describe("gpt2", depth=6, tokens=128)
    assert fewer_samples(network, 32) == 4
    few, many = (propagate_gram(network, samples=count, draws=2) for count in (4, 32))
    angle, gradient = zip(
        *(np.array(t.total_changes("token")) / network.depth for t in (few, many)), strict=True
    )
    assert abs(angle[0] - angle[1]) < 5e-4 and abs(gradient[0] - gradient[1]) < 5e-4
    sharp = network.replace(score_gain=3.0)
    assert fewer_samples(sharp, 32) == 32


def test_condensation_counts_the_keys_that_each_row_sees() -> None:
    """Tokens that start apart give every row the same logit variance v: the ratio is v mean_a 1 / (2 log a), a > 1."""
    made = transformer(depth=1, tokens=8, width=512, heads=16, causal=True, mlp_width=0)
    statistics = propagate_gram(made, samples=8, draws=2).statistics
    v, ratio = (statistics[name][:, 1].mean() for name in ("logit_variance", "condensation"))
    assert v == pytest.approx(1.0, abs=0.1)
    assert ratio / v == pytest.approx(np.mean([1 / (2 * math.log(count)) for count in range(2, 9)]), rel=0.06)


@pytest.mark.parametrize("readout, coherence", [("token", 0.0), ("pooled", 1.0)])
def test_gradients_of_two_tokens_are_apart_or_the_same_at_the_output(readout: str, coherence: float) -> None:
    made = transformer(depth=1, tokens=3, width=64, heads=2, causal=True)
    found = propagate_gram(made, readout=readout, samples=4, draws=1).statistics["gradient_coherence"]
    assert found[:, -1] == pytest.approx(coherence, abs=1e-12)
    assert (np.abs(found) < 1 + 1e-6).all()
