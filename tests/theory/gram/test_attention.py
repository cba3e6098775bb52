"""Attention of the Gram recursion: masks, features, closed forms, the simplex formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import xlogy

from edgewise.nouns.architecture import transformer
from edgewise.theory.gram import heads as gram_heads
from edgewise.theory.gram import step as gram_step
from edgewise.theory.gram.drive import propagate_gram
from edgewise.theory.gram.heads import Sampling
from edgewise.theory.gram.state import Normals, geometry_root, simplex
from edgewise.theory.gram.step import attend, pull_attention
from tests.support.some_tokens import geometry, small, tokens

CLOSE = {"rtol": 1e-7, "atol": 1e-7}


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 5), (False, 7)])
def test_sandwich_skips_only_zeros(causal: bool, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram_heads, "SMALLEST_BLOCK", 3)
    mask = gram_heads.sliding_window_mask.__wrapped__(23, causal, window, np.float64)
    generator = np.random.default_rng(0)
    a, m = generator.standard_normal((2, 23, 23)), generator.standard_normal((23, 23))
    a = a if mask.visible is None else a * mask.visible
    middle = m + m.T
    b = a.swapaxes(1, 2)
    np.testing.assert_allclose(gram_heads.sandwich(a, middle, mask.rows), (a @ middle @ b).sum(0), **CLOSE)
    np.testing.assert_allclose(gram_heads.sandwich(b, middle, mask.columns), (b @ middle @ a).sum(0), **CLOSE)


def test_features_have_the_covariance_of_the_tokens() -> None:
    x = tokens() + 3.0
    root = geometry_root(geometry(x), np.float64)
    with_mean = root.apart @ root.shared
    shared = float(root.shared @ root.shared) + root.rest**2
    covariance = root.apart @ root.apart.T + with_mean[:, None] + with_mean + shared
    np.testing.assert_allclose(covariance, x @ x.T, rtol=1e-9, atol=1e-9)
    x = tokens(spread=1.5)
    root = geometry_root(geometry(x), np.float64)
    common, apart = root.draw(1, 100_000, Normals(0))
    drawn = (common + apart)[0]
    lengths = np.linalg.norm(x, axis=-1)
    correlation = (drawn @ drawn.T / 100_000) / lengths[:, None] / lengths
    np.testing.assert_allclose(correlation, x @ x.T / lengths[:, None] / lengths, rtol=0, atol=0.02)


@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("rope", [0.0, 0.5, 1.0])
def test_gradients_of_features_are_those_of_a_complex_step(qk_norm: bool, rope: float) -> None:
    """df/dx = Im f(x + ih)/h, exact to rounding for what is analytic [Squire and Trapp 1998]."""
    layer = small(qk_norm=qk_norm, rope=rope, head_width=8).blocks[0][0].layers[0]
    raw, gradient = np.random.default_rng(0).standard_normal((2, 2, 12, 8))
    steps = 1e-30j * np.eye(raw.size).reshape(-1, *raw.shape)
    expected = [
        (gram_heads.features(raw + step, layer).values.imag * gradient).sum() / 1e-30 for step in steps
    ]
    pulled = gram_heads.features(raw, layer).pull(gradient, layer)
    np.testing.assert_allclose(pulled.ravel(), expected, **CLOSE)


def test_a_gated_product_multiplies_overlaps() -> None:
    first, second = geometry(tokens(1)), geometry(tokens(2))
    product = gram_step.product(first, second)
    np.testing.assert_allclose(product.overlaps, first.overlaps * second.overlaps, **CLOSE)
    assert float(np.abs(product.spreads.diagonal()).max()) < 1e-12


def test_alibi_slopes() -> None:
    eight = [2.0**-h for h in range(1, 9)]
    assert gram_heads.alibi_slopes(8).tolist() == eight
    assert gram_heads.alibi_slopes(12).tolist() == pytest.approx(
        [*eight, *(2.0 ** -(h + 0.5) for h in range(4))]
    )


# Where attention is exact: without scores it is a plain average over visible keys.


def test_causal_average_in_closed_form() -> None:
    """score_gain = 0: C' = S C S^T with S_ab = 1/(a+1), entropy log(a+1), value path S^T S."""
    n = 7
    made = transformer(
        depth=1,
        tokens=n,
        width=64,
        heads=1,
        mlp_width=0,
        norm="none",
        attention_skip=0.0,
        score_gain=0.0,
        value_gain=0.5,
        causal=True,
    )
    x = np.random.default_rng(0).standard_normal((n, 20))
    trace = propagate_gram(made, start=x @ x.T, samples=1, draws=1, dtype=np.float64)
    S = np.tril(np.ones((n, n))) / np.arange(1.0, n + 1)[:, None]
    c = S @ x @ x.T @ S.T / 4
    cosine = c / np.sqrt(c.diagonal())[:, None] / np.sqrt(c.diagonal())
    assert trace.norm[0, 1] == pytest.approx(float(c.diagonal().mean()), rel=1e-10)
    assert trace.separation[0, 1] == pytest.approx(float((1 - cosine).sum()) / (n * (n - 1)), rel=1e-10)
    assert trace.log_gradient is not None
    assert trace.attention_entropy is not None
    assert trace.log_gradient[0, 0, 0] == pytest.approx(math.log(float((S**2).sum()) / 4 / n), rel=1e-10)
    assert trace.attention_entropy[0, 1, 0] == pytest.approx(np.log(np.arange(1, n + 1)).mean(), rel=1e-10)
    assert trace.statistics["logit_variance"][0, 1] == 0.0


