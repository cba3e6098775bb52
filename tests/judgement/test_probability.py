"""The calibrated forecast: its curve, its range, its place in the verdict, and what it says of published recipes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import edgewise
from edgewise.judgement.outcome import (
    RiskScore,
    calibration,
    forgotten,
    outside,
    risks,
    score_of,
    training_probability,
    tried,
)
from edgewise.judgement.profile import read
from edgewise.nouns.verdict import Probability

LIKE = {"depth": 12, "width": 64, "tokens": 32, "heads": 2}


def judged(readout: str = "token", **knobs: object) -> Probability:
    """The probability alone: a whole verdict of a failing network searches for remedies as well."""
    architecture = edgewise.transformer(**LIKE | knobs)
    return expected_of(architecture, readout)


def expected_of(architecture: edgewise.Architecture, readout: str) -> Probability:
    trace = edgewise.predict(architecture, readout=readout)
    return training_probability(score_of(read(trace)), trace)


def test_the_curve_is_the_table() -> None:
    trace = edgewise.predict(edgewise.transformer(**LIKE | {"attention_skip": 0.9}))
    verdict = edgewise.judge(trace)
    lost = forgotten(trace.architecture, trace.blocks("norm").tolist(), trace.blocks("separation").tolist())
    constants = calibration()["curves"]["token"]["described"]["all"]
    score = abs(verdict.angle.change) + abs(verdict.relative_gradient.change)
    risk = (
        constants["exponents"] * score
        + constants["forgetting"] * 2 * (lost[12] - lost[6])
        - constants["offset"]
    )
    assert verdict.probability.value == pytest.approx(1 / (1 + math.exp(risk)))
    assert verdict.probability.low <= verdict.probability.value <= verdict.probability.high
    assert verdict.json()["training_probability"]["value"] == pytest.approx(
        verdict.probability.value, abs=1e-4
    )
    assert verdict.probability.sentence in str(verdict)


def test_defects_lower_it() -> None:
    fine, collapsing = judged(), judged(attention_skip=0.5, mlp_skip=0.5)
    exploding = judged(score_gain=12.0, norm="post")
    assert fine.value > 0.8
    assert collapsing.value < 0.2
    assert exploding.value < 0.2


def test_outside_of_what_was_trained_is_said() -> None:
    assert judged().outside == ()
    shallow, deep = tried()["depth"]
    assert shallow <= 8 and deep >= 18, "networks of both records"
    assert judged(depth=96).outside == (f"96 blocks (those had {shallow} to {deep})",)
    assert judged(depth=int(1.1 * deep)).outside == (), "what is hardly larger is not outside"
    assert judged(norm_kind="tanh").outside == ("norm kind tanh (those had layer, rms)",)
    assert judged(activation="gelu_tanh").outside == ()


def test_a_perceptron_has_the_curve_without_forgetting_and_says_so() -> None:
    verdict = edgewise.judge(edgewise.predict(edgewise.Perceptron(depth=10, width=64)))
    constants = calibration()["curves"]["pooled"]["bare"]["all"]
    score = abs(verdict.angle.change) + abs(verdict.gradient.change)
    risk = constants["exponents"] * score - constants["offset"]
    assert verdict.probability.value == pytest.approx(1 / (1 + math.exp(risk)))
    assert "a perceptron (those were transformers)" in verdict.probability.outside


def test_a_stream_out_of_range_never_trains() -> None:
    verdict = edgewise.judge(edgewise.predict(edgewise.transformer(**LIKE, norm="none", mlp_out_gain=1e20)))
    assert verdict.probability.high == 0 and verdict.outcome.value == "will not train"
    assert verdict.findings[0].kind.value == "stream_out_of_range"


@pytest.mark.parametrize(
    ("name", "readout"), [("gpt2", "token"), ("bert-base", "token"), ("vit-base", "pooled")]
)
def test_published_recipes_are_expected_to_train(name: str, readout: str) -> None:
    assert expected_of(edgewise.describe(name, tokens=32), readout).value > 0.9


def test_forgetting_in_closed_form() -> None:
    """Without attention, a linear MLP of gain 2 under pre-norm: q <- s^2 q + b^2 4; under post-norm q stays one."""
    knobs = {
        "depth": 3,
        "width": 8,
        "tokens": 4,
        "heads": 0,
        "activation": "linear",
        "mlp_in_gain": 2.0,
        "mlp_skip": 0.5,
        "mlp_branch": 0.3,
    }
    pre, norm, expected = edgewise.transformer(**knobs), 1.0, [0.0]
    norms = [norm]
    for _ in range(3):
        whole = 0.25 * norm + 0.36
        expected.append(expected[-1] + math.log(whole / (0.25 * norm)))
        norm = whole
        norms.append(norm)
    np.testing.assert_allclose(forgotten(pre, norms, [1.0] * 4), expected)
    post = edgewise.transformer(**knobs | {"norm": "post"})
    np.testing.assert_allclose(forgotten(post, [1.0] * 4, [1.0] * 4), np.arange(4) * math.log(0.61 / 0.25))
    none = edgewise.transformer(**knobs | {"mlp_skip": 0.0})
    assert forgotten(none, [1.0] * 4, [1.0] * 4)[-1] == math.inf


def test_what_is_forgotten_adds_up_block_by_block() -> None:
    """All blocks at once, each from its own norm and separation, are the blocks one after the other."""
    network = edgewise.transformer(depth=3, tokens=8, width=32, heads=2, attention_branch=[0.5, 1.0, 2.0])
    norms, apart = [1.0, 2.0, 4.0, 5.0], [1.0, 0.3, 0.05, 0.01]
    each = [
        forgotten(
            network.replace(depth=1, attention_branch=network.attention_branch[i]),
            norms[i:],
            apart[i : i + 2],
        )
        for i in range(3)
    ]
    assert forgotten(network, norms, apart) == pytest.approx([0.0, *np.cumsum([one[1] for one in each])])
    assert (
        abs(each[0][1] - forgotten(network.replace(depth=1, attention_branch=0.5), norms, [0.1, 0.1])[1])
        > 0.01
    )


def test_an_unknown_readout_is_said() -> None:
    trace = replace(
        edgewise.predict(edgewise.transformer(depth=8, tokens=32)), readouts=("own",)
    ).with_provenance(readout="")
    assert any("read out is not known" in reason for reason in outside(trace))
    for known in (trace.with_provenance(readout="class"), replace(trace, readouts=("token",))):
        assert not any("read out" in reason for reason in outside(known))


@pytest.mark.parametrize("forgetting", [None, 0.7])
@pytest.mark.parametrize("readout", ["token", "pooled"])
def test_the_parts_of_the_risk_add_up_to_the_chance(forgetting: float | None, readout: str) -> None:
    """With a description and without one: each has constants of its own."""
    trace = edgewise.predict(edgewise.transformer(**LIKE), readout=readout)
    score = RiskScore(0.3, 0.2, forgetting)
    curves = calibration()["curves"][readout]["bare" if forgetting is None else "described"]
    risk = sum(risks(score, trace).values()) - curves["all"]["offset"]
    assert training_probability(score, trace).value == pytest.approx(1 / (1 + math.exp(risk)))
    assert set(risks(score, trace)) == {"angle", "gradient", "forgetting"}
