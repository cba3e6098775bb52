"""The dense Gram recursion against closed forms, the simplex formulas, and real random networks with autograd."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from edgewise.architecture import Architecture, transformer
from edgewise.errors import BadInput
from edgewise.theory.activation.activations import activation
from edgewise.theory.gram import heads as gram_heads
from edgewise.theory.gram import mask as gram_mask
from edgewise.theory.gram import mlp as gram_mlp
from edgewise.theory.gram import recursion as gram
from edgewise.theory.gram.attention import attend
from edgewise.theory.gram.attention_backward import pull_attention
from edgewise.theory.gram.geometry import Geometry, from_overlaps, simplex
from edgewise.theory.gram.heads import Sampling
from edgewise.theory.gram.pairs import pair_averages, slope_averages
from edgewise.theory.gram.recursion import default_samples, propagate_gram
from edgewise.theory.gram.root import geometry_root
from edgewise.theory.predict import propagate_simplex
from edgewise.trace import Trace
from tests.simulation.simulate import simulate

# Tokens for pair averages: one near copy, one opposite, and lengths that differ.


def tokens(seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((6, 8)) / np.sqrt(8)
    x[3] = 1.2 * x[2] + 1e-4 * x[3]
    x[5] = -0.9 * x[4] + 0.1 * x[5]
    return torch.from_numpy(x * np.exp(generator.uniform(-spread, spread, (6, 1))))


def geometry(x: torch.Tensor) -> Geometry:
    return Geometry(x.square().sum(-1), (x[:, None] - x).square().sum(-1) / 2)


def pair_mean(function: Any, first: torch.Tensor, second: torch.Tensor) -> float:
    """E f(w.x) f(w.y) by the trapezoid rule in the plane of x and y: independent of the library's panels."""
    z = np.linspace(-9, 9, 1801)
    weight = np.exp(-(z**2) / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    q, c = float(first.norm()), float(first @ second / first.norm() / second.norm())
    along = float(second.norm()) * (c * z[:, None] + math.sqrt(max(0.0, 1 - c**2)) * z)
    return float((weight * function(q * z)) @ (function(along) @ weight))


@pytest.mark.parametrize("name", ["tanh", "gelu", "silu"])
def test_pair_averages_of_unequal_variance(name: str) -> None:
    x, phi = tokens(), activation(name)
    values, slopes = pair_averages(phi, geometry(x)).overlaps, slope_averages(phi, geometry(x))
    for a, b in ((0, 1), (2, 3), (4, 5), (1, 4)):
        assert float(values[a, b]) == pytest.approx(pair_mean(phi.function, x[a], x[b]), abs=1e-6)
        assert float(slopes[a, b]) == pytest.approx(pair_mean(phi.derivative, x[a], x[b]), abs=1e-6)


@pytest.mark.parametrize(("size", "tolerance"), [(0.1, 1e-6), (1.0, 1e-5), (10.0, 1e-5), (300.0, 2e-3)])
def test_pair_averages_of_erf_are_the_arc_sine_kernel(size: float, tolerance: float) -> None:
    """Steep or flat: (2/pi) asin(2 C_ab / sqrt((1 + 2 q_a)(1 + 2 q_b))), and the slopes by the determinant."""
    x = size * tokens(spread=1.5)
    c, q = x @ x.T, x.square().sum(-1)
    larger = (1 + 2 * q[:, None]) * (1 + 2 * q)
    values = 2 / math.pi * torch.asin(2 * c / larger.sqrt())
    torch.testing.assert_close(pair_averages(activation("erf"), geometry(x)).overlaps, values, rtol=0, atol=tolerance)
    slopes = 4 / math.pi / (larger - 4 * c**2).sqrt()
    torch.testing.assert_close(slope_averages(activation("erf"), geometry(x)), slopes, rtol=tolerance, atol=1e-9)


def test_pair_averages_of_relu_are_the_arc_cosine_kernel() -> None:
    x = tokens(spread=3.0)
    lengths = x.norm(dim=-1)
    theta = torch.acos((x @ x.T / lengths[:, None] / lengths).clamp(-1, 1)).fill_diagonal_(0.0)
    kernel = lengths[:, None] * lengths * (theta.sin() + (math.pi - theta) * theta.cos()) / (2 * math.pi)
    torch.testing.assert_close(pair_averages(activation("relu"), geometry(x)).overlaps, kernel, rtol=1e-5, atol=1e-7)
    slopes = slope_averages(activation("relu"), geometry(x))
    torch.testing.assert_close(slopes, (math.pi - theta) / (2 * math.pi), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
@pytest.mark.parametrize("growth", [1.0, 1.5])
def test_distances_keep_their_digits_near_collapse(name: str, growth: float) -> None:
    """E (phi(u) - phi(v))^2 / 2 -> |u - v|^2-part of the tangent map, at 1e-14 of the squares."""
    step = 1e-7
    direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
    x = torch.stack([torch.tensor([growth, 0.0], dtype=torch.float64)] * 2)
    squares = torch.stack([x[0] @ x[0], (x[0] + step * direction) @ (x[0] + step * direction)])
    state = Geometry(squares, torch.tensor([[0.0, 0.5], [0.5, 0.0]], dtype=torch.float64) * step**2)
    phi = activation(name)
    # to first order phi(v) - phi(u) = phi'(u) du, du Gaussian with parts along and across u
    z, w = np.polynomial.hermite_e.hermegauss(181)
    w = w / w.sum()
    along = 0.6**2 * float(w @ (phi.derivative(growth * z) * z) ** 2)
    expected = step**2 * (along + 0.8**2 * float(w @ phi.derivative(growth * z) ** 2)) / 2
    assert float(pair_averages(phi, state).spreads[0, 1]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 5), (False, 7)])
