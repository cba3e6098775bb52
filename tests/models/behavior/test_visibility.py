"""Patterns from rows, against masks written down as matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgewise.models.behavior.visibility import PREFIX, Sight, disagreement, pokes, queries, sight

LENGTH = 30
I, J = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)


def rows(mask: Tensor) -> list[tuple[int, set[int]]]:
    return [(q, set(mask[q].nonzero().flatten().tolist())) for q in queries(LENGTH)]


def columns(mask: Tensor) -> list[tuple[int, set[int]]]:
    return [(p, set(mask[:, p].nonzero().flatten().tolist())) for p in pokes(LENGTH)]


@pytest.mark.parametrize(
    "mask, expected",
    [
        (I == J, Sight("token")),
        (I >= J, Sight("causal")),
        (I >= -J, Sight("all")),
        ((I >= J) & (I - J < 5), Sight("causal", 5)),
        ((I - J).abs() < 4, Sight("all", 4, True)),
        ((I >= J) & (I // 8 == J // 8), Sight("causal blocks")),
        (I // 8 == J // 8, Sight("blocks")),
        ((I >= J) & ((I - J) % 3 == 0), Sight("causal sparse")),
        ((J < 10) | (I >= J), Sight(PREFIX)),
        ((J < 20) | (I >= J), Sight(PREFIX)),
        ((I - J < 4) & (J - I < 12), Sight("sparse")),  # farther to one side than to the other
    ],
)
def test_patterns(mask: Tensor, expected: Sight) -> None:
    assert sight(rows(mask), LENGTH) == expected
    assert disagreement(rows(mask), columns(mask), {}) is None


def test_nothing_seen_is_no_pattern() -> None:
    assert sight([(3, set()), (7, set())], LENGTH) is None


def test_forgetting_is_not_a_mask() -> None:
    faded = (I >= J) & (I - J < 20) & ((I - J < 12) | (J % 2 == 0))
    assert sight(rows(faded), LENGTH, coarse=True) == Sight("causal")


def test_disagreement_names_the_pair() -> None:
    seen, moved = rows(I >= J), columns(I >= -J)
    text = disagreement(seen, moved, {})
    assert text is not None and "could not be decided" in text
    everywhere = {query: set(range(LENGTH)) for query, _ in seen}
    assert disagreement(seen, moved, everywhere) is None
