"""What would be terrible if it were wrong in a verdict, each number by a closed form on a trace made by hand.

The limits of the words; the exponents and the second half of depth; what is relative to the stream; the jump across the
first block; the block from which tokens are one; keys and their units; the share of a cause; what caps an outcome.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from edgewise.judgement.findings import FindingEvidence, beside_the_score
from edgewise.judgement.grid import late_forgetting
from edgewise.judgement.judge import judge
from edgewise.judgement.outcome import (
    BEYOND,
    CERTAIN,
    RiskScore,
    band,
    chance,
    score_of,
    tried,
    why_open,
    written_by_attention,
)
from edgewise.judgement.profile import profile, read
from edgewise.nouns.architecture import Perceptron, transformer
from edgewise.nouns.trace import FirstLoss, Provenance, Trace
from edgewise.nouns.verdict import FindingSeverity, Kind, Outcome, Probability
from edgewise.theory.predict import predict

DEPTH, TOKENS = 8, 16
LAYERS = np.arange(DEPTH + 1)
NETWORK = transformer(depth=DEPTH, tokens=TOKENS, width=64, causal=True)


def trace(angle: float = -0.1, gradient: float = 0.2, norm: float = 0.05, **changes: object) -> Trace:
    """Two seeds, one of them twice the other where that changes no exponent; two heads; all rates constant."""
    seeds = np.array([[1.0], [2.0]])
    entropy = np.broadcast_to(np.log(TOKENS / (1.0 + LAYERS))[None, :, None], (2, DEPTH + 1, 2)).copy()
    entropy[..., 1] += 0.5  # the other head
    return replace(
        Trace(
            sites=("embed", *(f"block.{i}" for i in range(DEPTH))),
            norm=seeds * np.exp(norm * LAYERS),
            separation=seeds * 0.3 * np.exp(angle * LAYERS),
            readouts=("pooled", "token"),
            log_gradient=np.stack([np.zeros((2, DEPTH + 1)), np.ones((2, 1)) * gradient * (DEPTH - LAYERS)]),
            attention_entropy=entropy,
            statistics={"condensation": np.array([[0.1] * DEPTH + [0.6], [0.2] * DEPTH + [0.8]])},
            architecture=NETWORK,
            provenance=Provenance(source="theory: by hand", readout="token"),
        ),
        **changes,
    )


def test_exponents_are_the_rates_of_the_second_half_over_the_whole_depth() -> None:
    reading = read(trace())
    assert reading.angle.rate == pytest.approx(-0.1) and reading.angle.change.scalar == pytest.approx(-0.8)
    assert reading.gradient is not None and reading.gradient.change.scalar == pytest.approx(0.2 * DEPTH)
    assert reading.relative is not None and reading.relative.change.scalar == pytest.approx(0.15 * DEPTH)
    late = np.where(LAYERS > 4, -0.3 * (LAYERS - 4), 0.0)  # nothing moves in the first half
    bent = read(trace(separation=0.3 * np.exp(np.stack([late, late]))))
    assert bent.angle.rate == pytest.approx(-0.15) and bent.angle.change.scalar == pytest.approx(-2.4)


def test_a_perceptron_is_judged_by_its_raw_gradient() -> None:
    reading = read(trace(architecture=Perceptron(depth=DEPTH)))
    assert reading.decisive_gradient is reading.gradient
    assert read(trace()).decisive_gradient == read(trace()).relative


def test_the_profile_is_in_the_units_it_says() -> None:
    seen = profile(read(trace()))
    apart = 0.45 * np.exp(-0.1 * LAYERS)
    assert seen.separation == pytest.approx(apart) and seen.overlap == pytest.approx(1 - apart)
    # sqrt of |g|^2 q, 1 at the output; q is the mean over seeds
    assert seen.gradient == pytest.approx(np.exp(0.15 * (DEPTH - LAYERS) / 2))
    assert seen.halving == pytest.approx(math.log(2) / 0.1)  # blocks in which 1 - overlap halves
    assert seen.keys == pytest.approx(
        TOKENS / (DEPTH + 1) * math.exp(0.25)
    )  # mean over heads, least over depth
    assert seen.visible == pytest.approx(math.factorial(TOKENS) ** (1 / TOKENS))
    assert (seen.tokens, seen.norm, seen.measured) == (TOKENS, NETWORK.norm, False)
    assert profile(read(trace(angle=0.1))).halving == pytest.approx(-math.log(2) / 0.1)
    assert profile(read(trace(angle=math.log(2) / 81))).halving is None  # slower than ten times the depth
    for changes, visible in (
        ({"causal": False}, TOKENS),
        ({"window": 1}, 1.0),
        ({"window": 4}, (24 * 4.0**12) ** (1 / TOKENS)),
        ({"causal": False, "window": 3}, 5.0),
    ):
        network = NETWORK.replace(**changes)  # type: ignore[arg-type]
        assert profile(read(trace(architecture=network))).visible == pytest.approx(visible)


def test_spread_of_attention_and_the_jump() -> None:
    reading = read(trace())
    assert reading.attention is not None
    assert reading.attention.condensation == pytest.approx(0.7)  # mean over seeds, largest over depth
    assert reading.attention.uniform_entropy == pytest.approx(math.log(TOKENS))
    assert reading.embedding_jump == pytest.approx(0.15)
    assert read(trace(gradient=-0.2)).embedding_jump == pytest.approx(-0.25)


@pytest.mark.parametrize(
    "first, last, block", [(0.02, 3, 4), (0.009, 3, None), (0.01, 7, 8), (0.02, 8, None)]
)
def test_tokens_are_one_from_the_block_after_the_last_that_tells_them_apart(
    first: float, last: int, block: int | None
) -> None:
    apart = np.where(last < LAYERS, 9e-4, 1e-3)
    apart[0] = first
    reading = read(trace(separation=np.stack([apart, apart])))
    assert reading.collapsed == block
    score = score_of(reading)
    assert score is not None and (score.angle == BEYOND) == (block is not None)


def test_words_begin_at_three_to_one() -> None:
    words = [band(value) for value in (0.25, 0.2501, 0.7499, 0.75)]
    assert words == [Outcome.FAILS, Outcome.RISKY, Outcome.RISKY, Outcome.TRAINS]


def test_a_probability_is_open_where_nothing_follows_from_it() -> None:
    deepest = tried()["depth"][1]

    def open_at(low: float, high: float, depth: int = DEPTH, followed: bool = True) -> str:
        made = trace()
        sites = ("embed", *(f"block.{i}" for i in range(depth)))
        ones = np.ones((1, depth + 1))
        made = Trace(sites, ones, ones, ("token",), ones[None] if followed else None)
        return why_open(Probability(0.5, low, high), made)

    assert "anything from 25% to 75%" in open_at(0.25, 0.75)
    assert open_at(0.26, 0.75) == open_at(0.25, 0.74) == ""
    assert "no gradient was followed" in open_at(0.4, 0.6, followed=False)
    assert open_at(0.1, 0.25, followed=False) == ""
    assert open_at(0.8, 0.9, 8 * deepest) == "" and "far beyond" in open_at(0.8, 0.9, 8 * deepest + 1)


def test_the_curve_falls_with_every_part_and_is_never_certain() -> None:
    constants = {"exponents": 0.5, "forgetting": 0.25, "offset": 2.0}
    assert chance(RiskScore(1.0, 1.0, 4.0), constants) == pytest.approx(0.5)
    assert chance(RiskScore(2.0, 1.0, 4.0), constants) == pytest.approx(1 / (1 + math.exp(0.5)))
    assert chance(RiskScore(1.0, 1.0, 8.0), constants) == pytest.approx(1 / (1 + math.e))
    assert chance(RiskScore(1.0, 1.0, None), constants) == pytest.approx(1 / (1 + math.exp(-1.0)))
    assert chance(RiskScore(0.1, 0.1, None), constants, -1.0) == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert chance(RiskScore(BEYOND, BEYOND, None), constants) == CERTAIN == 1e-3
    assert chance(RiskScore(0.0, 0.0, None), constants | {"offset": 50.0}) == 1 - CERTAIN


def test_the_score_has_the_size_of_both_changes_and_their_errors_added_in_squares() -> None:
    apart = 0.3 * np.exp(np.array([[-0.1], [-0.3]]) * LAYERS)
    fading = np.array([[0.2], [0.5]]) * (DEPTH - LAYERS)
    scattered = trace(separation=apart, log_gradient=np.stack([fading, fading]))
    score = score_of(read(scattered))
    assert score is not None and (score.angle, score.gradient) == pytest.approx((1.6, 0.3 * DEPTH))
    assert score.error == pytest.approx(math.hypot(0.8, 0.15 * DEPTH))  # half the distance of two seeds
    exact = score_of(read(scattered.with_provenance(sampled=False)))
    assert exact is not None and exact.error == 0.0
    assert score_of(read(trace(norm=0.0, gradient=0.0, angle=0.0))).exponents == pytest.approx(0.0)  # type: ignore[union-attr]
    gone = trace()
    gone.norm[0, 3] = np.inf
    assert score_of(read(gone)) is None and judge(gone).outcome is Outcome.FAILS


def test_what_attention_writes_into_tokens_that_are_alike() -> None:
    """All tokens equal: attention gives v^2 q whatever its weights, so a block loses log(1 + (b v)^2)."""
    knobs = {
        "depth": 3,
        "width": 64,
        "tokens": 4,
        "heads": 1,
        "norm": "none",
        "value_gain": 0.5,
        "output_gain": 1.0,
    }
    network = transformer(**knobs, attention_branch=0.6, mlp_branch=0.0)
    norms = [(1 + 0.09) ** k for k in range(4)]
    assert written_by_attention(network, norms, [0.0] * 4) == pytest.approx(3 * math.log(1.09), rel=1e-6)


@pytest.mark.parametrize("share, expected", [(1.0, True), (0.34, True), (0.32, False)])
def test_a_cause_carries_a_third_of_the_risk(share: float, expected: bool) -> None:
    evidence = FindingEvidence(read(trace()), None, {"angle": share, "gradient": 1 - share}, Outcome.FAILS)
    severity = evidence.level("angle", 1.0)
    assert (severity is next(iter(FindingSeverity))) == expected and (severity is None) == (not expected)
    assert evidence.level("angle", 4.01) is not None  # large in itself: a note at least
    assert FindingEvidence(read(trace()), None, {}, Outcome.RISKY).level("angle", 4.0) is None


def test_a_first_loss_is_told_from_twice_chance_with_the_factor_that_helps() -> None:
    def told(value: float, **provenance: object) -> tuple[str, ...]:
        made = trace(first_loss=FirstLoss(value, 4.0)).with_provenance(**provenance)
        return tuple(f"{finding.sentence} {finding.remedy}" for finding in beside_the_score(made, ()))

    assert told(8.0) == () and told(20.0, step=5) == () and told(20.0, departure="it was trained") == ()
    (sentence,) = told(17.0)
    assert "17, 4.2 times chance (4)" in sentence and "about 6 times smaller" in sentence  # 17 / sqrt(2 x 4)
    assert "about 3 times smaller" in told(8.1)[0]
    capped = judge(trace(angle=0.0, gradient=-0.05, first_loss=FirstLoss(17.0, 4.0)))
    assert capped.outcome is Outcome.RISKY and capped.probability is None
    assert capped.findings[0].kind is Kind.LARGE_FIRST_LOSS


def test_gradients_of_queries_starve_by_the_mean_over_seeds_of_each_block() -> None:
    """Means 0, -9, -18 over two seeds: 10^-7.8 between the first block and the worst; a mean over blocks is -2."""
    logs = np.array([[0.0, -8.0, -16.0], [0.0, -10.0, -20.0]])
    changes = {"weight_gradient.query": logs, "weight_gradient.value": np.zeros((2, 3))}
    made = trace()
    verdict = judge(replace(made, statistics=made.statistics | changes))
    (starved,) = [each for each in verdict.findings if each.kind is Kind.STARVED_QUERY_KEY]
    assert "fall by 10^-7.8 " in starved.sentence
    half = replace(made, statistics=made.statistics | {**changes, "weight_gradient.query": logs / 2})
    assert Kind.STARVED_QUERY_KEY not in {each.kind for each in judge(half).findings}  # e^-9 > 1e-4


def test_late_forgetting_is_the_second_half_over_the_whole_depth() -> None:
    """Of five blocks the last three, times 5/3; pre-norm forgets by the growth of its stream."""
    network = transformer(depth=5, tokens=8, norm="pre")
    norm = predict(network).norm[0]  # two branches a block
    (late,), _, _ = late_forgetting(network, {"mlp_in_gain": np.array([1.0])})
    assert late == pytest.approx(abs(np.log(norm[10] / norm[4])) * 5 / 3)