def test_sandwich_skips_only_zeros(causal: bool, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram_mask, "SMALLEST_BLOCK", 3)
    mask = gram_mask.attention_mask.__wrapped__(23, causal, window, torch.float64)
    a, m = torch.randn(2, 23, 23, dtype=torch.float64), torch.randn(23, 23, dtype=torch.float64)
    a = a if mask.visible is None else a * mask.visible
    middle = m + m.T
    torch.testing.assert_close(gram_mask.sandwich(a, middle, mask.rows), (a @ middle @ a.mT).sum(0))
    torch.testing.assert_close(gram_mask.sandwich(a.mT, middle, mask.columns), (a.mT @ middle @ a).sum(0))


def test_features_have_the_covariance_of_the_tokens() -> None:
    x = tokens() + 3.0
    root = geometry_root(geometry(x), torch.float64)
    with_mean = root.apart @ root.shared
    shared = float(root.shared @ root.shared) + root.rest**2
    covariance = root.apart @ root.apart.T + with_mean[:, None] + with_mean + shared
    torch.testing.assert_close(covariance, x @ x.T, rtol=1e-9, atol=1e-9)
    x = tokens(spread=1.5)
    root = geometry_root(geometry(x), torch.float64)
    common, apart = root.draw(1, 100_000, torch.Generator().manual_seed(0))
    drawn = (common + apart)[0]
    lengths = x.norm(dim=-1)
    correlation = (drawn @ drawn.T / 100_000) / lengths[:, None] / lengths
    torch.testing.assert_close(correlation, x @ x.T / lengths[:, None] / lengths, rtol=0, atol=0.02)


@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("rope", [0.0, 0.5, 1.0])
def test_gradients_of_features_are_those_of_autograd(qk_norm: bool, rope: float) -> None:
    layer = small(qk_norm=qk_norm, rope=rope, head_width=8).blocks[0][0].layers[0]
    raw = torch.randn(2, 12, 8, dtype=torch.float64, requires_grad=True)
    made, gradient = gram_heads.features(raw, layer), torch.randn(2, 12, 8, dtype=torch.float64)
    (expected,) = torch.autograd.grad(made.values, raw, gradient)
    torch.testing.assert_close(made.pull(gradient, layer), expected)


def test_a_gated_product_multiplies_overlaps() -> None:
    first, second = geometry(tokens(1)), geometry(tokens(2))
    product = gram_mlp.product(first, second)
    torch.testing.assert_close(product.overlaps, first.overlaps * second.overlaps)
    assert float(product.spreads.diagonal().abs().max()) < 1e-12


def test_alibi_slopes() -> None:
    eight = [2.0**-h for h in range(1, 9)]
    assert gram_mask.alibi_slopes(8).tolist() == eight
    assert gram_mask.alibi_slopes(12).tolist() == pytest.approx([*eight, *(2.0 ** -(h + 0.5) for h in range(4))])


# Where attention is exact: without scores it is a plain average over visible keys.


