"""The gap to theory shrinks with width at the expected rate: squared, as one over the width."""

from __future__ import annotations

import json

import pytest

from tests.agreement.width_rate import FAMILIES, RECORD, WIDTHS, rates, squared_gaps, summary

RECORDED = json.loads(RECORD.read_text())


@pytest.mark.parametrize("name", FAMILIES)
def test_recorded_rates(name: str) -> None:
    """Slope -1 within 0.35, where -1/2 and -2 are excluded by three standard errors.

    Not -1 within its error: at width 64 the next order counts, and the norm's slope is -1.29 (0.09).
    """
    table = {int(width): row for width, row in RECORDED["gaps"][name].items()}
    assert sorted(table) == list(WIDTHS)
    for quantity, (slope, error) in rates(table).items():
        if "scatter" in quantity:
            continue
        assert slope == pytest.approx(-1, abs=0.35), quantity
        assert slope - 3 * error > -2 and slope + 3 * error < -0.5, quantity


@pytest.mark.parametrize("name", FAMILIES)
def test_scatter_is_all_there_is(name: str) -> None:
    """At every width the squared gap to theory is the scatter between seeds: no bias that width would not remove."""
    for width, row in RECORDED["gaps"][name].items():
        for quantity in ("overlap", "gradient"):
            mean, error = row[quantity]
            assert abs(mean - row[f"{quantity} scatter"][0]) < 2 * error, (width, quantity)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES])
def test_gap_halves_when_width_doubles(name: str) -> None:
    """Freshly measured, 16 networks at each of three widths: slope -1 within three standard errors, 0 excluded."""
    table = {
        width: {key: summary(gaps) for key, gaps in squared_gaps(name, width, 16).items()}
        for width in (64, 128, 256)
    }
    slope, error = rates(table)["gradient"]
    assert slope == pytest.approx(-1, abs=3 * error)
    assert slope + 3 * error < 0
