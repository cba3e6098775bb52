"""The shipped table of softmax moments is what its builder computes, in coordinates that invert each other."""

from __future__ import annotations

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from edgewise.theory.softmax import moments
from tools import build_tables


def test_shipped_coefficients_are_those_of_the_builder():
    row = 45  # v near 220, where every way to average is used
    nodes = build_tables.nodes(build_tables.VARIANCES)
    built = build_tables.logarithms_at(float(build_tables.variance_at(nodes)[row]))
    for name, stored in moments.stored_coefficients().items():
        here = np.tensordot(chebvander(2 * nodes[row] - 1, len(nodes) - 1)[0], stored, 1)
        for axis, count in enumerate(here.shape):
            basis = chebvander(2 * build_tables.nodes(count) - 1, count - 1)
            here = np.moveaxis(np.tensordot(basis, here, (1, axis)), 0, axis)
        np.testing.assert_allclose(here, built[name], atol=1e-8, err_msg=name)


def test_file_is_small():
    assert moments.TABLE_FILE.stat().st_size < 2_000_000


def test_coordinates_invert():
    z = y = np.linspace(0, 1, 11)
    np.testing.assert_allclose(moments.variance_coordinate(build_tables.variance_at(z)), z, atol=1e-14)
    for v in (1e-3, 4.0, 256.0):
        rho = build_tables.correlation_at(v, y)
        np.testing.assert_allclose(moments.correlation_coordinate(v, rho), y, atol=1e-9)
        np.testing.assert_allclose(rho[[0, -1]], [1, moments.LOWEST_CORRELATION], atol=1e-12)