def test_causal_average_in_closed_form() -> None:
    """score_gain = 0: C' = S C S^T with S_ab = 1/(a+1), entropy log(a+1), value path S^T S."""
    n = 7
    made = transformer(depth=1, tokens=n, width=64, heads=1, mlp_width=0, norm="none", attention_skip=0.0,
                       score_gain=0.0, value_gain=0.5, causal=True)  # fmt: skip
    x = torch.randn(n, 20, dtype=torch.float64)
    trace = propagate_gram(made, start=x @ x.T, samples=1, draws=1, dtype=torch.float64)
    S = torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1, dtype=torch.float64)[:, None]
    c = S @ x @ x.T @ S.T / 4
    cosine = c / c.diagonal().sqrt()[:, None] / c.diagonal().sqrt()
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
    made = transformer(depth=1, tokens=n, width=64, heads=2, mlp_width=0, norm="none", attention_skip=0.0,
                       score_gain=0.0, causal=True, alibi=True)  # fmt: skip
    trace = propagate_gram(made, samples=2, draws=1, dtype=torch.float64)
    away = torch.arange(n, dtype=torch.float64)[:, None] - torch.arange(n)
    S = (-torch.tensor([1 / 16, 1 / 256])[:, None, None] * away).masked_fill(away < 0, -math.inf).softmax(-1)
    assert trace.norm[0, 1] == pytest.approx(float((S**2).sum(-1).mean()), rel=1e-10)
    assert trace.attention_entropy is not None
    assert trace.attention_entropy[0, 1, 0] == pytest.approx(float(-torch.xlogy(S, S).sum(-1).mean()), rel=1e-10)


def test_a_window_of_one_is_the_identity() -> None:
    made = transformer(depth=1, tokens=9, width=64, heads=2, mlp_width=0, attention_skip=0.0, window=1, rope=0.5)
    trace = propagate_gram(made, start_overlap=0.3, draws=1, dtype=torch.float64)
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
        "S2": s2.mean(), "S11": s11.mean(), "R2": (s2 - 2 * (s**3).sum(-1) + s2**2).mean(),
        "T11": (s11 - (s**2 * t).sum(-1) - (s * t**2).sum(-1) + s11**2).mean(),
    }  # fmt: skip


@pytest.mark.parametrize("score_gain", [1.0, 3.0])
def test_backward_equals_the_simplex_formulas(score_gain: float) -> None:
    """Vq, Vp, Qq, Qp, Kq, Kp [signal propagation 3.2] at large head width, for a gradient with both modes."""
    n, q, p, gq, gp, sV, width = 24, 1.3, 0.5, 1.0, 0.3, 0.8, 100
    made = transformer(depth=1, tokens=n, width=width, heads=4, head_width=400, score_gain=score_gain,
                       value_gain=sV, output_gain=0.5, key_gain=2.0)  # fmt: skip
    layer, state = made.blocks[0][0].layers[0], simplex(n, q, p / q)
    gamma = torch.full((n, n), gp, dtype=torch.float64).fill_diagonal_(gq)
    sampling = Sampling(600, torch.float32, keep=True)
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


# The two recursions on symmetric networks.


@pytest.mark.parametrize("readout", ["token", "pooled"])
@pytest.mark.parametrize(
    "knobs",
    [
        {"activation": "gelu", "mlp_bias": 0.3},
        {"score_gain": 4.0, "activation": "relu"},
        {"qk_norm": True, "score_gain": 2.0, "gated": True, "activation": "silu", "parallel": True},
        {"norm": "post", "activation": "tanh", "mlp_in_gain": 1.5},
        {"norm": "sandwich", "norm_kind": "tanh", "norm_slope": 0.7, "attention_branch": 0.5},
    ],
    ids=["pre", "sharp", "gated", "post", "elementwise"],
)
def test_both_recursions_agree(knobs: dict[str, Any], readout: str) -> None:
    """The simplex recursion knows finite heads only through the query's length: wide heads."""
    made = transformer(depth=4, tokens=48, width=512, heads=2, head_width=256, **knobs)
    exact = propagate_simplex(made, 0.2, readout)
    dense = propagate_gram(made, start_overlap=0.2, readout=readout, samples=48, draws=3)
    assert dense.norm.mean(0) == pytest.approx(exact.norm[0], rel=0.01)
    assert np.log(dense.separation).mean(0) == pytest.approx(np.log(exact.separation[0]), abs=0.01)
    assert dense.log_gradient is not None
    assert exact.log_gradient is not None
    assert dense.log_gradient[0].mean(0) == pytest.approx(exact.log_gradient[0, 0], abs=0.06)
    for name, tolerance in {"value": 0.03, "mlp_in": 0.03, "mlp_out": 0.03, "query": 0.15, "key": 0.15}.items():
        name = f"weight_gradient.{name}"
        seen = dense.statistics[name].mean(0)
        assert seen == pytest.approx(exact.statistics[name][0], abs=tolerance, nan_ok=True), name
    assert dense.attention_entropy is not None
    assert exact.attention_entropy is not None
    entropy = dense.attention_entropy.mean(0)[:, 0]
    assert entropy == pytest.approx(exact.attention_entropy[0, :, 0], abs=0.05, nan_ok=True)


# Real random networks.

