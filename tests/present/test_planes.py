"""Planes and flows as data: the numbers are the diagram's own, the edges lie where closed forms put them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgewise
from edgewise.errors import BadInput
from edgewise.nouns.card import Arrows
from edgewise.present import Curve, Panel, Sheet
from edgewise.present.planes import geometric

STACK = dict(depth=8, tokens=16, heads=0, norm="none", mlp_skip=0.6, mlp_branch=0.8, mlp_in_gain=1.3)


@pytest.fixture(scope="module")
def stack() -> edgewise.Architecture:
    return edgewise.transformer(**STACK, activation="erf").replace(name="stack")


def test_phase_diagram_shows_the_diagram(stack: edgewise.Architecture, tmp_path: Path) -> None:
    diagram = edgewise.phase_diagram(stack, {"mlp_in_gain": (0.5, 3.0, 9), "mlp_branch": (0.2, 1.5, 7)})
    sheet = edgewise.present.phase_diagram(diagram)
    angle, gradient, outcome = (panel.background for panel in sheet.panels)
    assert angle is not None
    assert gradient is not None
    assert outcome is not None
    assert np.array_equal(angle.values, diagram.near_angle)
    assert np.array_equal(gradient.values, diagram.near_gradient)
    assert np.array_equal(outcome.values, diagram.outcome)
    assert outcome.classes == ("trains", "risky", "will not train")
    drawn = [curve for curve in sheet.panels[2].curves if curve.label == "angle exponent 0"]
    for curve, line in zip(drawn, diagram.boundaries["angle"], strict=True):
        assert np.array_equal(np.stack([curve.x, curve.y], axis=1), line)
    (marker,) = sheet.panels[0].markers
    assert (marker.label, marker.x, marker.y) == ("stack", 1.3, 0.8)
    trains = np.mean(diagram.outcome == 0)
    assert f"trains {trains:.0%}" in sheet.panels[2].note
    assert sheet.scale == "theory, n = 16 tokens, d = 512, 9 × 7 networks"
    assert sheet.save(tmp_path / "phases.png").stat().st_size > 10_000


def test_the_note_is_the_number_nearest_to_the_network(stack: edgewise.Architecture) -> None:
    diagram = edgewise.phase_diagram(stack, {"mlp_in_gain": (0.3, 2.3, 3), "mlp_branch": (0.6, 1.0, 3)})
    note = edgewise.present.phase_diagram(diagram).panels[1].note
    assert note == f"stack: {diagram.near_gradient[1, 1]:+.3f} per block"  # the middle is (1.3, 0.8) exactly


def test_vector_field_points_where_the_map_goes(stack: edgewise.Architecture, tmp_path: Path) -> None:
    field = edgewise.critical.vector_field(stack)
    sheet = edgewise.present.vector_field(field)
    arrows = sheet.panels[0].arrows
    assert arrows is not None
    np.testing.assert_allclose(np.hypot(arrows.u, arrows.v), 1.0)
    assert np.array_equal(np.sign(arrows.u), np.sign(field.d_log_norm))
    assert np.array_equal(np.sign(arrows.v), np.sign(field.d_overlap))
    np.testing.assert_allclose(arrows.speed, np.hypot(field.d_log_norm, field.d_overlap))
    roles = [marker.role for marker in sheet.panels[0].markers]
    assert roles == ["stable" if point.stable else "unstable" for point in field.fixed_points]
    assert [len(curve.x) for curve in sheet.panels[0].curves] == [9] * len(field.trajectories)
    assert sheet.save(tmp_path / "flow.png").stat().st_size > 10_000


def test_a_stream_that_grows_without_bound_has_no_fixed_point_to_mark() -> None:
    network = edgewise.transformer(depth=3, tokens=16, heads=0, activation="relu", norm="pre")
    sheet = edgewise.present.vector_field(edgewise.critical.vector_field(network))
    assert sheet.panels[0].markers == ()
    assert sheet.panels[0].note == "no fixed point: the stream grows without bound"


def test_perceptron_plane_has_the_edge_of_erf_where_it_is_known(tmp_path: Path) -> None:
    """erf without biases turns chaotic at sigma_w^2 = pi/4; log chi_1 changes sign across the line."""
    sheet = edgewise.present.perceptron_plane("erf", (0.1, 3.0, 30), (0.0, 0.5, 11))
    (edge,) = sheet.panels[0].curves
    assert edge.x[0] == pytest.approx(np.pi / 4, rel=1e-6)
    assert edge.y[0] == 0.0
    background = sheet.panels[0].background
    assert background is not None
    for row, sb2 in enumerate(background.y):
        crossing = np.interp(sb2, edge.y, edge.x)
        away = np.abs(background.x - crossing) > 0.05
        assert ((background.values[row] > 0) == (background.x > crossing))[away].all()
    assert sheet.save(tmp_path / "plane.png").stat().st_size > 10_000


def test_perceptron_plane_marks_the_perceptron() -> None:
    perceptron = edgewise.Perceptron(activation="relu", weight_variance=2.0, name="He")
    sheet = edgewise.present.perceptron_plane(perceptron, (0.5, 4.0, 8), (0.0, 0.5, 3))
    (marker,) = sheet.panels[0].markers
    assert (marker.label, marker.x, marker.y) == ("He", 2.0, 0.0)
    assert sheet.panels[0].note == "He: χ₁ = 1.0000, critical, trainable at any depth"
    outside = edgewise.present.perceptron_plane(
        perceptron.replace(weight_variance=9.0), (0.5, 4.0, 8), (0.0, 0.5, 3)
    )
    assert outside.panels[0].markers == ()


@pytest.mark.parametrize("given", [(1.0, 0.5, 4), (-1.0, 1.0, 4), (0.0, 1.0, 1), (0.0, np.inf, 4)])
def test_impossible_ranges_are_refused(given: tuple[float, float, int]) -> None:
    with pytest.raises(BadInput, match="weight_variance must be"):
        edgewise.present.perceptron_plane("tanh", weight_variance=given)


def test_a_constant_factor_asks_for_a_logarithmic_axis() -> None:
    assert geometric(np.geomspace(0.1, 10, 7))
    assert not geometric(np.linspace(0.1, 10, 7))
    assert not geometric(np.linspace(0, 1, 5))


def test_the_edge_is_drawn_up_to_the_border_of_the_plane() -> None:
    """Three columns of weight variances; the edge of tanh begins at 1, in the last of the two cells."""
    (edge,) = edgewise.present.perceptron_plane("tanh", (0.05, 1.5, 3), (0.0, 0.5, 5)).panels[0].curves
    assert 0.999 < edge.x.min() < 1.1 and 1.3 < edge.x.max() <= 1.5


@pytest.mark.parametrize(("place", "above"), [("", True), ("lower right", False)])
def test_the_legend_of_a_flow_stands_above_it_unless_it_has_a_place(place: str, above: bool) -> None:
    grid = np.ones((2, 2))
    arrows = Arrows(np.arange(2.0), np.arange(2.0), grid, grid, grid)
    curves = (Curve("one", np.arange(2.0), np.arange(2.0)), Curve("two", np.arange(2.0), np.ones(2)))
    figure = Sheet("flow", (Panel("p", "x", "y", curves, arrows=arrows, legend_at=place),)).draw()
    axes, legend = figure.axes[0], figure.axes[0].get_legend()
    figure.canvas.draw()
    assert (legend.get_window_extent().y0 >= axes.get_window_extent().y1) == above
