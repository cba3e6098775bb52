"""Remedies on random descriptions: each is predicted again here, and must do what it says."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgewise
from edgewise.judgement import remedies
from edgewise.judgement.remedies import RANKS, WHOLE, _branches, _scores, _settings, contradict
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.verdict import Outcome, Remedy, Verdict
from edgewise.present.cards import verdict_card
from edgewise.present.text import SHOWN, lines
from edgewise.present.wording import explain

RANK = {Outcome.TRAINS: 0, Outcome.RISKY: 1, Outcome.UNDECIDED: 1, Outcome.FAILS: 2}


def gains(low: float, high: float) -> Any:
    return st.floats(math.log(low), math.log(high)).map(lambda x: round(math.exp(x), 3))


@st.composite
def descriptions(draw: Any, sharpest: float = 5.0, deepest: int = 24) -> tuple[Architecture, str, float]:
    """Sharp attention in a stream without norms is beyond the tables: seconds per network, so for the slow test."""
    unnormed = ["branch", "none"] if sharpest > 2 else []
    positions = draw(st.sampled_from([{}, {}, {}, {"causal": True}, {"causal": True, "rope": 1.0}]))
    knobs = {
        "depth": draw(st.integers(2, deepest)),
        "tokens": draw(st.sampled_from([4, 8, 16])),
        "width": 64,
        "heads": draw(st.sampled_from([0, 2, 4])),
        "head_width": 16,
        "mlp_width": draw(st.sampled_from([256, 256, 256, 0])),
        "norm": draw(st.sampled_from(["pre", "post", "post", "sandwich", *unnormed])),
        "activation": draw(st.sampled_from(["gelu", "relu", "tanh", "silu"])),
        "gated": draw(st.booleans()),
        "parallel": draw(st.booleans()),
        "score_gain": draw(gains(0.2, sharpest)),
        "value_gain": draw(gains(0.3, 3.0)),
        "mlp_in_gain": draw(gains(0.3, 4.0)),
        "mlp_out_gain": draw(gains(0.3, 3.0)),
        "attention_skip": draw(st.sampled_from([1.0, 1.0, 0.7, 0.0])),
        "attention_branch": draw(gains(0.1, 1.5)),
        "mlp_skip": draw(st.sampled_from([1.0, 1.0, 0.7])),
        "mlp_branch": draw(gains(0.1, 1.5)),
        **positions,
    }
    if knobs["parallel"]:
        knobs["mlp_skip"] = knobs["attention_skip"]
    if not knobs["heads"] and not knobs["mlp_width"]:
        knobs["heads"] = 2
    readout, overlap = draw(st.sampled_from(["token", "pooled"])), draw(st.sampled_from([0.0, 0.3]))
    return edgewise.transformer(**knobs), readout, overlap


def direction(network: Architecture, remedy: Remedy, name: str) -> float:
    return float(np.sign(np.mean(remedy.changes[name]) - np.mean(getattr(network, name))))


def judged(network: Architecture, readout: str, overlap: float) -> Verdict:
    return edgewise.judge(edgewise.predict(network, readout=readout, start_overlap=overlap))


@cache
def check(network: Architecture, readout: str, overlap: float) -> tuple[Outcome, tuple[Remedy, ...]]:
    """Everything that is asked of the remedies of one network; its outcome and them."""
    verdict = judged(network, readout, overlap)
    for remedy in verdict.remedies:
        changed = network.replace(**remedy.changes)
        assert changed != network, remedy
        after = judged(changed, readout, overlap)
        assert after.outcome is remedy.outcome, remedy
        assert RANK[after.outcome] < RANK[verdict.outcome], remedy
        assert (
            after.outcome is not Outcome.TRAINS or after.probability is None or after.probability.value >= 0.5
        )
        assert any(str(remedy) in line.text for line in explain(verdict)) or not verdict.findings
        before, _, there = remedy.sentence.partition(" instead of ")
        assert before.rpartition(" ")[2] != there
    if verdict.outcome in (Outcome.RISKY, Outcome.FAILS):
        shown = "\n".join(line.text for line in lines(verdict_card(verdict), width=1000))
        assert all(remedy.sentence in shown for remedy in verdict.remedies[:SHOWN])
    ranks = [RANK[remedy.outcome] for remedy in verdict.remedies]
    assert ranks == sorted(ranks)
    for one, other in combinations(verdict.remedies, 2):
        shared = [name for name in one.changes if name in other.changes and name != "norm"]
        assert all(direction(network, one, name) * direction(network, other, name) >= 0 for name in shared)
    return verdict.outcome, verdict.remedies


@settings(max_examples=15, deadline=None, derandomize=True)
@given(descriptions(sharpest=2.0, deepest=16))
def test_remedies_do_what_they_say(case: tuple[Architecture, str, float]) -> None:
    check(*case)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(descriptions())
def test_remedies_do_what_they_say_on_many_networks(case: tuple[Architecture, str, float]) -> None:
    check(*case)


def test_initialization_alone_is_a_remedy_where_it_cures() -> None:
    for norm in ("post", "branch"):
        network = edgewise.transformer(depth=48, width=256, tokens=16, heads=4, norm=norm, value_gain=1.5)
        outcome, remedies = check(network, "token", 0.0)
        if outcome is Outcome.FAILS:
            assert remedies[0].same_architecture, remedies
            assert remedies[0].sentence.startswith("edgewise.initialize_(model)")


def test_every_kind_of_remedy_occurs() -> None:
    """Else the random test would prove nothing about it."""
    networks = [
        edgewise.describe("torch-encoder", depth=48, tokens=16),
        edgewise.transformer(
            depth=64, tokens=16, activation="tanh", mlp_in_gain=4, mlp_skip=0, attention_branch=0.1
        ),
        edgewise.transformer(
            depth=32, tokens=16, width=64, heads=4, norm="post", score_gain=8.0, attention_branch=0.7
        ),
        edgewise.transformer(depth=48, width=256, tokens=16, heads=4, norm="branch", value_gain=1.5),
    ]
    first = Counter(
        remedy.sentence.split(" ")[0].rstrip(",")
        for network in networks
        for remedy in check(network, "token", 0.0)[1]
    )
    assert {"edgewise.initialize_(model)", "attention_branch", "norm", "mlp_skip", "score_gain"} <= set(
        first
    ), first


def test_judging_does_not_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search runs when remedies are read, and once."""
    tried, try_one = [], remedies.RemedySearch._first_that_helps
    monkeypatch.setattr(
        remedies.RemedySearch,
        "_first_that_helps",
        lambda search, way, budget: (tried.append(way), try_one(search, way, budget))[1],
    )
    verdict = edgewise.judge(edgewise.predict(edgewise.describe("torch-encoder", depth=48)))
    assert "remedies" not in vars(verdict) and not tried
    first = verdict.remedies
    count = len(tried)
    assert count > 0
    assert verdict.findings[0].remedy and verdict.remedies is first
    assert len(tried) == count


