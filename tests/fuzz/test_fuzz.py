"""A short run of every family by default; `make fuzz` tries thousands and keeps what it found."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.fuzz.attempts import try_one
from tests.fuzz.classes import ANSWERED
from tests.fuzz.inputs import FAMILIES, Input

EXAMPLES = {
    "knobs": 40,
    "perceptrons": 30,
    "configs": 50,
    "files": 50,
    "models": 14,
    "streams": 30,
    "runs": 40,
    "records": 15,
    "words": 30,
    "page": 12,
    "training": 10,
    "traces": 40,
    "tokenizers": 15,
}


# An input that is answered, for families whose drawn ones seldom are.
SOUND = {
    "tokenizers": {
        "family": "tokenizers",
        "class": "PreTrainedTokenizerFast",
        "key": "version",
        "value": "1.0",
        "cut": 1.0,
        "own": False,
    }
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_input_is_answered_or_refused_by_name(family: str) -> None:
    """Neither a wrong number, nor a traceback, nor exit 70, nor a hang; some of each family are answered."""
    endings = []

    @settings(max_examples=EXAMPLES[family], suppress_health_check=list(HealthCheck))
    @given(FAMILIES[family])
    def attempt(given_input: Input) -> None:
        ending = try_one(given_input)
        endings.append(ending.kind)
        assert ending.good, f"{ending.kind}: {ending.words}"

    (example(SOUND[family])(attempt) if family in SOUND else attempt)()
    assert ANSWERED in endings
