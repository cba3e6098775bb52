"""What a plan says of the start: limits on the quantity they are about, verbs that exist, one vocabulary."""

from __future__ import annotations

import inspect
import math
import re

import pytest
import torch
from torch import nn

import edgewise
from edgewise.nouns.verdict import Exponent
from edgewise.repair.initialize import DRAWS
from edgewise.repair.layers import layers_of
from edgewise.repair.plan import TotalChanges, diagnose
from edgewise.stability.lyapunov import SEVERITY_LIMITS
from tests.support.stacks import Convolutions, Unseen, encoder, perceptron

DEPTH = 12


def isometries(weak: int, log_gain: float) -> nn.Sequential:
    """Orthogonal matrices without activation, one of them smaller: its log-change is 2 log_gain, the others' zero."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(DEPTH)))
    with torch.no_grad():
        for layer in model:
            nn.init.orthogonal_(layer.weight)
        model[weak].weight.mul_(math.exp(log_gain))
    return model


@pytest.mark.parametrize("weak, total, late", [(1, -9.0, 0.0), (DEPTH - 1, -5.0, -5.0 * 11 / 6)])
def test_exponents_of_isometries_are_known(weak: int, total: float, late: float) -> None:
    """Eleven steps between twelve outputs: half is the fifth, and the last six count 11/6-fold."""
    totals = edgewise.total_changes(isometries(weak, total / 2), torch.randn(16, 64))
    assert totals.gradient == pytest.approx(total, abs=1e-4) and totals.angle == pytest.approx(0, abs=1e-4)
    assert totals.exponents is not None
    angle, gradient = totals.exponents
    assert gradient.change == pytest.approx(late, abs=1e-4) and angle.change == pytest.approx(0, abs=1e-4)
    assert gradient.at_depth == pytest.approx(total / 11, abs=1e-4)


def test_a_jump_at_the_start_is_not_what_the_limits_are_about() -> None:
    """The total is beyond 7, the second half of the depth changes nothing: such networks train."""
    plan = edgewise.critical_plan(isometries(1, -4.5), torch.randn(16, 64))
    assert plan.before is not None and plan.before.worst > SEVERITY_LIMITS.fails
    assert "are not the reason" in plan.diagnosis and "likely reason" not in plan.diagnosis
    assert "a jump or a power law in the first half" in plan.diagnosis


def test_a_second_half_that_fails_is_named_although_the_total_is_smaller() -> None:
    """The total is between 4 and 7, twice the second half beyond 7 by more than one network scatters."""
    plan = edgewise.critical_plan(isometries(DEPTH - 1, -2.5), torch.randn(16, 64))
    assert plan.before is not None and SEVERITY_LIMITS.risky < plan.before.worst < SEVERITY_LIMITS.fails
    assert "the start is the likely reason" in plan.diagnosis and "second half of the depth" in plan.diagnosis


def test_angle_and_gradient_count_together() -> None:
    """A verdict adds them: where each alone is below the limit and both are above, the start is not called innocent."""
    angle, gradient = (Exponent(c / 12, 0.1, change=c, change_error=0.1) for c in (-2.3, -3.2))
    before = TotalChanges(angle=-2.1, gradient=-0.8, exponents=(angle, gradient))
    text, _ = diagnose(before, None, 1.0, changed=True)
    assert "may be part of the reason" in text and "e^3.2, both together by e^5.5" in text
    half = TotalChanges(
        angle=-1.0, gradient=-0.4, exponents=(angle, Exponent(-0.1, 0.1, change=-1.2, change_error=0.1))
    )
    assert "are not the reason" in diagnose(half, None, 0.5, changed=True)[0]


def test_a_signal_out_of_range_is_the_reason() -> None:
    model = isometries(1, 0.0)
    with torch.no_grad():
        for layer in model:
            layer.weight.mul_(math.exp(10.0))  # e^110 after eleven layers; float32 ends at e^88
    plan = edgewise.critical_plan(model, torch.randn(16, 64))
    assert plan.diagnosis.startswith(
        "The start is the reason: the signal leaves the range of floating point."
    )


def test_the_exponents_are_those_of_the_verdict() -> None:
    """On one network and batch `judge(measure(...))` and `total_changes(...)` have the same angle exponent."""
    torch.manual_seed(0)
    model, batch = encoder(6, 32), torch.randn(2, 8, 32)
    verdict = edgewise.judge(edgewise.measure(model, batch))
    exponents = edgewise.total_changes(model, batch).exponents
    assert exponents is not None and verdict.angle.change is not None
    assert exponents[0].change == pytest.approx(verdict.angle.change, rel=1e-5)
    assert exponents[0].at_depth == pytest.approx(verdict.angle.at_depth, rel=1e-5)
    assert exponents[0].change_error == pytest.approx(verdict.angle.change_error)


MODELS = {
    "encoder and decoder": lambda: nn.Transformer(32, 2, 4, 4, 64, dropout=0.0, batch_first=True),
    "more decoder than encoder": lambda: nn.Transformer(32, 2, 3, 5, 64, dropout=0.0, batch_first=True),
    "two blocks": lambda: encoder(2, 32),
}


@pytest.mark.parametrize("name", MODELS)
def test_measure_totals_and_plan_speak_of_the_same_layers(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    first, second = torch.randn(2, 8, 32), torch.randn(2, 8, 32)
    batch = (first, second) if isinstance(model, nn.Transformer) else first
    trace = edgewise.measure(model, batch)
    stack = edgewise.models.sites(model).blocks
    assert layers_of(model).names == tuple(block.name for block in stack) and trace.depth == len(stack)
    angle = float(torch.tensor(trace.separation[0, -1] / trace.separation[0, 0]).log())
    assert edgewise.total_changes(model, batch).angle == pytest.approx(angle, rel=1e-5)
    plan = edgewise.critical_plan(model, batch)
    assert plan.depth == trace.depth and plan.before is not None
    assert plan.before.angle == pytest.approx(angle, rel=1e-5)


def test_layers_that_do_not_run_are_refused() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[:4]:
                x = torch.tanh(layer(x))
            return x

    with pytest.raises(edgewise.BadInput, match="runs 4 of the 6 layers"):
        edgewise.total_changes(Half(), torch.randn(4, 8))


def test_an_unbatched_sequence_has_its_own_length() -> None:
    """(n, d) is one sequence of n tokens, not of d."""
    torch.manual_seed(0)
    model, tokens = encoder(6, 32), torch.randn(4, 32)
    plan, batched = (edgewise.critical_plan(model, batch, goal="xavier") for batch in (tokens, tokens[None]))
    assert (
        plan.source == batched.source == "theory"
        and plan.expected is not None
        and batched.expected is not None
    )
    assert plan.expected.angle == pytest.approx(batched.expected.angle, rel=1e-3)


def test_only_verbs_that_exist_are_recommended() -> None:
    torch.manual_seed(0)
    model = encoder(2, 32, norm_first=True)
    edgewise.initialize_(model, torch.randn(2, 8, 32), generator=0)  # the copies become different
    plan = edgewise.critical_plan(model, torch.randn(2, 8, 32))
    assert plan.changes == () and plan.findings
    verbs = re.findall(r"(\w+)\(", " ".join(plan.findings))
    assert verbs and all(hasattr(edgewise, verb) for verb in verbs)


def test_the_docstring_names_the_draws_that_are_taken() -> None:
    """Accepted draws, and the default: orthogonal by theory and without skips, normal where skips are measured."""
    text = " ".join((inspect.getdoc(edgewise.repair.initialize.critical_plan) or "").split())
    assert all(kind in text for kind in DRAWS)
    assert "default: orthogonal, but normal where layers with skips are planned by measurement" in text
    torch.manual_seed(1)
    by_theory = edgewise.critical_plan(encoder(6, 32), torch.randn(2, 8, 32))
    with_skips = edgewise.critical_plan(nn.Sequential(*(Unseen(64) for _ in range(8))), torch.randn(16, 64))
    without = edgewise.critical_plan(perceptron(20, 32), torch.randn(16, 20))
    filters = edgewise.critical_plan(Convolutions(10, 8), torch.randn(4, 3, 6, 6))
    for plan, source, kind in (
        (by_theory, "theory", "orthogonal"),
        (with_skips, "measurement", "normal"),
        (without, "measurement", "orthogonal"),
        (filters, "measurement", "delta-orthogonal"),
    ):
        assert plan.source.startswith(source)
        assert kind in {change.draw for change in plan.changes} <= {kind, "zero", "normal"}
    for kind in DRAWS:
        plan = edgewise.critical_plan(encoder(6, 32), torch.randn(2, 8, 32), draw=kind)
        assert kind in {change.draw for change in plan.changes}


def test_totals_say_that_they_are_no_verdict() -> None:
    assert "not a verdict" in (TotalChanges.__doc__ or "")
    shown = edgewise.total_changes(isometries(1, -1.0), torch.randn(16, 64)).json()
    assert set(shown) == {"angle", "gradient", "gradient_kind", "spread", "exponents"}
    assert shown["exponents"][1]["change"] == pytest.approx(0, abs=1e-4)
