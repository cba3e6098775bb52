"""The screen of a rehearsal: every rate has its row, and forty columns are enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgewise.present.rate_card import rate_card
from edgewise.present.text import lines
from edgewise.rehearsal import Moment, Rate, Rehearsal, outlook


def run(rate: float, end: float, reason: str | None = None) -> Rehearsal:
    losses = tuple(3.9 + (end - 3.9) * k / 19 for k in range(20))
    return Rehearsal(
        rate, losses, (Moment(20, end, 1.0, 0.5, 1.0),), 0.1, reason, None if reason is None else 4
    )


RATE = Rate(
    4.2e-3,
    2.1e-3,
    8.4e-3,
    0.041,
    (run(2.1e-3, 2.95), run(5.3e-3, 2.7), run(0.066, 3.3, "the tokens became alike")),
    Moment(0, 3.9, 0.0, 0.5, 1.0),
    "AdamW (0.9, 0.95)",
    passes=60,
    notes=("the first of two notes",),
)


@pytest.mark.parametrize("width", [40, 88, 200])
def test_all_of_it_in_any_width(width: int) -> None:
    shown = [line.text for line in lines(rate_card(RATE, outlook(RATE)), width)]
    assert max(map(len, shown)) <= width
    assert shown[0].startswith("USE 4.2e-3  (2.1e-3 to 8.4e-3)")
    rows = [line.split()[:2] for line in shown]
    first = rows.index(["start", "3.90"])
    assert rows[first + 1 : first + 4] == [["2.1e-3", "2.95"], ["5.3e-3", "2.70"], ["0.066", "3.30"]]
    text = " ".join(" ".join(shown).split())
    for words in ("Trains at 4.2e-3", "The first of two notes.", "became alike, by step 4", "60 steps"):
        assert words in text


def test_where_no_rate_learns_none_is_named() -> None:
    none = replace(
        RATE, best=None, low=None, high=None, edge=None, rehearsals=(run(1e-3, 4.5), run(1e-2, 9.0))
    )
    shown = [line.text for line in lines(rate_card(none, outlook(none)), 60)]
    assert shown[0].startswith("NO RATE LEARNS") and "Dead at every rate tried" in " ".join(shown)
