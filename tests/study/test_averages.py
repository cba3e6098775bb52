"""Means over seeds: closed forms of three numbers, refusals of what no case covers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgewise.errors import BadInput
from edgewise.study import Result, over_seeds, rounded

RESULTS = [Result({"gain": 1, "seed": s}, {"norm": [s, 2 * s]}) for s in (1, 2, 3)]
OTHER = Result({"gain": 2, "seed": 1}, {"norm": [7.0, 8.0]})


def test_mean_and_standard_error_over_the_chosen_cases() -> None:
    mean, error = over_seeds([*RESULTS, OTHER], "norm", gain=1)
    assert mean.tolist() == [2, 4]
    assert error == pytest.approx([1 / math.sqrt(3), 2 / math.sqrt(3)])
    assert [part.tolist() for part in over_seeds([*RESULTS, OTHER], "norm", gain=2)] == [[7, 8], [0, 0]]


def test_what_no_case_covers_is_refused() -> None:
    with pytest.raises(BadInput, match="'gain': 3"):
        over_seeds(RESULTS, "norm", gain=3)


def test_rounded_keeps_the_shape() -> None:
    assert rounded(np.array([[1 / 3, 2.0], [1e-9 / 3, 0.0]]), 3) == [[0.333, 2.0], [3.33e-10, 0.0]]
