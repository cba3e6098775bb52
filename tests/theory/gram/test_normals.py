"""The stream of normal numbers: its seed decides it, and it is normal and independent."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.theory.gram.state import CHUNK, Normals


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3, 16, CHUNK + 5])
def test_the_seed_decides_the_numbers(size: int, dtype: type) -> None:
    one, same, other = (Normals(seed).normal(size, dtype=dtype) for seed in (2**61, 2**61, 2**61 + 1))
    assert one.shape == (size,) and one.dtype == dtype
    assert one.tolist() == same.tolist()
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.04 or size < CHUNK
    assert len(set(one.tolist()) & set(other.tolist())) <= size // 100


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_are_those_of_a_normal_distribution(dtype: type) -> None:
    x = Normals(3).normal(400_000, dtype=dtype).astype(np.float64)
    moments = [x.mean(), x.var(), (x**3).mean(), (x**4).mean()]
    assert moments == pytest.approx([0.0, 1.0, 0.0, 3.0], abs=0.05)
    for shift in (1, CHUNK // 2, CHUNK):  # what one pair of uniform numbers gives stands half a chunk apart
        assert (x[shift:] * x[:-shift]).mean() == pytest.approx(0.0, abs=0.01)
        assert (x[shift:] ** 2 * x[:-shift] ** 2).mean() == pytest.approx(1.0, abs=0.02)


def test_uniform_numbers_fill_the_unit_interval() -> None:
    for dtype in (np.float32, np.float64):
        u = Normals(5).uniform(100_001, dtype)
        assert len(u) == 100_001 and 0 <= u.min() < 1e-4 and 1 - 1e-4 < u.max() < 1
        assert np.histogram(u, 10, (0, 1))[0] == pytest.approx(10_000, rel=0.05)
