"""Outcome, probability and findings are one answer: they cannot contradict each other, whatever the network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import edgewise
from edgewise.errors import BadInput
from edgewise.judgement.outcome import OUTCOME_BANDS, band, outcome_of, why_open
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Kind, Outcome, Probability, Verdict

ORDER = {"note": 0, "risky": 1, "fails": 2}
WORST = {Outcome.TRAINS: 0, Outcome.RISKY: 1, Outcome.UNDECIDED: 1, Outcome.FAILS: 2}
CAUSES = {
    "rank_collapse",
    "full_collapse",
    "tokens_separate",
    "vanishing_gradient",
    "exploding_gradient",
    "forgets_input",
    "stream_out_of_range",
    "quiet_start",
    "slow_start",
}


def contradictions(verdict: Verdict) -> list[str]:
    """What in a verdict contradicts something else in it."""
    outcome, forecast = verdict.outcome, verdict.probability
    assert forecast is not None
    levels = [ORDER[finding.severity] for finding in verdict.findings]
    checks = {
        "undecided without a reason": (outcome is Outcome.UNDECIDED) != bool(forecast.why_open),
        "a finding worse than the outcome": any(level > WORST[outcome] for level in levels),
        "no finding says why": outcome in (Outcome.RISKY, Outcome.FAILS)
        and not any(f.kind.value in CAUSES and ORDER[f.severity] == WORST[outcome] for f in verdict.findings),
        "another finding leads": levels != sorted(levels, reverse=True),
        "the interval does not hold the value": not forecast.low <= forecast.value <= forecast.high,
        "another band": outcome is not Outcome.UNDECIDED
        and outcome is not outcome_of(forecast, verdict.slowdown),
        "the steps do not lie in their range": verdict.slowdown is not None
        and not verdict.slowdown.low <= verdict.slowdown.value <= verdict.slowdown.high,
    }
    return [name for name, wrong in checks.items() if wrong]


def around(low: float, high: float) -> st.SearchStrategy[float]:
    """One often, anything in the range else: networks that train are rare where every gain is drawn freely."""
    return st.one_of(st.just(1.0), st.floats(low, high))


knobs = st.fixed_dictionaries(
    {
        "depth": st.integers(1, 32),
        "width": st.sampled_from([32, 256]),
        "tokens": st.sampled_from([2, 16, 64]),
        "heads": st.sampled_from([0, 1, 4]),
        "norm": st.sampled_from(["pre", "post", "sandwich"]),
        "norm_kind": st.sampled_from(["layer", "rms"]),
        "activation": st.sampled_from(["gelu", "tanh"]),
        "gated": st.booleans(),
        "parallel": st.booleans(),
        "score_gain": st.floats(0.0, 2.0),
        "value_gain": around(0.01, 4.0),
        "mlp_in_gain": around(0.01, 6.0),
        "mlp_out_gain": around(0.01, 4.0),
        "attention_branch": st.floats(0.0, 1.5),
        "mlp_branch": st.floats(0.0, 1.5),
        "attention_skip": around(0.0, 1.2),
        "mlp_skip": around(0.0, 1.2),
        "embedding_norm": around(1e-4, 10.0),
    }
)
# Very sharp attention, and attention without a norm, take seconds each.
wide = st.tuples(knobs, st.sampled_from(["pre", "post", "none"]), st.floats(0.0, 12.0)).map(
    lambda parts: parts[0] | {"norm": parts[1], "score_gain": parts[2]}
)


def described_as(drawn: dict[str, Any]) -> dict[str, Any]:
    """A parallel block has one skip."""
    return {name: value for name, value in drawn.items() if not (drawn["parallel"] and name == "mlp_skip")}


def _agrees(described: dict[str, Any], readout: str, overlap: float) -> None:
    try:
        trace = edgewise.predict(described_as(described), readout=readout, start_overlap=overlap)
    except BadInput:  # a description that no theory covers has no verdict
        return
    assert contradictions(edgewise.judge(trace)) == []


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(knobs, st.sampled_from(["token", "pooled", "class"]), st.floats(0.0, 0.99))
def test_no_contradiction_on_random_descriptions(
    described: dict[str, Any], readout: str, overlap: float
) -> None:
    _agrees(described, readout, overlap)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(wide, st.sampled_from(["token", "pooled", "class"]), st.floats(0.0, 0.99))
def test_no_contradiction_on_five_thousand(described: dict[str, Any], readout: str, overlap: float) -> None:
    _agrees(described, readout, overlap)


def test_the_recorded_counts_hold_no_contradiction() -> None:
    """`random_descriptions.json`: how many were tried, and that none of them is counted as wrong."""
    counts = json.loads(Path(__file__).with_name("random_descriptions.json").read_text())
    assert counts["recorded"]["descriptions"] == 312 + 162 and counts["contradictions"]["descriptions"] >= 200
    for kind in ("recorded", "contradictions"):
        assert not [name for name in counts[kind] if name.startswith(("CONTRADICTION", "WRONG"))]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["tanh", "relu", "erf"]), st.integers(2, 200), st.floats(0.2, 6.0), st.floats(0.0, 1.0)
)
def test_no_contradiction_on_random_perceptrons(name: str, depth: int, weights: float, bias: float) -> None:
    network = edgewise.Perceptron(
        depth=depth, width=64, activation=name, weight_variance=weights, bias_variance=bias
    )
    assert contradictions(edgewise.judge(edgewise.predict(network))) == []


def test_bands_meet_and_leave_nothing_out() -> None:
    values = [
        0.0,
        OUTCOME_BANDS.fails_up_to,
        OUTCOME_BANDS.fails_up_to + 1e-9,
        0.5,
        OUTCOME_BANDS.trains_from - 1e-9,
        OUTCOME_BANDS.trains_from,
        1.0,
    ]
    outcomes = [Outcome.FAILS] * 2 + [Outcome.RISKY] * 3 + [Outcome.TRAINS] * 2
    assert [band(value) for value in values] == outcomes


def test_a_wide_interval_and_a_depth_far_beyond_are_open() -> None:
    trace = edgewise.predict({"depth": 12, "tokens": 16})
    assert "anything from 20% to 95%" in why_open(Probability(0.9, 0.2, 0.95), trace)
    assert why_open(Probability(0.9, 0.3, 0.95), trace) == ""
    ones, sites = np.ones((1, 2001)), ("embed", *(f"block.{i}.mlp" for i in range(2000)))
    deep = Trace(
        sites=sites,
        norm=ones,
        separation=ones,
        readouts=("token",),
        log_gradient=0 * ones[None],
    )
    assert "far beyond" in why_open(Probability(0.9, 0.8, 0.95), deep)


class Classifier(nn.Module):
    """Three blocks and a readout of the mean, of one token, or of every token."""

    def __init__(self, readout: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.embedding, self.encoder = (
            nn.Linear(3, 16),
            nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
        )
        self.head, self.readout = nn.Linear(16, 5), readout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.embedding(x))
        return self.head({"pooled": x.mean(1), "class": x[:, 0], "token": x}[self.readout])  # type: ignore[no-any-return]


@pytest.mark.parametrize("readout", ["token", "pooled", "class"])
def test_the_readout_is_found_from_the_output(readout: str) -> None:
    torch.manual_seed(0)
    trace = edgewise.measure(Classifier(readout), torch.randn(4, 12, 3), attention=False, pair=False)
    assert trace.readout == readout
    verdict = edgewise.judge(trace)
    assert verdict.readout == readout and verdict.probability is not None and contradictions(verdict) == []
    assert not any(note.startswith("readout") for note in verdict.notes)


def test_a_readout_that_nobody_said_is_noted() -> None:
    silent, asked = (
        edgewise.judge(edgewise.predict({"depth": 6, "tokens": 16}, readout=r)) for r in (None, "pooled")
    )
    assert any("one label per token" in note for note in silent.notes)
    assert not any(note.startswith("readout") for note in asked.notes)
    assert asked.probability.value != silent.probability.value


def test_a_class_token_has_the_gradient_of_single_tokens_and_the_curve_of_one_label() -> None:
    network = edgewise.transformer(depth=8, tokens=16, norm="post")
    single, token = (edgewise.predict(network, readout=name) for name in ("class", "token"))
    assert (single.log_gradient == token.log_gradient).all()
    assert edgewise.judge(single).probability.value > edgewise.judge(token).probability.value


def test_a_measurement_without_description_has_a_probability_of_its_own() -> None:
    trace = edgewise.predict(edgewise.transformer(depth=8, tokens=16))
    verdict = edgewise.judge(replace(trace, architecture=None))
    assert verdict.probability is not None and verdict.probability.forgetting is None
    assert any("not recognized" in phrase for phrase in verdict.probability.outside)


def test_a_small_start_of_a_class_token_is_slow_and_others_are_not() -> None:
    """By hand: one block of attention whose values are uncorrelated writes (v g)^2 / n of a token of norm one."""
    small = edgewise.transformer(
        depth=1, tokens=16, heads=1, mlp_width=0, norm="post", score_gain=0.0, value_gain=0.1
    )
    verdict = edgewise.judge(edgewise.predict(small, readout="class"))
    slow = [finding for finding in verdict.findings if finding.kind is Kind.SLOW_START]
    assert len(slow) == 1 and slow[0].severity == "note" and "0.1%" in slow[0].sentence  # 0.01 / 16
    for readout in ("token", "pooled"):
        kinds = {
            finding.kind for finding in edgewise.judge(edgewise.predict(small, readout=readout)).findings
        }
        assert Kind.SLOW_START not in kinds
    usual = edgewise.judge(edgewise.predict(edgewise.transformer(depth=12, tokens=16), readout="class"))
    assert Kind.SLOW_START not in {finding.kind for finding in usual.findings}