def test_alibi_in_closed_form() -> None:
    """score_gain = 0, two heads of slopes 1/16 and 1/256: S is known, and each head is drawn once."""
    n = 40
    made = transformer(
        depth=1,
        tokens=n,
        width=64,
        heads=2,
        mlp_width=0,
        norm="none",
        attention_skip=0.0,
        score_gain=0.0,
        causal=True,
        alibi=True,
    )
    trace = propagate_gram(made, samples=2, draws=1, dtype=np.float64)
    away = np.arange(n)[:, None] - np.arange(n)
    weights = np.exp(-np.array([1 / 16, 1 / 256])[:, None, None] * away) * (away >= 0)
    S = weights / weights.sum(-1, keepdims=True)
    assert trace.norm[0, 1] == pytest.approx(float((S**2).sum(-1).mean()), rel=1e-10)
    assert trace.attention_entropy is not None
    assert trace.attention_entropy[0, 1, 0] == pytest.approx(float(-xlogy(S, S).sum(-1).mean()), rel=1e-10)


def test_a_window_of_one_is_the_identity() -> None:
    made = transformer(
        depth=1, tokens=9, width=64, heads=2, mlp_width=0, attention_skip=0.0, window=1, rope=0.5
    )
    trace = propagate_gram(made, start_overlap=0.3, draws=1, dtype=np.float64)
    assert trace.separation[0] == pytest.approx([0.7, 0.7], rel=1e-6)
    assert trace.log_gradient is not None
    assert trace.log_gradient[0, 0] == pytest.approx(0.0, abs=1e-6)


# The simplex formulas of attention, with moments sampled here.


def sampled_moments(v: float, rho: float, n: int) -> dict[str, float]:
    x = np.random.default_rng(1).standard_normal((3, 40_000, n))
    rows = math.sqrt(v) * (math.sqrt(rho) * x[0] + math.sqrt(1 - rho) * x[1:])
    s, t = np.exp(rows) / np.exp(rows).sum(-1, keepdims=True)
    s2, s11 = (s**2).sum(-1), (s * t).sum(-1)
    return {
        "S2": s2.mean(),
        "S11": s11.mean(),
        "R2": (s2 - 2 * (s**3).sum(-1) + s2**2).mean(),
        "T11": (s11 - (s**2 * t).sum(-1) - (s * t**2).sum(-1) + s11**2).mean(),
    }


@pytest.mark.parametrize("score_gain", [1.0, 3.0])
def test_backward_equals_the_simplex_formulas(score_gain: float) -> None:
    """Vq, Vp, Qq, Qp, Kq, Kp [signal propagation 3.2] at large head width, for a gradient with both modes."""
    n, q, p, gq, gp, sV, width = 24, 1.3, 0.5, 1.0, 0.3, 0.8, 100
    made = transformer(
        depth=1,
        tokens=n,
        width=width,
        heads=4,
        head_width=400,
        score_gain=score_gain,
        value_gain=sV,
        output_gain=0.5,
        key_gain=2.0,
    )
    layer, state = made.blocks[0][0].layers[0], simplex(n, q, p / q)
    gamma = np.full((n, n), gp) + (gq - gp) * np.eye(n)
    sampling = Sampling(600, np.float32, keep=True)
    out, _, memory = attend(layer, state, sampling, 1)  # type: ignore[arg-type]
    back, weights = pull_attention(layer, state, gamma, width, sampling, memory)  # type: ignore[arg-type]
    D, sA, m = q - p, score_gain, sampled_moments(score_gain**2 * q * (q - p), p / q, n)
    assert float(out.squares.mean()) == pytest.approx(sV**2 * (p + D * m["S2"]), rel=0.01)
    assert out.separation * out.norm == pytest.approx(sV**2 * D * (m["S2"] - m["S11"]), rel=0.03)
    Vq = sV**2 * (gq * m["S2"] + (n - 1) * gp * m["S11"])
    Vp = sV**2 * (gq * (1 - m["S2"]) / (n - 1) + gp * (1 - m["S11"]))
    Qq, Qp = (sA**2 * sV**2 * D**2 * g * r for g, r in ((gq, m["R2"]), (gp, m["T11"])))
    Kq = sA**2 * sV**2 * D * (q * gq * m["R2"] + (n - 1) * p * gp * m["T11"])
    own, cross = float(back.diagonal().mean()), float(back.sum() - back.diagonal().sum()) / (n * (n - 1))
    assert own == pytest.approx(Vq + Qq + Kq, rel=0.02)
    assert cross == pytest.approx(Vp + Qp - Kq / (n - 1), rel=0.02)
    queries = n * (q * gq * m["R2"] + (n - 1) * p * gp * m["T11"]) * width * sV**2 * D**2
    assert weights["query"] == pytest.approx(2.0**2 * queries, rel=0.04)
    assert weights["key"] == pytest.approx((sA / 2.0) ** 2 * queries, rel=0.04)
    mixed = n * (gq * (p + D * m["S2"]) + (n - 1) * gp * (p + D * m["S11"]))
    assert weights["value"] == pytest.approx(width * 0.5**2 * mixed, rel=0.01)
    assert weights["output"] == pytest.approx(4 * 400 * (sV / 0.5) ** 2 * mixed, rel=0.01)
