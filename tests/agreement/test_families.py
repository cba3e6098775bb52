"""Theory and probe meet on the families as they come: overlap within 0.03, exponents within two errors or 0.015.

The recorded table (families.json, by `python -m tests.agreement.families`) covers all 24; two families are measured
again in every run, the rest with `-m slow`. Where the bounds are missed, the reason is written here.
"""

from __future__ import annotations

import json

import pytest

from tests.agreement.families import RECORD, compare, misses
from tests.models import CONFIGS

# What the theory leaves out. The first two were checked by taking the cause away (6 seeds, same sizes); the last two
# are known omissions of the description that were not isolated one by one.
REASONS = {
    "olmo2": "no norm before the branches: the first are so small that the epsilon of the norm behind them counts; "
    "with rms_norm_eps = 1e-14 the overlap gap falls from 0.044 to 0.009 and all is within bounds",
    "mixtral": "routing: 2 of 4 experts stand as one; with all 4 experts in use the overlap gap falls from 0.050 to "
    "0.021 and all is within bounds",
    "gptoss": "sinks, clamps and the shifted linear half of the experts are not modelled",
    "deit": "its class tokens start at exactly zero, which theory refuses as a start; the raw gradient there is huge",
}
ROWS = json.loads(RECORD.read_text())


def test_all_families_are_recorded() -> None:
    assert set(ROWS) == set(CONFIGS)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in REASONS])
def test_recorded_family_agrees(name: str) -> None:
    assert not misses(ROWS[name]), ROWS[name]


def test_enough_families_agree() -> None:
    """The project asks for twelve; a reason that is no longer needed is to be taken out."""
    assert sum(not misses(row) for row in ROWS.values()) >= 20
    assert all(misses(ROWS[name]) for name in REASONS)


def test_entropies_agree_wherever_attention_is_softmax_alone() -> None:
    for name, row in ROWS.items():
        if name not in REASONS:
            measured, theory = row["entropy"]
            assert measured == pytest.approx(theory, abs=0.02), name


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_fresh_measurement_agrees(name: str) -> None:
    assert not misses(compare(name, seeds=3))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in REASONS])
def test_every_family_measured_again(name: str) -> None:
    assert not misses(compare(name, seeds=8))
