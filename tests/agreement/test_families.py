"""Theory and probe meet on the families as they come: overlap within 0.03, exponents within two errors or 0.015.

The recorded table (families.json, by `python -m tests.agreement.families`) covers all 24; two families are measured
again in every run, the rest with `-m slow`. Where the bounds are missed, the reason is written here.
"""

from __future__ import annotations

import json

import pytest

from tests.agreement import without_the_cause
from tests.agreement.families import NARROW_RECORD, RECORD, compare, misses
from tests.support.models import CONFIGS

# What the theory leaves out, each checked by taking the cause away at the same sizes (4 seeds, without_the_cause.json):
# all four are within bounds then.
REASONS = {
    "olmo2": "no norm before the branches: the first are so small that the epsilon of the norm behind them counts; "
    "with rms_norm_eps = 1e-14 the overlap gap falls from 0.044 to 0.007",
    "mixtral": "routing: 2 of 4 experts stand as one; with all 4 experts in use the overlap gap falls from 0.050 to "
    "0.012",
    "gptoss": "three causes: overlap gap 0.314; 0.079 without the shift of the experts' linear half by one; 0.045 "
    "without the attention sinks too; 0.014 with all experts in use as well",
    "deit": "its class tokens start at exactly zero, where a norm has no bounded derivative: gradient exponent 3.55 "
    "against 0.45; with random class tokens of a patch's length 0.454 against 0.445",
}
# At width 256, 8 seeds for every family, fixed before the run. There OLMo 2 and Mixtral stay outside without the cause
# (overlap 0.047 and 0.037, against 0.007 and 0.012 at width 512): what is left there falls with the width.
NARROW_REASONS = REASONS | {
    "llama": "chance or width: angle off by 2.1 standard errors, every other number within"
}
RECORDS = (RECORD, NARROW_RECORD, without_the_cause.RECORD)
ROWS, NARROW_ROWS, WITHOUT = (json.loads(path.read_text()) for path in RECORDS)


def test_all_families_are_recorded() -> None:
    assert set(ROWS) == set(CONFIGS)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in REASONS])
def test_recorded_family_agrees(name: str) -> None:
    assert not misses(ROWS[name]), ROWS[name]


def test_enough_families_agree() -> None:
    """The project asks for twelve; a reason that is no longer needed is to be taken out."""
    assert sum(not misses(row) for row in ROWS.values()) >= 20
    assert all(misses(ROWS[name]) for name in REASONS)


def test_enough_families_agree_at_width_256() -> None:
    assert set(NARROW_ROWS) == set(CONFIGS)
    assert sum(not misses(row) for row in NARROW_ROWS.values()) >= 19
    assert {name for name, row in NARROW_ROWS.items() if misses(row)} == set(NARROW_REASONS)


@pytest.mark.parametrize(
    "case",
    [
        "olmo2, epsilon 1e-14",
        "mixtral, all experts",
        "gptoss, none of the three",
        "deit, class tokens like patches",
    ],
)
def test_without_its_cause_a_miss_is_none(case: str) -> None:
    assert misses(ROWS[case.partition(",")[0]]) and not misses(WITHOUT[case])


def test_each_cause_of_gptoss_counts() -> None:
    names = ["as it comes", "no shift", "no sinks, no shift", "none of the three"]
    gaps = [WITHOUT[f"gptoss, {name}"]["overlap_gap"] for name in names]
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < 0.03 < gaps[-2]


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
