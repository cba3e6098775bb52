"""One limit, one meaning: the rule on a number, on an array, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.errors import BadInput
from edgewise.repair.plan import TotalChanges
from edgewise.stability.lyapunov import (
    SEVERITY_LIMITS,
    LateChange,
    Severity,
    growth,
    severities,
    severity,
    signs,
)


def test_the_rule_on_numbers() -> None:
    assert severity(LateChange(SEVERITY_LIMITS.risky), LateChange(-SEVERITY_LIMITS.risky)) is Severity.FINE
    assert severity(LateChange(-4.01)) is Severity.RISKY
    assert severity(LateChange(7.5, error=1.0)) is Severity.RISKY  # not beyond 7 by more than its error
    assert severity(LateChange(5.5, error=3.0)) is Severity.UNDECIDED
    assert severity(LateChange(-8.5, error=1.0), LateChange(5.5, error=3.0)) is Severity.FAILS
    assert (
        severity(LateChange(8.0, error=np.nan)) is Severity.FAILS
    )  # an unknown error leaves the number alone
    assert severity(LateChange(-np.inf)) is Severity.FAILS
    assert severity(LateChange(0.0), LateChange(5.5, error=3.0)).name == "UNDECIDED"  # worse than fine,
    assert severity(LateChange(5.5, error=3.0), LateChange(4.5)).name == "RISKY"  # better than risky


def test_the_rule_on_arrays_is_the_rule_on_numbers() -> None:
    values = np.array([0.0, -3.9, 4.1, -6.9, 7.1, np.inf, -np.inf, np.nan])
    each = [int(severity(LateChange(float(value)))) for value in values]
    np.testing.assert_array_equal(severities(LateChange(values)), each)


@pytest.mark.parametrize("total", [8.0, np.array([8.0]), TotalChanges(8.0, 0.0)])
def test_totals_of_another_kind_are_refused(total: object) -> None:
    with pytest.raises(BadInput, match="second half"):
        severities(total)  # type: ignore[arg-type]


def test_a_late_change_is_not_a_total() -> None:
    """A power law and a jump at the start have large totals and small late changes; a constant exponent has both."""
    layers = np.arange(81.0)
    power, jump, constant = -2 * np.log1p(layers), np.where(layers > 0, 9.0, 0.0), -0.1 * layers
    changes = [growth(logs[None], sampled=False).change for logs in (power, jump, constant)]
    assert [severity(change) for change in changes] == [Severity.FINE, Severity.FINE, Severity.FAILS]
    assert all(abs(logs[-1] - logs[0]) > SEVERITY_LIMITS.fails for logs in (power, jump, constant))
    assert changes[2].scalar == pytest.approx(-8.0)


def test_a_sign_needs_more_than_its_error() -> None:
    np.testing.assert_array_equal(signs([-0.2, -0.05, 0.0, 0.2, np.nan], 0.1), [-1, 0, 0, 1, 0])
