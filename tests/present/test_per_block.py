"""Numbers per block: what belongs to a block is found whichever of its sites knows it."""

from __future__ import annotations

import numpy as np

from edgewise.nouns.trace import Trace
from edgewise.present.json_documents import block_numbers, listed, prediction, within_blocks

SITES = ("embed", "block.0.attention", "block.0.mlp", "block.1.attention", "block.1.mlp")


def trace(**more: np.ndarray) -> Trace:
    norm = np.array([[1.0, 1.5, 2.0, 3.0, 4.0]])
    return Trace(SITES, norm, np.full((1, 5), 0.5), **more)  # type: ignore[arg-type]


def test_blocks_end_after_their_last_site() -> None:
    numbers = block_numbers(trace())
    assert list(numbers["norm"]) == [1.0, 2.0, 4.0]
    assert set(numbers) == {"norm", "overlap", "separation"}


def test_relative_gradient_is_the_gradient_times_the_norm() -> None:
    logs = np.log([[[8.0, 4.0, 4.0, 2.0, 1.0]]])
    numbers = block_numbers(trace(log_gradient=logs, readouts=("token",)))
    np.testing.assert_allclose(numbers["gradient_norm"], [8, 4, 1])
    np.testing.assert_allclose(numbers["relative_gradient_norm"], [8 * 1 / 4, 4 * 2 / 4, 1])


def test_attention_is_found_inside_the_block_and_averaged_over_heads() -> None:
    nan = np.nan
    entropy = np.array([[[nan, nan], [1.0, 3.0], [nan, nan], [5.0, 7.0], [nan, nan]]])
    rows = within_blocks(trace(), entropy)
    assert np.isnan(rows[0])
    assert list(rows[1:]) == [2.0, 6.0]


def test_numbers_that_are_not_finite_are_null() -> None:
    assert listed(np.array([1.0, np.inf, -np.inf, np.nan])) == [1.0, None, None, None]


def test_a_trace_without_description_still_has_a_document() -> None:
    from edgewise.judgement.judge import judge

    seen = trace()
    document = prediction(seen, judge(seen))
    assert document["architecture"] is None
    assert document["trace"]["blocks"]["overlap"] == [0.5, 0.5, 0.5]
