"""The expected slowdown: its parts, its two sides, what it does not know, and that no screen contradicts it."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import product

import pytest

import edgewise
from edgewise.judgement.outcome import LONGEST, SLOW, StartParts, log_slowdown, outcome_of, slowdown_table
from edgewise.nouns.verdict import Kind, Outcome, Probability, Slowdown, Verdict


def judged(**knobs: object) -> Verdict:
    return edgewise.judge(edgewise.predict({"depth": 8, "tokens": 16, "width": 64} | knobs))


def test_no_part_makes_a_start_better() -> None:
    for stage, curve in product(("predict", "measure"), ("token", "pooled")):
        constants = slowdown_table()["stages"][stage][curve]
        best = log_slowdown(StartParts(), constants)
        for part in asdict(StartParts()):
            assert constants[part] >= 0
            assert best <= log_slowdown(StartParts(**{part: 9.0}), constants) <= math.log(LONGEST)


def test_starts_too_quiet_and_too_loud_are_both_slower() -> None:
    """Gains of a hundredth had the best probability of all; a block that adds nothing has nothing to learn with."""
    quiet, sound, loud = (
        judged(norm=norm, value_gain=gain, mlp_out_gain=gain)
        for norm, gain in (("pre", 0.01), ("pre", 0.5), ("post", 3.0))
    )
    assert quiet.probability and sound.probability and quiet.probability.value >= sound.probability.value
    assert quiet.slowdown and sound.slowdown and loud.slowdown
    assert sound.slowdown.value < quiet.slowdown.value and sound.slowdown.value < loud.slowdown.value
    assert quiet.slowdown.added < sound.slowdown.added < loud.slowdown.added
    assert "add little" in judged(value_gain=0.001, mlp_out_gain=0.001).slowdown.cause  # type: ignore[union-attr]


def test_a_quiet_start_is_named() -> None:
    verdict = judged(value_gain=0.01, mlp_out_gain=0.01)
    found = next(finding for finding in verdict.findings if finding.kind is Kind.QUIET_START)
    assert "comes from the blocks" in found.sentence
    assert Kind.QUIET_START not in {finding.kind for finding in judged().findings}


def test_what_trains_slowly_is_risky() -> None:
    likely = Probability(0.97, 0.95, 0.98)
    slow = Slowdown(SLOW, 1.5, 3.0, 0.5, "100 networks")
    assert outcome_of(likely, slow) is Outcome.RISKY
    assert outcome_of(likely, Slowdown(1.2, 1.0, 1.5, 0.5, "100 networks")) is Outcome.TRAINS
    assert outcome_of(Probability(0.1, 0.05, 0.2), slow) is Outcome.FAILS


@pytest.mark.parametrize("source", ["mlp:tanh", {"depth": 6, "attention_skip": 0.0, "mlp_skip": 0.0}])
def test_without_a_stream_that_is_added_to_nothing_is_said(source: object) -> None:
    verdict = edgewise.judge(edgewise.predict(source))
    assert verdict.slowdown is None and verdict.json()["slowdown"] is None
    assert "as many steps" not in str(verdict)


def test_the_screen_says_on_how_many_networks_it_rests_and_what_was_not_seen() -> None:
    said, table = " ".join(str(judged(depth=2)).split()), slowdown_table()
    assert "nothing seen prevents it" in said
    assert "as many steps as a well initialized network of its shape" in said
    assert f"tried on {table['networks']} networks of {table['range']['depth'][0]} to " in said
    assert "weights, last layer and data are not seen" in said
