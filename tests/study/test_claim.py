"""A claim says what was published, what was found, and one of three outcomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgewise.errors import BadInput
from edgewise.study import Claim


def one(held: bool | None, scale: str = "3 seeds") -> Claim:
    return Claim("Published.", "Ours.", scale, held, {"n": 3})


@pytest.mark.parametrize(
    ("parts", "together"),
    [
        ([True, True], True),
        ([True, None], None),
        ([None, False, True], False),
        ([True], True),
    ],
)
def test_several_statements_hold_if_all_hold(parts: list[bool | None], together: bool | None) -> None:
    claim = Claim.all([one(held) for held in parts])
    assert claim.held is together
    assert [part.held for part in claim.parts] == parts
    assert [part["held"] for part in claim.to_dict()["parts"]] == parts


def test_none_at_all_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one"):
        Claim.all([])


def test_it_reads_as_sentences() -> None:
    words = [
        "Claim undecided, at scale: 3 seeds",
        "  published: Published.",
        "  ours:      Ours. [undecided]",
    ]
    assert str(one(None)).splitlines() == words
    assert "held, at scale: 3 seeds / 4 seeds" in str(Claim.all([one(True), one(True, "4 seeds"), one(True)]))


def test_numpy_outcomes_are_taken_as_pythons() -> None:
    claim = Claim("a", "b", "c", np.float64(1) > 0, {"gap": np.float32(0.5)})
    assert claim.held is True
    assert type(claim.numbers["gap"]) is float


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"held": 1}, "held is 1"),
        ({"held": "yes"}, "held is 'yes'"),
        ({"ours": 3}, "ours is 3"),
        ({"numbers": {"gap": np.zeros(2)}}, r"Claim.numbers\['gap'\] is a numpy.ndarray"),
    ],
)
def test_other_things_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Claim(**{"published": "a", "ours": "b", "scale": "c", "held": True, **fields})
