"""The shipped averages against those computed anew, and the spline they are read by against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import make_interp_spline

from edgewise.theory.averages.functions import SMOOTH
from edgewise.theory.averages.quadrature import Quadrature, shipped_splines, shipped_table
from edgewise.theory.splines import Quintic


@pytest.mark.parametrize(
    "name",
    [
        "gelu",
        *(pytest.param(n, marks=pytest.mark.slow) for n in SMOOTH if n != "gelu"),
    ],
)
def test_shipped_averages_are_the_computed_ones(name: str) -> None:
    """1e-9 of the largest for the pair averages, wherever they are read; rounding for those of one variable."""
    computed, shipped = Quadrature(SMOOTH[name]), shipped_table(name)
    table, splines = computed.build_table(), shipped_splines(name)
    assert shipped is not None
    assert splines is not None
    q, e = np.meshgrid(
        np.geomspace(table.low, table.high, 150), [0.0, 1e-12, 1e-6, 0.01, 0.3, 1.0, 1.5, 1.9999, 2.0]
    )
    for which in ("slope_product", "chord"):
        new, old = getattr(shipped, which)(q, e), getattr(table, which)(q, e)
        assert np.abs(new - old).max() < 1e-9 * np.abs(old).max(), which
    for spline, own in zip(splines, computed.fit_splines(), strict=True):
        assert own is not None
        np.testing.assert_allclose(spline.coefficients, own.coefficients, rtol=0, atol=1e-11)


def test_every_named_smooth_activation_is_shipped() -> None:
    assert all(shipped_table(name) is not None for name in SMOOTH)
    assert shipped_table("none of these") is None


def test_the_quintic_is_that_of_scipy() -> None:
    nodes = np.linspace(-2.0, 3.0, 41)
    values, x = np.sin(3 * nodes), np.linspace(-2.0, 3.0, 1001)
    expected = make_interp_spline(nodes, values, k=5)(x)
    np.testing.assert_allclose(Quintic.through(-2.0, 3.0, values)(x), expected, rtol=0, atol=1e-12)
