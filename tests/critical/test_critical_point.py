"""The critical point of a perceptron is its edge of chaos, in Python as in the shell."""

from __future__ import annotations

import math

import numpy as np
import pytest

import edgewise
from edgewise.critical.critical_point import _one, _two, default_knobs


def test_a_perceptron_is_critical_at_its_edge_of_chaos() -> None:
    point = edgewise.critical_point(edgewise.Perceptron("erf", 3.0, 0.0))
    assert point.values == {"weight_variance": pytest.approx(math.pi / 4)}  # chi_1 = sw2 4/pi at q* = 0
    assert point.reached and point.architecture.weight_variance == point.values["weight_variance"]
    relu = edgewise.critical_point("mlp:relu", "weight_variance")
    assert relu.values == {"weight_variance": pytest.approx(2.0)}
    assert relu.angle == pytest.approx(0.0, abs=1e-12)
    assert "44.4/l^2" in relu.note  # 9 pi^2 / 2
    assert "Critical at weight_variance = 2" in str(relu)


def test_exponents_of_a_tanh_perceptron_vanish_on_its_edge() -> None:
    point = edgewise.critical_point(edgewise.Perceptron("tanh", 3.0, 0.1))
    assert abs(point.angle) < 1e-5 and abs(point.gradient) < 1e-5
    assert edgewise.critical.perceptron_maps(point.architecture).limits.chi_1 == pytest.approx(1.0, abs=1e-5)


def test_a_perceptron_without_an_edge_says_so() -> None:
    point = edgewise.critical_point(edgewise.Perceptron("relu2", 1.0, 0.5))
    assert point.values == {} and not point.reached
    assert str(point).startswith("No critical point. No weight variance")


@pytest.mark.parametrize(
    "how", [{"free": "bias_variance"}, {"readout": "pooled"}, {"free": ("weight_variance",) * 2}]
)
def test_what_cannot_be_freed_in_a_perceptron_is_refused(how: dict[str, object]) -> None:
    with pytest.raises(edgewise.BadInput, match="weight variance"):
        edgewise.critical_point("mlp:tanh", **how)  # type: ignore[arg-type]


def test_the_default_knob_is_the_one_that_matters_most() -> None:
    network = edgewise.transformer(depth=4, tokens=8, width=64, heads=2)
    assert default_knobs(network) == ("attention_branch",)
    assert default_knobs(network.replace(heads=0)) == ("mlp_in_gain",)
    assert default_knobs(edgewise.Perceptron()) == ("weight_variance",)


PAIRS = [((1, -1), (-1, 3)), ((1, -1), (1, -3)), ((1, -2), (1, 9)), ((1, 9), (2, -4))]


@pytest.mark.parametrize("angle, gradient", PAIRS)
def test_with_one_knob_the_larger_of_the_two_exponents_is_as_small_as_it_can_be(angle, gradient) -> None:
    """Two lines in log x: the least larger size is where one vanishes or both are as large, of one sign or of two."""
    lines = lambda values: tuple(slope * np.log(values["x"]) + offset for slope, offset in (angle, gradient))  # noqa: E731
    found = _one(lines, {"x": 1.0})["x"]
    at = np.linspace(-5, 5, 20_001)
    least = np.maximum(*(np.abs(slope * at + offset) for slope, offset in (angle, gradient))).min()
    assert max(map(abs, lines({"x": found}))) == pytest.approx(least, abs=1e-3)


def test_a_free_knob_may_be_a_list() -> None:
    """The search begins at its mean."""
    knobs = dict(depth=2, tokens=8, width=32, heads=0, activation="tanh")
    networks = [edgewise.transformer(mlp_in_gain=gain, **knobs) for gain in (1.5, [1.0, 2.0])]
    one, other = (edgewise.critical_point(network, free=["mlp_in_gain"]) for network in networks)
    assert one.values == pytest.approx(other.values)


def test_with_two_knobs_the_outer_crossing_on_the_line_of_the_inner_is_taken() -> None:
    """The angle vanishes where y = x/2; on that line the gradient vanishes at x = 0.3 and at x = 3.1."""

    def exponents(values):
        x, y = values["x"], values["y"]
        return np.log(2 * y / x), np.log(x / 0.3) * np.log(x / 3.1) + 0 * y

    assert _two(exponents, {"x": 1.0, "y": 1.0}, ("x", "y")) == pytest.approx({"x": 3.1, "y": 1.55})
