"""The blocked Cholesky factor against numpy's, and the products that leave out zeros."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.theory.gram.state import cholesky, lower_product, square_root

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def positive(n: int) -> np.ndarray:
    x = np.random.default_rng(n).standard_normal((n, n + 5))
    return x @ x.T / n


@pytest.mark.parametrize("n", [1, 5, 32, 33, 130])
def test_blocks_give_the_factor_and_solve_for_rows_below(n: int) -> None:
    matrix, below = positive(n), np.random.default_rng(1).standard_normal((2, n))
    lower = cholesky(np.concatenate([matrix, below]))
    expected = np.linalg.cholesky(matrix)
    np.testing.assert_allclose(lower[:n], expected, **CLOSE)
    np.testing.assert_allclose(lower[n:], np.linalg.solve(expected, below.T).T, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(lower_product(expected, below.T), expected @ below.T, **CLOSE)


def test_single_precision_stays_single() -> None:
    lower = cholesky(positive(70).astype(np.float32))
    assert lower.dtype == np.float32
    np.testing.assert_allclose(lower @ lower.T, positive(70), rtol=0, atol=1e-5)


def test_a_matrix_that_is_not_positive_is_refused_or_mended() -> None:
    """Rank one and a bit below: the factor fails, the root takes more digits, then jitter."""
    matrix = np.ones((40, 40)) - 1e-4 * np.diag(np.arange(40) % 2)
    with pytest.raises(np.linalg.LinAlgError):
        cholesky(matrix)
    for dtype in (np.float32, np.float64):
        scales, lower = square_root(matrix.astype(dtype), dtype)
        root = scales[:, None] * lower
        np.testing.assert_allclose(root @ root.T, matrix, rtol=0, atol=1e-3)
