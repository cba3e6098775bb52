"""The expected slowdown: its parts, its two sides, what it does not know, and that no screen contradicts it."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import product

import edgewise
from edgewise.judgement.outcome import (
    CAUSES,
    LONGEST,
    SLOW,
    StartParts,
    log_slowdown,
    outcome_of,
    slowdown_table,
)
from edgewise.nouns.verdict import FindingSeverity, Kind, Outcome, Probability, Slowdown, Verdict

GAINS = ("score_gain", "value_gain", "mlp_in_gain", "mlp_out_gain")


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
    faint = edgewise.predict(
        {"depth": 8, "tokens": 16, "width": 64, "norm": "pre", "embedding_norm": 1e-3}
        | dict.fromkeys(GAINS, 1e-4),
        readout="pooled",
    )
    slow = edgewise.judge(faint).slowdown
    assert slow and slow.value > SLOW and slow.cause == CAUSES["small"]


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


def test_without_a_stream_that_is_added_to_nothing_is_said() -> None:
    verdict = edgewise.judge(edgewise.predict("mlp:tanh"))
    assert verdict.slowdown is None and verdict.json()["slowdown"] is None
    assert "as many steps" not in str(verdict)


def test_many_blocks_without_skips_are_slow() -> None:
    """Nothing at all was said of them: what blocks add to the stream has no finite logarithm there."""
    bare, sound = (judged(norm="pre", attention_skip=skip, mlp_skip=skip) for skip in (0.0, 1.0))
    assert bare.slowdown and sound.slowdown and bare.slowdown.value > SLOW > sound.slowdown.value
    assert bare.slowdown.cause == CAUSES["cut"] and bare.outcome is not Outcome.TRAINS
    without_mlp = judged(norm="pre", attention_skip=0.0, mlp_width=0)
    assert without_mlp.slowdown and without_mlp.slowdown.cause == CAUSES["cut"]


def test_matrices_and_embeddings_have_a_size_that_is_best() -> None:
    """Under a norm, neither the exponents nor the share of the blocks see how large all of it is."""

    def steps(gain: float, entering: float = 1.6e-3) -> float:
        slowdown = judged(norm="pre", embedding_norm=entering, **dict.fromkeys(GAINS, gain)).slowdown
        assert slowdown is not None
        return slowdown.value

    assert steps(1e-3) > steps(1.0) < steps(30.0)
    assert steps(1.0) < steps(1.0, entering=1.0)


def test_what_is_slow_is_not_laid_to_exponents() -> None:
    """Tokens that merge were named as the reason, although the probability alone says that the network trains."""
    gains = {"value_gain": 10.0, "mlp_in_gain": 10.0, "mlp_out_gain": 10.0}
    verdict = judged(depth=12, tokens=32, width=256, norm="pre", **gains)
    assert verdict.outcome is Outcome.RISKY and verdict.probability and verdict.probability.value > 0.75
    first, *others = verdict.findings
    assert first.kind is Kind.SLOW_START and CAUSES["large"] in first.sentence
    assert all(finding.severity is FindingSeverity.NOTE for finding in others)


def test_the_screen_says_on_how_many_networks_it_rests_and_what_was_not_seen() -> None:
    said, table = " ".join(str(judged(depth=2)).split()), slowdown_table()
    assert "nothing seen prevents it" in said
    assert "as many steps as a well initialized network of its shape" in said
    assert f"tried on {table['networks']} networks of {table['range']['depth'][0]} to " in said
    assert "weights, last layer and data are not seen" in said
