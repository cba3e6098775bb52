"""The simulator judges the theory, so it is judged first: on networks whose answer needs no theory."""

from __future__ import annotations

from math import acos, pi, sin, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.agreement.simulation import simulate as simulation
from tests.agreement.simulation.knobs import Knobs
from tests.agreement.simulation.network import (
    attention,
    block,
    draw_weights,
    gaussian,
    mlp,
    normalize,
    rotate,
)
from tests.agreement.simulation.simulate import separation, simulate, start_tokens

SMALL = {"depth": 1, "tokens": 12, "width": 64, "heads": 4}


def layer(**knobs: Any) -> Knobs:
    return Knobs(**{**SMALL, **knobs}).at(0)


def drawn(knobs: Knobs, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Tokens and weights in double precision."""
    generator = np.random.default_rng(seed)
    x = gaussian(generator, knobs.tokens, knobs.width, dtype=torch.float64)
    return x, draw_weights(knobs, generator, torch.float64)


def test_nothing_of_the_library_enters():
    for source in Path(__file__).parent.glob("[!t]*.py"):
        assert "import edgewise" not in source.read_text()
        assert "from edgewise" not in source.read_text()


def test_weights_have_the_promised_deviation():
    gains = {"score_gain": 3.0, "key_gain": 2.0, "value_gain": 3.0, "output_gain": 0.5}
    knobs = layer(
        width=256,
        heads=8,
        kv_heads=2,
        gated=True,
        mlp_in_gain=1.5,
        mlp_linear_gain=0.7,
        mlp_out_gain=1.2,
        mlp_bias=0.4,
        head_width=16,
        **gains,
    )
    weights = drawn(knobs)[1]
    deviation = {
        "W_Q": 1.5 / 16,
        "W_K": 2 / 16,
        "W_V": 6 / 16,
        "W_O": 0.5 / sqrt(128),
        "W_1": 1.5 / 16,
        "W_linear": 0.7 / 16,
        "W_2": 1.2 / 32,
        "bias": 0.4,
    }
    shapes = {"W_Q": (128, 256), "W_K": (32, 256), "W_V": (32, 256), "W_O": (256, 128), "W_1": (1024, 256)}
    assert {name: tuple(weights[name].shape) for name in shapes} == shapes
    for name, expected in deviation.items():
        assert weights[name].std().item() == pytest.approx(expected, rel=4 / sqrt(2 * weights[name].numel()))


def test_gains_may_be_lists():
    knobs = Knobs(**{**SMALL, "depth": 3, "score_gain": [1.0, 4.0, 9.0]})
    assert [knobs.at(i).key_gain for i in range(3)] == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="2 values for 3 layers"):
        Knobs(**{**SMALL, "depth": 3, "score_gain": [1.0, 4.0]})


def test_branches_off_is_the_identity():
    found = simulate({**SMALL, "depth": 3, "attention_branch": 0.0, "mlp_branch": 0.0}, 2, 0.3)
    for values in found.values():
        assert (values == values[:, :1]).all()


def test_linear_perceptron_multiplies_norms_both_ways():
    knobs = {
        "depth": 4,
        "tokens": 8,
        "width": 512,
        "heads": 0,
        "activation": "linear",
        "norm": "none",
        "mlp_skip": 0.0,
        "mlp_in_gain": 1.5,
        "mlp_out_gain": 0.8,
    }
    found = simulate(knobs, 8, 0.5)
    factors = 1.44 ** np.arange(5)
    assert found["norm"].mean(0) == pytest.approx(factors, rel=0.06)
    assert found["gradient_norm"].mean(0) == pytest.approx(factors[::-1], rel=0.06)
    assert found["separation"].mean(0) == pytest.approx(np.full(5, 0.5), rel=0.06)


@pytest.mark.parametrize("readout", ["token", "pooled"])
def test_uniform_attention_is_the_average_of_tokens(readout: str):
    n, skip, branch, gain = 16, 0.8, 0.5, 1.2
    knobs = {
        "depth": 1,
        "tokens": n,
        "width": 512,
        "heads": 8,
        "mlp_width": 0,
        "norm": "none",
        "score_gain": 0.0,
        "value_gain": gain,
        "attention_skip": skip,
        "attention_branch": branch,
    }
    found = {name: values.mean(0) for name, values in simulate(knobs, 16, 0.4, readout).items()}
    mean_mode = (branch * gain) ** 2
    norm = skip**2 + mean_mode * (0.4 + 0.6 / n)
    assert found["norm"] == pytest.approx([1, norm], rel=0.03)
    assert found["separation"] == pytest.approx([0.6, 0.6 * skip**2 / norm], rel=0.03)
    shared = 1 if readout == "pooled" else 1 / n
    assert found["gradient_norm"] == pytest.approx([skip**2 + mean_mode * shared, 1], rel=0.03)


def test_uniform_attention_without_skip_collapses_to_rounding():
    found = simulate({**SMALL, "score_gain": 0.0, "attention_skip": 0.0, "mlp_width": 0}, 1)
    assert found["separation"][0, 1] < 1e-12


def test_relu_perceptron_follows_the_arc_cosine_kernel():
    knobs = {"depth": 1, "tokens": 16, "width": 512, "heads": 0, "activation": "relu", "mlp_skip": 0.0}
    found = {name: values.mean(0) for name, values in simulate(knobs, 32, 0.5).items()}
    theta = acos(0.5)
    overlap = (sin(theta) + (pi - theta) * 0.5) / pi
    assert found["norm"][1] == pytest.approx(0.5, rel=0.03)
    assert found["separation"][1] == pytest.approx(1 - overlap, rel=0.03)
    assert found["gradient_norm"][0] == pytest.approx(0.5, rel=0.03)


def test_attention_is_that_of_torch():
    knobs = layer(kv_heads=2, causal=True, score_gain=4.0)
    x, weights = drawn(knobs)
    split = [(x @ weights[w].T).view(12, -1, 16).transpose(0, 1)[None] for w in ("W_Q", "W_K", "W_V")]
    mixed = torch.nn.functional.scaled_dot_product_attention(*split, is_causal=True, enable_gqa=True)
    expected = mixed[0].transpose(0, 1).flatten(1) @ weights["W_O"].T
    torch.testing.assert_close(attention(x, weights, knobs), expected)


@pytest.mark.parametrize(
    ("causal", "window", "seen"),
    [
        (True, None, lambda a, b: b <= a),
        (True, 3, lambda a, b: a - 3 < b <= a),
        (False, 3, lambda a, b: abs(a - b) < 3),
    ],
)
def test_masks_let_through_what_they_should(causal: bool, window: int | None, seen: Any):
    knobs = layer(causal=causal, window=window, rope=True, alibi=True)
    x, weights = drawn(knobs)
    jacobian = torch.autograd.functional.jacobian(lambda u: attention(u, weights, knobs).sum(-1), x)
    expected = [[seen(a, b) for b in range(12)] for a in range(12)]
    assert (jacobian.abs().sum(-1) > 0).tolist() == expected


def test_rope_depends_on_distance_only_and_turns_a_fraction():
    x = torch.randn(1, 16, dtype=torch.float64, generator=torch.manual_seed(0)).expand(10, 16)
    y = torch.randn(1, 16, dtype=torch.float64, generator=torch.manual_seed(1)).expand(10, 16)
    products = rotate(x, 1.0, 100.0) @ rotate(y, 1.0, 100.0).T
    torch.testing.assert_close(products[1:, 1:], products[:-1, :-1])
    assert products[0].std() > 0.1
    torch.testing.assert_close(rotate(x, 0.25, 100.0)[:, 4:], x[:, 4:])
    torch.testing.assert_close(rotate(x, 0.25, 100.0)[1, 0], x[1, 0] * np.cos(1) - x[1, 2] * np.sin(1))


def test_alibi_halves_in_steps_of_heads():
    knobs = layer(alibi=True, score_gain=0.0)
    x, weights = drawn(knobs)
    distance = (torch.arange(12)[None] - torch.arange(12)[:, None]).abs().double()
    shares = torch.stack([(-(0.25 ** (h + 1)) * distance).softmax(-1) for h in range(4)])
    value = (x @ weights["W_V"].T).view(12, 4, 16).transpose(0, 1)
    expected = (shares @ value).transpose(0, 1).flatten(1) @ weights["W_O"].T
    torch.testing.assert_close(attention(x, weights, knobs), expected)


def test_qk_norm_forgets_the_scale_and_obeys_its_gain():
    knobs = layer(qk_norm=True, score_gain=2.0)
    x, weights = drawn(knobs)
    torch.testing.assert_close(attention(3 * x, weights, knobs), 3 * attention(x, weights, knobs))
    sharper = attention(x, weights, layer(qk_norm=True, score_gain=4.0))
    assert (sharper - attention(x, weights, knobs)).abs().max() > 0.1


def test_norm_positions():
    x, weights = drawn(layer(gated=True))
    attend, perceive = (lambda u, kind: attention(u, weights, kind)), (lambda u, kind: mlp(u, weights, kind))
    skips = {"attention_skip": 0.9, "mlp_skip": 0.7, "attention_branch": 0.6, "mlp_branch": 0.5}
    for norm, before, after, outside in [
        ("pre", 1, 0, 0),
        ("post", 0, 0, 1),
        ("sandwich", 1, 1, 0),
        ("branch", 0, 1, 0),
        ("none", 0, 0, 0),
    ]:
        knobs = layer(norm=norm, norm_kind="rms", gated=True, **skips)

        def when(flag: int, y: torch.Tensor, knobs: Knobs = knobs) -> torch.Tensor:
            return normalize(y, knobs) if flag else y

        y = when(outside, 0.9 * x + 0.6 * when(after, attend(when(before, x), knobs)))
        y = when(outside, 0.7 * y + 0.5 * when(after, perceive(when(before, y), knobs)))
        torch.testing.assert_close(block(x, weights, knobs), y)
    parallel = layer(parallel=True, gated=True, **skips)
    u = normalize(x, parallel)
    expected = 0.9 * x + 0.6 * attend(u, parallel) + 0.5 * perceive(u, parallel)
    torch.testing.assert_close(block(x, weights, parallel), expected)


def test_norm_kinds():
    x = 3 + 2 * torch.randn(5, 64, dtype=torch.float64, generator=torch.manual_seed(0))
    centred = normalize(x, layer(norm_kind="layer"))
    assert centred.mean(-1).abs().max() < 1e-12
    torch.testing.assert_close(centred.square().mean(-1), torch.ones(5, dtype=torch.float64))
    scaled = torch.nn.functional.rms_norm(x, (64,), eps=0.0)
    torch.testing.assert_close(normalize(x, layer(norm_kind="rms")), scaled)
    torch.testing.assert_close(normalize(x, layer(norm_kind="tanh", norm_slope=0.5)), torch.tanh(x / 2))
    torch.testing.assert_close(normalize(x, layer(norm_kind="erf", norm_slope=0.5)), torch.erf(x / 2))


def test_separation_is_the_mean_over_pairs_and_survives_collapse():
    x = torch.randn(7, 32, dtype=torch.float64, generator=torch.manual_seed(0))
    cosines = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1)
    assert separation(x) == pytest.approx(1 - (cosines.sum() - 7).item() / 42, rel=1e-12)
    near = torch.ones(2, 100, dtype=torch.float64)
    near[0, :50] += 1e-8  # angle 0.5e-8, so 1 - cosine = 1.25e-17, below the rounding of the cosine itself
    assert separation(near) == pytest.approx(1.25e-17, rel=1e-6)


def test_tokens_start_where_they_should():
    knobs = Knobs(depth=1, tokens=64, width=4096, embedding_norm=0.3)
    x = start_tokens(knobs, 0.7, np.random.default_rng(0), torch.float64)
    assert x.square().mean().item() == pytest.approx(0.3, rel=0.05)
    assert separation(x) == pytest.approx(0.3, rel=0.05)


def test_gradients_are_those_of_the_whole_network(monkeypatch: pytest.MonkeyPatch):
    knobs = {**SMALL, "depth": 3, "causal": True, "gated": True, "norm": "sandwich", "qk_norm": True}
    found = simulate(knobs, [5], 0.2, weight_gradients=True, dtype=torch.float64)
    network = Knobs(**knobs)
    *each, generator = (np.random.Generator(np.random.SFC64([5, i])) for i in range(4))
    weights = [draw_weights(network.at(i), source, torch.float64) for i, source in enumerate(each)]
    x = start = start_tokens(network, 0.2, generator, torch.float64).requires_grad_()
    g = gaussian(generator, 12, 64, std=1 / 8, dtype=torch.float64)
    for i, matrices in enumerate(weights):
        matrices["W_Q"].requires_grad_()
        x = block(x, matrices, network.at(i))
    gradients = torch.autograd.grad((x * g).sum(), [start, *(matrices["W_Q"] for matrices in weights)])
    squares = [gradient.square().sum().item() for gradient in gradients]
    total = g.square().sum().item()
    assert found["gradient_norm"][0, 0] == pytest.approx(squares[0] / total, rel=1e-9)
    assert found["W_Q"][0] == pytest.approx(np.array(squares[1:]) / (total / 12), rel=1e-9)
    monkeypatch.setattr(simulation, "MEMORY_LIMIT", 0.0)
    again = simulate(knobs, [5], 0.2, weight_gradients=True, dtype=torch.float64)
    assert all(np.array_equal(found[name], again[name]) for name in found)
