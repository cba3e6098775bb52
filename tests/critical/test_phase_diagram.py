"""Phase diagrams, critical points and the vector field."""

import json
import math

import numpy as np
import pytest

import edgewise
from edgewise.critical.asymptotics import asymptotics
from edgewise.critical.stream_flow import orbits
from edgewise.errors import BadInput
from edgewise.theory.simplex.drive import propagate_simplex


def family(**knobs):
    base = dict(
        depth=32,
        tokens=32,
        width=512,
        heads=4,
        activation="tanh",
        attention_skip=math.sqrt(0.96),
        attention_branch=0.2,
        mlp_skip=math.sqrt(0.75),
        mlp_branch=0.5,
    )
    return edgewise.transformer(**(base | knobs))


@pytest.fixture(scope="module")
def diagram():
    return edgewise.phase_diagram(
        family(), {"mlp_in_gain": (0.5, 4.0, 15), "attention_branch": (0.05, 0.9, 9)}
    )


def test_a_cell_is_the_network_it_stands_for(diagram):
    network = family(mlp_in_gain=float(diagram.x[4]), attention_branch=float(diagram.y[2]))
    verdict = edgewise.judge(edgewise.predict(network))
    assert diagram.share[2, 4] == pytest.approx(verdict.probability.value, rel=1e-6)
    assert diagram.angle[2, 4] == pytest.approx(verdict.angle.at_depth, rel=1e-9)
    assert diagram.gradient[2, 4] == pytest.approx(verdict.gradient.at_depth, rel=1e-9)
    assert diagram.angle_change[2, 4] == pytest.approx(verdict.angle.change, rel=1e-9)
    assert diagram.gradient_change[2, 4] == pytest.approx(verdict.relative_gradient.change, rel=1e-9)
    assert diagram.outcome[2, 4] == verdict.outcome.exit_code


def test_the_outcome_of_every_cell_is_the_band_of_its_share(diagram):
    expected = np.where(diagram.share >= 0.75, 0, np.where(diagram.share <= 0.25, 2, 1))
    np.testing.assert_array_equal(diagram.outcome, expected)
    assert {0, 1, 2} <= set(diagram.outcome.ravel())


def test_cells_that_explode_do_not_train():
    lost = edgewise.phase_diagram(
        edgewise.transformer(depth=8, tokens=8, norm="none", mlp_out_gain=1e60),
        {"value_gain": (1.0, 50.0, 2), "attention_branch": (0.5, 1.0, 2)},
    )
    np.testing.assert_array_equal(lost.share, np.zeros((2, 2)))
    np.testing.assert_array_equal(lost.outcome, np.full((2, 2), 2))


@pytest.mark.parametrize("swap", [False, True])
def test_a_diagram_over_depth_is_judged_network_by_network(swap):
    axes = {"depth": (4, 12, 3), "mlp_in_gain": (0.5, 3.0, 2)}
    shown = edgewise.phase_diagram(
        family(), dict(reversed(axes.items())) if swap else axes, start_overlap=0.2
    )
    share = shown.share if swap else shown.share.T
    for j, depth in enumerate((4, 8, 12)):
        for i, gain in enumerate((0.5, 3.0)):
            trace = edgewise.predict(family(depth=depth, mlp_in_gain=gain), start_overlap=0.2)
            assert share[j, i] == pytest.approx(edgewise.judge(trace).probability.value, rel=1e-6)


@pytest.fixture(scope="module")
def biased_diagram():
    biased = family(mlp_bias=0.3, depth=100)
    return biased, edgewise.phase_diagram(
        biased, {"mlp_in_gain": (0.5, 2.5, 21), "attention_branch": (0.05, 0.5, 7)}
    )