def test_a_network_that_trains_needs_none() -> None:
    assert edgewise.judge(edgewise.predict("bert-base")).remedies == ()


def test_a_weak_draw_of_a_network_that_trains_is_not_cured_by_changing_the_network() -> None:
    """What theory promises of a change must be more than what it promises of the network as it is."""
    theory = edgewise.predict(edgewise.transformer(depth=12, width=64, tokens=16, heads=4))
    assert edgewise.judge(theory).outcome is Outcome.TRAINS
    weaker = theory.separation * np.exp(-4 * np.linspace(0, 1, len(theory.sites)))
    verdict = edgewise.judge(replace(theory, separation=weaker).with_provenance(source="measured: a draw"))
    assert verdict.outcome is Outcome.FAILS and not verdict.remedies
    assert "By theory such networks train (about 93 %)" in " ".join(str(verdict).split())


def test_a_perceptron_on_the_edge_is_not_sent_there() -> None:
    """Too deep for its width or not, the edge of chaos is where it stands already."""
    verdict = edgewise.judge(edgewise.predict(edgewise.Perceptron("tanh", weight_variance=1.0, depth=100)))
    assert verdict.remedies == ()
    assert "instead of 1" not in str(verdict)


def test_remedies_contradict_where_they_pull_one_knob_both_ways() -> None:
    network = edgewise.transformer(depth=2, score_gain=2.0, mlp_in_gain=[1.0, 3.0])
    assert contradict(network, {"score_gain": 1.0}, {"score_gain": 4.0})
    assert contradict(network, {"mlp_in_gain": 2.5}, {"mlp_in_gain": (1.0, 1.0)})
    assert not contradict(network, {"score_gain": 1.0}, {"score_gain": 0.5})
    assert not contradict(network, {"score_gain": 2.0}, {"score_gain": 4.0})  # one leaves it alone
    assert not contradict(network, {"norm": "pre"}, {"norm": "post"})  # no direction


def test_knobs_of_one_value_are_set_in_one_breath() -> None:
    changes = {"attention_branch": 0.25, "mlp_branch": 0.25, "attention_skip": 1.0}
    assert _settings(changes) == "attention_branch = mlp_branch = 0.25 with attention_skip = 1"
    assert _settings({"norm": "pre"}) == "norm = pre"


def test_from_undecided_only_what_trains_is_better() -> None:
    assert RANKS[Outcome.TRAINS] < RANKS[Outcome.UNDECIDED] == RANKS[Outcome.RISKY] < RANKS[Outcome.FAILS]


def test_sharp_scores_are_divided_to_half_the_freezing_point_and_then_halved() -> None:
    """A condensation of 2 becomes 1/2 with half the gain, since logits of twice the gain vary four times as much."""
    network = edgewise.transformer(depth=2, score_gain=3.0)
    gains = [change["score_gain"] for change in _scores(network, condensation=2.0).values]
    assert gains == pytest.approx([1.5, 0.75, 0.36])


def test_the_three_nearest_gains_of_the_first_matrix_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest first, of a grid from a quarter to four times the present gain."""
    network = edgewise.transformer(depth=2, mlp_in_gain=2.0)
    monkeypatch.setattr(remedies, "_worst", lambda *_, mlp_in_gain: np.where(mlp_in_gain >= 3.0, 0.0, 9.0))
    candidate = remedies._input_gain(network, "token")
    gains = [change["mlp_in_gain"] for change in candidate.values]
    assert len(gains) == 3 and gains == sorted(gains) and 3.0 <= gains[0] < 3.0 * 16 ** (1 / 40)
    monkeypatch.setattr(remedies, "_worst", lambda *_, mlp_in_gain: np.full(mlp_in_gain.shape, 9.0))
    assert remedies._input_gain(network, "token") is None


def test_a_remedy_that_only_makes_skips_whole_says_that() -> None:
    """`attention_skip = 1` alone takes nothing from the branches."""
    network = edgewise.transformer(
        depth=24, width=64, tokens=8, heads=2, attention_branch=0.05, mlp_branch=0.05
    )
    candidate = _branches(network.replace(attention_skip=0.5), "token")
    assert candidate is not None and set(candidate.values[0]) == {"attention_skip"}
    assert candidate.note == WHOLE
