"""The judge on traces whose answer is known by construction."""

import inspect
import math
import re
from dataclasses import fields, replace

import numpy as np
import pytest

from edgewise.judgement.judge import _phase, judge
from edgewise.judgement.profile import _jump
from edgewise.nouns.architecture import transformer
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Kind, Outcome, Phase, Verdict
from edgewise.present import as_text, card_of
from edgewise.present.wording import explain
from edgewise.stability.lyapunov import Growth, LateChange, growth
from edgewise.theory.predict import predict


def made(angle=0.0, gradient=0.0, norm_growth=0.0, depth=20, seeds=1, noise=0.0):
    """A trace with constant exponents: 1 - c = e^(angle l), |g|^2 = e^(gradient (L - l)), q = e^(growth l)."""
    rng = np.random.default_rng(0)
    layers = np.arange(depth + 1)
    wobble = noise * rng.standard_normal((seeds, depth + 1)).cumsum(axis=1)
    ones = np.ones((seeds, 1))
    return Trace(
        sites=("embed", *(f"block.{i}.mlp" for i in range(depth))),
        norm=ones * np.exp(norm_growth * layers),
        separation=0.9 * np.exp(angle * layers) * np.exp(wobble),
        readouts=("token",),
        log_gradient=(ones * gradient * (depth - layers))[None],
    )


def test_constant_exponents_are_read_back():
    verdict = judge(made(angle=-0.1, gradient=0.05, norm_growth=-0.02))
    assert verdict.angle.at_depth == pytest.approx(-0.1)
    assert verdict.gradient.at_depth == pytest.approx(0.05)
    assert verdict.relative_gradient.at_depth == pytest.approx(0.05 + 0.02)
    assert verdict.angle.change == pytest.approx(-0.1 * 20)
    assert verdict.outcome is Outcome.RISKY  # 2 + 1.4: half of the recorded text models of this sum trained


@pytest.mark.parametrize(
    "angle,gradient,expected,kind",
    [
        (-0.1, 0.0, Outcome.TRAINS, None),
        (-0.17, 0.0, Outcome.RISKY, Kind.RANK_COLLAPSE),
        (-0.5, 0.0, Outcome.FAILS, Kind.RANK_COLLAPSE),
        (0.0, 0.5, Outcome.FAILS, Kind.EXPLODING_GRADIENT),
        (0.0, -0.5, Outcome.FAILS, Kind.VANISHING_GRADIENT),
    ],
)
def test_outcome_and_finding(angle, gradient, expected, kind):
    verdict = judge(made(angle, gradient))
    assert verdict.outcome is expected
    assert (kind in {f.kind for f in verdict.findings}) if kind else not verdict.findings
    assert all(f.sentence and f.remedy for f in verdict.findings)


def test_a_jump_at_the_start_does_not_decide():
    trace = made()
    trace.log_gradient[0, :, 0] += 9.0  # embedding to first block only
    verdict = judge(trace)
    assert verdict.outcome is Outcome.TRAINS
    assert verdict.embedding_jump == pytest.approx(9.0)
    assert {f.kind for f in verdict.findings} == {Kind.EMBEDDING_JUMP}


def test_a_power_law_does_not_decide():
    depth = 80
    layers = np.arange(depth + 1)
    trace = Trace(
        sites=("embed", *(f"block.{i}.mlp" for i in range(depth))),
        norm=np.ones((1, depth + 1)),
        separation=(1.0 / (1 + layers))[None] ** 2,
        readouts=("pooled",),
        log_gradient=np.zeros((1, 1, depth + 1)),
    )
    verdict = judge(trace)
    assert abs(verdict.angle.at_depth * depth) > 7  # the total alone would have raised an alarm
    assert verdict.outcome is Outcome.TRAINS


def test_without_a_gradient_the_answer_is_open_with_the_reason():
    verdict = judge(replace(made(), readouts=(), log_gradient=None))
    assert verdict.outcome is Outcome.UNDECIDED and "no gradient" in verdict.probability.why_open
    assert verdict.gradient is None and verdict.json()["gradient"] is None
    collapsed = judge(replace(made(angle=-0.5), readouts=(), log_gradient=None))
    assert collapsed.outcome is Outcome.FAILS  # whatever its gradient does


def test_full_collapse_is_null_in_json_with_a_finding():
    trace = made(angle=-0.1)
    trace.separation[:, 15:] = 0.0
    verdict = judge(trace)
    assert verdict.outcome is Outcome.FAILS
    assert verdict.json()["angle"]["at_depth"] is None
    assert Kind.FULL_COLLAPSE in {f.kind for f in verdict.findings}
    assert "block.14.mlp" in verdict.findings[0].sentence


def test_error_bars_come_from_seeds_and_undecided_exists():
    verdict = judge(made(angle=0.0, seeds=8, noise=0.05))
    assert verdict.angle.error > 0
    assert verdict.phase is Phase.UNDECIDED
    assert judge(made(angle=-0.2, seeds=8, noise=0.001)).phase is Phase.ORDERED