@pytest.mark.parametrize("which", ["angle", "gradient"])
def test_boundaries_are_where_the_exponents_vanish(which, biased_diagram):
    """With a bias both lines exist; the gradient's lies on the ordered side of the angle's [Cowsik 2024]."""
    biased, made = biased_diagram
    line = made.boundaries[which][0]
    gain, branch = line[len(line) // 2]
    limit = asymptotics(biased.replace(mlp_in_gain=float(gain), attention_branch=float(branch)))
    assert getattr(limit, which) == pytest.approx(
        0.0, abs=0.01
    )  # the start still counts a little over 100 blocks
    assert made.boundaries["gradient"][0][:, 0].max() < made.boundaries["angle"][0][:, 0].max()


def test_without_bias_an_odd_activation_never_lets_the_shared_gradient_vanish(diagram):
    """E phi^2 <= q E phi'^2 (Poincare): the mean mode's factor is at least 1, so its line does not exist."""
    assert diagram.boundaries["angle"] and not diagram.boundaries["gradient"]
    assert (diagram.near_gradient > 0).all()


def test_the_phase_is_the_sign_of_the_collapse_exponent(diagram):
    for j, i in ((4, 0), (8, 14), (0, 14)):
        network = family(mlp_in_gain=float(diagram.x[i]), attention_branch=float(diagram.y[j]))
        assert diagram.phase[j, i] == np.sign(asymptotics(network).angle)


def test_marker_json_and_saving(diagram, tmp_path):
    assert diagram.marker == (1.0, 0.2)
    diagram.save(tmp_path / "d.json")
    data = json.loads((tmp_path / "d.json").read_text())
    assert np.array(data["angle"]).shape == (9, 15) and data["architecture"]["depth"] == 32


def test_whole_number_axes_go_row_by_row():
    small = edgewise.phase_diagram(family(depth=8), {"tokens": (8, 64, 3), "mlp_in_gain": (0.5, 2.0, 4)})
    assert small.angle.shape == (4, 3)
    network = family(depth=8, tokens=36, mlp_in_gain=float(small.y[1]))
    assert small.x[1] == 36
    verdict = edgewise.judge(edgewise.predict(network))
    assert small.gradient[1, 1] == pytest.approx(verdict.gradient.at_depth, rel=1e-9)


@pytest.mark.parametrize(
    "axes,words",
    [
        ({"score_gain": (0, 1, 3)}, "two knobs, got 1"),
        ({"score_gain": (0, 1, 3), "colour": (0, 1, 3)}, "'colour' is not a knob"),
        ({"score_gain": (1, 0, 3), "mlp_in_gain": (0, 1, 3)}, "low below high"),
        ({"score_gain": (0, 1), "mlp_in_gain": (0, 1, 3)}, "low, high, count"),
        ({"score_gain": (-1, 1, 3), "mlp_in_gain": (0, 1, 3)}, "at least 0"),
        ({"causal": (0, 1, 3), "mlp_in_gain": (0, 1, 3)}, "causal"),
        ({"depth": (2, 4, 3), "tokens": (8, 16, 3)}, "both whole numbers"),
    ],
)
def test_bad_axes_are_refused(axes, words):
    with pytest.raises(BadInput, match=words):
        edgewise.phase_diagram(family(depth=4), axes)


def test_positions_left_out_of_a_diagram_are_said():
    made = edgewise.phase_diagram(
        family(depth=2, causal=True), {"score_gain": (0, 1, 2), "mlp_in_gain": (0.5, 1, 2)}
    )
    assert "positions" in made.extrapolated[0]


def test_critical_point_of_one_knob_is_the_edge_of_chaos_without_attention():
    """A block without attention, norm and skip is a perceptron layer: tanh, bias variance 0.05: 1.7607."""
    network = edgewise.transformer(
        depth=150, tokens=16, heads=0, activation="tanh", norm="none", mlp_skip=0.0, mlp_bias=0.05**0.5
    )
    found = edgewise.critical_point(network, free=["mlp_in_gain"])
    assert found.values["mlp_in_gain"] ** 2 == pytest.approx(1.7607, rel=0.01)  # the start counts a little
    assert abs(found.angle) * 150 < 0.5 and abs(found.gradient) * 150 < 0.5


def test_without_a_root_the_nearest_end_is_given():
    """Post-norm tanh without skip: E phi^2 <= q E phi'^2, so the exponent vanishes only as the gain goes to zero."""
    network = edgewise.transformer(depth=20, tokens=16, heads=0, activation="tanh", norm="post", mlp_skip=0.0)
    found = edgewise.critical_point(network, free=["mlp_in_gain"])
    assert found.values["mlp_in_gain"] < 0.01 and 0 < found.angle < 1e-3


def test_what_is_left_at_a_critical_point_knows_mask_and_positions():
    """The search leaves them out; what it says of the point found is the prediction of that very network."""
    network = family(depth=6, tokens=8, width=64, causal=True, rope=True)
    found = edgewise.critical_point(network, free=["mlp_in_gain"])
    trace = edgewise.predict(found.architecture)
    ends = trace.block_ends()
    angle = np.log(trace.separation[:, ends[-1]] / trace.separation[:, ends[0]]).mean() / 6
    assert found.angle == pytest.approx(angle, abs=1e-9)
    symmetric = edgewise.critical_point(network.replace(causal=False, rope=0.0), free=["mlp_in_gain"])
    assert found.values["mlp_in_gain"] == pytest.approx(symmetric.values["mlp_in_gain"])
    assert abs(found.angle - symmetric.angle) > 0.01
    assert not found.reached and "mask and positions" in str(found)


def test_critical_point_of_two_knobs_vanishes_or_says_why():
    found = edgewise.critical_point(family(), free=["mlp_in_gain", "attention_branch"])
    assert abs(found.angle) < 1e-6  # the inner root
    assert found.reached == (max(abs(found.angle), abs(found.gradient)) * 32 < 0.05)
    assert found.reached or "small attention branch" in found.note
    text = str(found)
    assert "mlp_in_gain" in text and json.dumps(found.json())


def test_only_the_limit_of_a_small_attention_branch_does_it_for_a_pooled_readout():
    found = edgewise.critical_point(family(attention_branch=0.5), free=["mlp_in_gain"], readout="pooled")
    assert not found.reached and "small attention branch" in found.note


@pytest.mark.parametrize(
    "free,words",
    [
        ([], "one or two"),
        (["a"], "not a knob"),
        (["depth"], "cannot vary"),
        (["score_gain"] * 2, "different"),
    ],
)
def test_bad_free_knobs_are_refused(free, words):
    with pytest.raises(BadInput, match=words):
        edgewise.critical_point(family(), free=free)


def test_the_vector_field_vanishes_at_its_fixed_points():
    network = family(mlp_in_gain=3.0, attention_branch=0.2)
    field = edgewise.critical.vector_field(network, norms=(0.2, 3.0, 9), overlaps=(0.0, 0.9, 7))
    assert field.d_overlap.shape == (7, 9) and len(field.trajectories) == 4
    stable = [p for p in field.fixed_points if p.stable]
    assert stable
    at = edgewise.critical.vector_field(
        network, norms=(stable[0].norm, stable[0].norm * 1.01, 2), overlaps=(stable[0].overlap, 0.99, 2)
    )
    assert abs(at.d_log_norm[0, 0]) < 1e-6 and abs(at.d_overlap[0, 0]) < 1e-6
    json.dumps(field.json())
    whole = edgewise.critical.vector_field(network.replace(depth=1)).norm
    assert (whole[0], whole[10], whole[-1]) == pytest.approx((0.1, 1.0, 10.0))  # unless it is said otherwise
    with pytest.raises(BadInput, match="causal"):
        edgewise.critical.vector_field(family(causal=True))


def test_orbits_are_those_of_the_recursion_also_where_a_stream_is_lost():
    starts = (0.0, 0.6)
    lost = family(
        norm="none", activation="relu", value_gain=1e3, mlp_in_gain=60.0, mlp_out_gain=60.0, depth=60
    )
    for network in (family(), family(norm="post"), lost):
        for start, orbit in zip(starts, orbits(network, starts), strict=True):
            trace = propagate_simplex(network, start)
            expected = np.stack([trace.blocks("norm"), trace.blocks("overlap")], axis=1)
            np.testing.assert_allclose(orbit, expected, rtol=1e-12, atol=1e-14)
    assert np.isinf(orbit[-1, 0])


def test_strengths_move_a_branch_and_its_skip_together():
    made = edgewise.phase_diagram(
        family(), {"attention_strength": (0.2, 0.8, 3), "mlp_strength": (0.1, 0.5, 3)}
    )
    assert made.marker == (0.2, 0.5)
    network = family(attention_branch=0.8, attention_skip=0.6, mlp_branch=0.3, mlp_skip=math.sqrt(0.91))
    assert made.angle[1, 2] == pytest.approx(
        edgewise.judge(edgewise.predict(network)).angle.at_depth, rel=1e-9
    )
    axes = {"attention_strength": (0.1, 0.9, 2), "mlp_in_gain": (1, 2, 2)}
    assert edgewise.phase_diagram(network, axes).marker == (0.8, 1.0)
    unpaired = family(attention_skip=1.0)
    assert edgewise.phase_diagram(unpaired, axes).marker is None
    with pytest.raises(BadInput, match="attention_strength"):
        edgewise.phase_diagram(family(), {"attention_strength": (0.1, 1.2, 3), "mlp_in_gain": (1, 2, 2)})
