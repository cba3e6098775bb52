"""The perceptron view: maps and limits of the library, and a random network that does what they say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import edgewise

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")

from edgewise.explorer.perceptron_view import (
    PerceptronRequest,
    PlaneRequest,
    circle_answer,
    maps_answer,
    plane_answer,
)
from edgewise.nouns.knobs import ACTIVATIONS

CHAOS = {"weight_variance": 4.0, "bias_variance": 0.05}


def request(**wanted: Any) -> PerceptronRequest:
    return PerceptronRequest.model_validate(wanted)


def test_maps_orbits_and_limits_are_the_librarys() -> None:
    drawn = maps_answer(request(**CHAOS, length=0.5, correlation=0.9))
    maps = edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", 4.0, 0.05))
    np.testing.assert_allclose(drawn["length"]["y"], maps.length(drawn["length"]["x"]), rtol=1e-3)
    np.testing.assert_allclose(
        drawn["correlation"]["y"], maps.correlation(drawn["correlation"]["x"]), rtol=2e-3
    )
    steps = drawn["length"]["orbit"]
    np.testing.assert_allclose(steps[1:], maps.length(steps[:-1]), rtol=1e-3)
    assert steps[-1] == pytest.approx(maps.limits.length_fixed_point, rel=1e-3)
    assert drawn["phase"] == maps.limits.phase and drawn["title"] == "Chaos: inputs part"
    below, one = drawn["correlation"]["points"]
    assert below["at"] == maps.limits.correlation_fixed_point and (below["stable"], one["stable"]) == (
        True,
        False,
    )


def test_the_plane_has_the_edge_where_growth_vanishes() -> None:
    drawn = plane_answer(PlaneRequest(activation="tanh"))
    rate = np.array(drawn["rate"]).reshape(drawn["y"]["count"], drawn["x"]["count"])
    x = np.linspace(0, drawn["x"]["high"], drawn["x"]["count"])
    for weight, bias in drawn["edge"][::40]:
        row = rate[round(bias / drawn["y"]["high"] * (drawn["y"]["count"] - 1))]
        assert np.interp(weight, x, row) == pytest.approx(0.0, abs=0.06)


def test_a_circle_is_stretched_and_its_pair_parted_as_theory_says() -> None:
    drawn = circle_answer(request(**CHAOS, correlation=0.9, seed=1))
    assert drawn["stretched"][-1] == pytest.approx(drawn["theory"][-1], rel=0.35)
    theory = maps_answer(request(**CHAOS, correlation=0.9))["correlation"]["orbit"]
    np.testing.assert_allclose(drawn["pair"], theory, atol=0.25)  # one network of width 256
    assert np.abs(drawn["layers"][0]).max() == pytest.approx(1.0, abs=0.01)
    assert circle_answer(request(**CHAOS, seed=1)) == circle_answer(request(**CHAOS, seed=1))
    assert circle_answer(request(**CHAOS, seed=2))["layers"] != drawn["layers"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_is_answered_also_at_the_ends(name: str) -> None:
    for weight, bias in ((0.0, 0.0), (2.0, 0.0), (6.0, 1.5)):
        drawn = maps_answer(request(activation=name, weight_variance=weight, bias_variance=bias, length=10.0))
        json.dumps(drawn, allow_nan=False)
        assert drawn["title"] and "nan" not in drawn["sentences"] and "inf" not in drawn["sentences"].split()
    json.dumps(plane_answer(PlaneRequest(activation=name)), allow_nan=False)


def test_a_signal_that_explodes_or_fades_leaves_fewer_layers_or_none() -> None:
    exploding = circle_answer(request(activation="relu2", weight_variance=6.0))
    json.dumps(exploding, allow_nan=False)
    assert len(exploding["layers"]) < 17
    gone = circle_answer(request(weight_variance=0.0, bias_variance=0.0))
    assert gone["pair"][-1] is None
    json.dumps(gone, allow_nan=False)
    grows = maps_answer(request(activation="relu", weight_variance=3.0))
    assert grows["title"] == "Signals explode" and "50\u00a0%" in grows["sentences"]