WEIGHTS = {
    "query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O",
    "mlp_in": "W_1", "mlp_linear": "W_linear", "mlp_out": "W_2",
}  # fmt: skip


@pytest.mark.parametrize("readout", ["token", "pooled"])
@pytest.mark.parametrize(
    "knobs",
    [
        {"causal": True, "rope": True, "gated": True, "activation": "silu", "norm_kind": "rms", "score_gain": 2.0},
        {"causal": True, "window": 5, "alibi": True, "activation": "gelu", "mlp_bias": 0.5, "score_gain": 1.5},
        {"qk_norm": True, "rope": 0.5, "score_gain": 2.0, "key_gain": 1.0, "norm": "post", "activation": "tanh"},
        {"causal": True, "norm": "none", "activation": "gelu", "attention_branch": 0.7, "mlp_branch": 0.5},
        {"causal": True, "norm": "sandwich", "parallel": True, "activation": "relu", "kv_heads": 2},
        {"causal": True, "norm_kind": "erf", "norm_slope": 0.6, "activation": "silu", "gated": True},
        {"window": 4, "rope": True, "norm": "branch", "output_gain": 2.0, "value_gain": 0.5, "mlp_skip": 0.8},
    ],
    ids=["llama", "alibi", "qk-norm", "no-norm", "parallel", "derf", "branch-norm"],
)
def test_real_networks(knobs: dict[str, Any], readout: str) -> None:
    """Norm, separation, gradients and every weight gradient by autograd; 24 tokens, width 512, 8 heads, 3 blocks."""
    shape = {"depth": 3, "tokens": 24, "width": 512, "heads": 8, "mlp_width": 768, "activation": "gelu"} | knobs
    made = transformer(**shape)
    real = simulate(shape, seeds=6, start_overlap=0.2, readout=readout, weight_gradients=True)
    dense = propagate_gram(made, start_overlap=0.2, readout=readout, draws=2)
    ends = dense.block_ends()
    assert dense.log_gradient is not None
    close(np.log(dense.norm[:, ends]), np.log(real["norm"]), 0.03)
    close(np.log(dense.separation[:, ends]), np.log(real["separation"]), 0.03)
    close(dense.log_gradient[0][:, ends], np.log(real["gradient_norm"]), 0.05)
    for name, matrix in WEIGHTS.items():
        values = dense.statistics[f"weight_gradient.{name}"]
        values = values[:, ~np.isnan(values).all(0)]
        if matrix in real:
            close(values, np.log(real[matrix]), 0.12)
        else:
            assert values.size == 0


def close(theory: np.ndarray, real: np.ndarray, tolerance: float) -> None:
    """Within the tolerance plus three standard errors of the seeds."""
    error = real.std(0, ddof=1) / math.sqrt(len(real))
    assert np.all(np.abs(theory.mean(0) - real.mean(0)) < tolerance + 3 * error), (theory.mean(0), real.mean(0), error)


# Precision, reproducibility, input.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_post_norm_collapse_keeps_its_digits(dtype: torch.dtype) -> None:
    """48 post-norm layers: 1 - c falls below 1e-6 and follows the exact recursion."""
    made = transformer(depth=48, tokens=32, width=4096, heads=2, head_width=512, mlp_width=2048, norm="post",
                       activation="tanh", attention_skip=0.9, mlp_skip=0.9, mlp_in_gain=0.7)  # fmt: skip
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
    made = transformer(depth=120, tokens=8, width=64, heads=1, norm="none", attention_branch=0.0, causal=True,
                       activation="erf", mlp_in_gain=1000.0, mlp_skip=0.0)  # fmt: skip
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


def small(**knobs: Any) -> Architecture:
    shape: dict[str, Any] = {"depth": 2, "tokens": 12, "width": 64, "heads": 2, "causal": True, "rope": True}
    return transformer(**(shape | knobs))


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
    state = from_overlaps(torch.from_numpy(matrix))
    torch.testing.assert_close(state.overlaps, torch.from_numpy(matrix))


def test_progress_reaches_one() -> None:
    seen: list[float] = []
    propagate_gram(small(), draws=2, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_default_samples_fall_with_length_and_depth() -> None:
    assert [default_samples(*shape) for shape in ((64, 12), (256, 32), (1024, 32))] == [32, 8, 4]


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
        ({"dtype": torch.float16}, "dtype"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        propagate_gram(small(), **options)


def test_a_norm_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="divide by zero"):
        propagate_gram(small(norm="sandwich", value_gain=0.0), draws=1)
    with pytest.raises(BadInput, match="out of range"):
        propagate_gram(small(norm="none", mlp_width=0, attention_skip=1e100), draws=1)
