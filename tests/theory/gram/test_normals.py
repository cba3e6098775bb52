"""The stream of normal numbers: torch's own, and normal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgewise.theory.gram.normals import Normals


@pytest.mark.parametrize("shape", [(7, 11), (16,), (33,), (256, 200)])
@pytest.mark.parametrize(("dtype", "kind", "close"), [
    (np.float32, torch.float32, 1e-6), (np.float64, torch.float64, 1e-14),
])  # fmt: skip
def test_the_stream_is_that_of_torch(shape: tuple[int, ...], dtype: type, kind: torch.dtype, close: float) -> None:
    generator, normals = torch.Generator().manual_seed(2**61 + 5), Normals(2**61 + 5)
    for _ in range(2):
        drawn = torch.randn(*shape, generator=generator, dtype=kind).numpy()
        np.testing.assert_allclose(normals.normal(*shape, dtype=dtype), drawn, rtol=0, atol=close)
    assert normals.uniform(5).tolist() == torch.rand(5, generator=generator).tolist()


def test_moments_are_those_of_a_normal_distribution() -> None:
    x = Normals(3).normal(400_000, dtype=np.float64)
    moments = [x.mean(), x.var(), (x**3).mean(), (x**4).mean()]
    assert moments == pytest.approx([0.0, 1.0, 0.0, 3.0], abs=0.05)


def test_fewer_numbers_than_one_run() -> None:
    assert Normals(1).normal(3).shape == (3,)
    assert Normals(1).normal(3).tolist() == Normals(1).normal(3).tolist()
