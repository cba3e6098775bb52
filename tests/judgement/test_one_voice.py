"""No two screens contradict each other: a few networks of the atlas asked by all of them."""

from __future__ import annotations

from itertools import islice

import pytest

from .one_voice import asked, contradictions, networks


@pytest.mark.slow
def test_a_few_networks_asked_again() -> None:
    for name, model, batch in islice(networks(), 0, 180, 9):
        assert contradictions(asked(model, batch)) == [], name
