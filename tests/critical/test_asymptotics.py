"""Limits at infinite depth against the closed forms of the theory."""

import math

import numpy as np
import pytest

from edgewise.critical.asymptotics import BlockMap, _reached, asymptotics, collapsed_norms
from edgewise.nouns.architecture import transformer
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.simplex.drive import propagate_simplex


def cowsik(alpha_a, alpha_m, gain, **knobs):
    return transformer(
        tokens=32,
        depth=16,
        heads=4,
        activation="tanh",
        mlp_in_gain=gain,
        attention_skip=math.sqrt(1 - alpha_a**2),
        attention_branch=alpha_a,
        mlp_skip=math.sqrt(1 - alpha_m**2),
        mlp_branch=alpha_m,
        **knobs,
    )


@pytest.mark.parametrize("alpha_a,alpha_m,gain", [(0.5, 0.5, 2.0), (0.3, 0.7, 1.0), (0.8, 0.4, 3.0)])
def test_collapse_exponent_of_the_pre_norm_family(alpha_a, alpha_m, gain):
    """lambda_a = log(D2/D q/q2) at q*, with the hand-written block of specification 2.4."""
    found = asymptotics(cowsik(alpha_a, alpha_m, gain))
    phi = activation("tanh")
    q_m, b = float(phi.square(gain**2)), gain**2 * float(phi.slope_square(gain**2))
    # q* of q -> arM^2 (arA^2 q + abA^2) + abM^2 q_m
    skip_a, skip_m = 1 - alpha_a**2, 1 - alpha_m**2
    q = (skip_m * alpha_a**2 + alpha_m**2 * q_m) / (1 - skip_a * skip_m)
    q1 = skip_a * q + alpha_a**2
    expected = math.log(skip_a * (skip_m + alpha_m**2 * b / q1))
    assert found.angle == pytest.approx(expected, abs=1e-6)
    assert found.fixed_points[0].norm == pytest.approx(q, rel=1e-8)


@pytest.mark.parametrize("alpha_a,alpha_m,gain", [(0.5, 0.5, 1.0), (0.3, 0.7, 0.8)])
def test_the_identity_between_the_two_exponents(alpha_a, alpha_m, gain):
    """At collapse: difference mode = lambda_a, mean mode = lambda_a + log(1 + abA^2 sV^2/(arA^2 q*))."""
    found = asymptotics(cowsik(alpha_a, alpha_m, gain))
    q = found.fixed_points[0].norm
    assert found.modes[1] == pytest.approx(found.angle, abs=1e-6)
    assert found.modes[0] == pytest.approx(
        found.angle + math.log1p(alpha_a**2 / ((1 - alpha_a**2) * q)), abs=1e-6
    )


def test_post_norm_mean_mode_comes_from_the_mlp_alone():
    network = transformer(tokens=32, depth=16, norm="post", activation="relu", mlp_in_gain=1.2)
    b = q_m = 1.2**2 / 2
    assert asymptotics(network).modes[0] == pytest.approx(math.log((1 + b) / (1 + q_m)), abs=1e-6)


@pytest.mark.parametrize("gain", [0.5, 1.0, 1.7])
def test_pre_norm_power_law(gain):
    """zeta = (B - sV^2 - q_m)/(sV^2 + q_m); for ReLU -sV^2/(sV^2 + q_m)."""
    found = asymptotics(transformer(tokens=32, depth=16, activation="relu", mlp_in_gain=gain, value_gain=0.8))
    assert found.angle == 0.0 and found.fixed_points == ()
    assert found.power_law == pytest.approx(-0.64 / (0.64 + gain**2 / 2), rel=1e-4)


def test_the_limits_are_what_a_deep_recursion_reaches():
    network = cowsik(0.5, 0.5, 1.0).replace(depth=400)
    trace = propagate_simplex(network)
    found = asymptotics(network)
    rate = np.diff(np.log(trace.blocks("separation")))[-1]
    gradient = -np.diff(trace.blocks("log_gradient"))[200]
    assert rate == pytest.approx(found.angle, abs=1e-5)
    assert gradient == pytest.approx(found.gradient, abs=1e-4)


def test_chaotic_network_has_an_interior_fixed_point_that_the_recursion_reaches():
    network = cowsik(0.3, 0.9, 4.0).replace(depth=300)
    found = asymptotics(network)
    assert found.angle > 0
    interior = [p for p in found.fixed_points if p.overlap < 0.999]
    assert len(interior) == 1 and interior[0].stable and not found.fixed_points[0].stable
    trace = propagate_simplex(network)
    assert trace.overlap[0, -1] == pytest.approx(interior[0].overlap, abs=1e-4)
    assert trace.norm[0, -1] == pytest.approx(interior[0].norm, rel=1e-4)


def test_rope_has_no_claimed_limit():
    found = asymptotics(transformer(rope=True, causal=True, norm="post"))
    assert found.angle is None and "open problem" in found.notes[0]
    growing = asymptotics(transformer(rope=True, causal=True))  # pre-norm: every branch fades
    assert growing.angle == 0.0 and growing.power_law is None


def test_collapse_depends_neither_on_length_nor_on_score_gain():
    exponents = [asymptotics(cowsik(0.5, 0.5, 1.0, score_gain=s)).angle for s in (0.1, 1.0, 3.0)]
    assert exponents[0] == pytest.approx(exponents[1], abs=1e-9) == pytest.approx(exponents[2], abs=1e-9)


def test_without_norm_a_relu_stream_has_no_fixed_point_away_from_zero():
    network = transformer(heads=0, norm="none", activation="relu", mlp_in_gain=2**0.5, mlp_skip=0.0, depth=4)
    assert collapsed_norms(BlockMap.of(network)) == []  # every norm is fixed: none is special


def test_a_stream_runs_into_the_norm_that_attracts_it_and_not_into_the_nearest():
    """q' = q^0.8 runs to 1 from everywhere, also from beside another candidate."""

    class Power:
        block = ()

        def __call__(self, q, separation):
            return q**0.8, separation

    assert _reached(Power(), 0.01, [0.012, 1.0, 50.0]) == 1.0
    assert _reached(Power(), 900.0, [1.0, 700.0]) == 1.0


def test_tokens_that_are_alike_have_flat_attention_however_sharp_the_scores_are():
    """Near c = 1 nothing depends on the score gain [Cowsik 2024]: the exponent at a gain of 1e12 is that at 1."""
    knobs = dict(depth=2, tokens=16, norm="post", activation="gelu")
    ordinary, sharp = (asymptotics(transformer(**knobs, score_gain=gain)) for gain in (1.0, 1e12))
    assert sharp.angle == pytest.approx(ordinary.angle, abs=1e-6)