def test_error_is_the_spread_over_seeds_when_it_is_larger():
    logs = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 4.0]])
    both = growth(logs, width=1e9)
    assert both.rate == pytest.approx(1.5)
    assert both.error == pytest.approx(np.std([2, 4], ddof=1) / math.sqrt(2) / 2)
    assert growth(logs[:1], width=100).error == pytest.approx(math.sqrt(2 / (2 * 100)))


def test_outcome_is_undecided_when_the_error_spans_everything():
    """Seeds whose late changes are 5.5 ± 3 say nothing; the limits themselves are tested in tests/stability."""
    trace = made(angle=-0.275, seeds=2)
    trace.separation[:, 10:] *= np.exp(np.array([[-1.5], [1.5]]))
    trace.separation[:, 10] /= np.exp(np.array([-1.5, 1.5]))
    verdict = judge(trace)
    assert verdict.angle.change == pytest.approx(-5.5)
    assert verdict.angle.change_error == pytest.approx(3.0)
    assert verdict.outcome is Outcome.UNDECIDED


def test_what_was_ruled_out_is_said():
    said = "\n".join(line.text for line in explain(judge(made())))
    assert "Ruled out: rank collapse" in said and "vanishing and exploding" in said


def test_a_verdict_is_computed_once(monkeypatch):
    """Phase, limits and findings are worked out one time each, also for a described network that fails."""
    import edgewise
    from edgewise.judgement import judge as module

    calls = []
    for name in ("read", "asymptotics", "find", "rule_out", "training_probability"):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name), calls))
    trace = edgewise.predict(edgewise.transformer(depth=24, width=64, heads=2, tokens=16, norm="post"))
    assert judge(trace).outcome is not Outcome.TRAINS
    assert sorted(calls) == ["asymptotics", "find", "read", "rule_out", "training_probability"]


def counted(name, function, calls):
    def call(*arguments):
        calls.append(name)
        return function(*arguments)

    return call


def test_every_field_of_a_verdict_is_described():
    source = inspect.getsource(Verdict)
    for field in fields(Verdict):
        line = next(line for line in source.splitlines() if line.strip().startswith(f"{field.name}:"))
        assert "  # " in line, field.name
    assert len(fields(Verdict)) <= 17  # with the slowdown


def test_the_prose_is_attached_to_the_record():
    verdict = judge(made())
    assert str(verdict) == as_text(card_of(verdict))
    first, second, *_ = str(verdict).splitlines()
    assert first.startswith("this network · 20 blocks ") and first.endswith(" measured")
    assert second.startswith("TRAINS  nothing seen prevents it; about 98 % of such networks trained")


def test_the_advised_factors_are_the_ones_that_help():
    """A jump e^J of |g|^2 q across the first block is undone by an embedding e^(J/2) times as large."""
    trace = made()
    trace.log_gradient[..., 0] += 6.0
    (jump,) = judge(trace).findings
    assert jump.kind is Kind.EMBEDDING_JUMP and "about 20 times" in jump.remedy  # e^3
    sharp = transformer(depth=3, tokens=16, width=64, heads=2, score_gain=4.0)
    (condensed,) = [f for f in judge(predict(sharp)).findings if f.kind is Kind.ENTROPY_COLLAPSE]
    factor = float(re.search(r"score_gain by ([\d.]+)", condensed.remedy).group(1))
    assert judge(predict(sharp.replace(score_gain=4.0 / factor))).attention.condensation == pytest.approx(
        0.5, rel=0.02
    )


def test_where_theory_was_given_up_the_advice_is_to_measure():
    """Only for what an initialization can cure; trained weights are told to be left alone."""
    trace = made(angle=-0.5).with_provenance(departure="the norm parts at block 3")
    trace.log_gradient[..., 0] += 6.0
    advice = {finding.kind: finding.advice for finding in judge(trace).findings}
    assert "edgewise.initialize_(model)" in advice[Kind.RANK_COLLAPSE]
    assert "edgewise.initialize_(model)" not in advice[Kind.EMBEDDING_JUMP]
    trained = judge(trace.with_provenance(departure="the weights are trained")).findings
    assert all("watch the loss" in finding.advice for finding in trained)


@pytest.mark.parametrize(
    "rate, limit, phase",
    [
        (-0.5, None, "ordered"),
        (0.5, None, "chaotic"),
        (0.001, None, "undecided"),
        (-0.5, 0.0, "critical"),
        (0.5, -1e-13, "critical"),
        (0.5, -0.1, "ordered"),
        (-0.5, 0.1, "chaotic"),
    ],
)
def test_the_phase_is_the_sign_at_infinite_depth_where_that_is_known(
    rate: float, limit: float | None, phase: str
) -> None:
    assert _phase(Growth(rate, 0.01, LateChange(0.0, 0.0)), limit).value == phase


def test_the_jump_at_the_embedding_is_that_across_the_first_block():
    """The mean over seeds; none where there is no gradient or one block."""
    logs = np.array([[2.0, 1.5, 0.2, 0.0], [4.0, 2.5, 0.4, 0.0]])
    deep, single = (made(depth=depth) for depth in (3, 1))
    assert _jump(deep, logs) == pytest.approx(1.0)
    assert _jump(deep, None) is None and _jump(single, logs[:, :2]) is None
