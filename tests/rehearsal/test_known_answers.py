"""Answers that are known beforehand: quadratics, the units of a loss, the groups of an optimizer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.rehearsal.rate import Rate, edge
from tests.support.covering import covering
from tests.support.rehearsal_networks import Quadratic, batches, quadratic_batches, small, text_loss


@pytest.mark.parametrize(
    ("curvature", "options"),
    covering([0.3, 40.0], [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}]),
)
def test_the_edge_of_sgd_on_a_quadratic(curvature: float, options: dict[str, Any]) -> None:
    """2 (1 + b) / c, with Nesterov 2 (1 + b) / ((1 + 2 b) c); real runs agree."""
    momentum = options.get("momentum", 0.0)
    exact = 2 * (1 + momentum) / curvature / (1 + 2 * momentum if options.get("nesterov") else 1)
    rate = edgewise.learning_rate(
        Quadratic(curvature),
        quadratic_batches(),
        lambda m, x: m(x),
        progress=False,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), 1.0, **options),
    )
    assert rate.at_edge is not None and rate.beyond is not None and rate.edge is not None
    assert rate.at_edge.rate < 1.1 * exact and exact < 1.1 * rate.beyond.rate
    assert exact / 2 < rate.edge < 2 * exact
    assert rate.best is not None and rate.best < exact
    assert largest_stable(curvature, options) == pytest.approx(exact, rel=0.01)


def largest_stable(curvature: float, options: dict[str, Any]) -> float:
    """From one run of torch's SGD on 400 quadratics c x^2 / 2 that lie around the edge."""
    c = curvature * torch.linspace(0.05, 4.0, 4000, dtype=torch.float64)
    x = nn.Parameter(torch.ones_like(c))
    optimizer = torch.optim.SGD([x], 1.0 / curvature, **options)
    for _ in range(2000):
        optimizer.zero_grad()
        (c * x * x / 2).sum().backward()
        optimizer.step()
    stable = c[x.detach().abs() < 1e3].max()
    return float(stable) / curvature**2


def ask(scale: float, optimizer: Any, **options: Any) -> Rate:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return scale * text_loss(model, batch)

    return edgewise.learning_rate(small(), batches(), loss, optimizer=optimizer, progress=False, **options)


@cache
def usual() -> Rate:
    """What others are compared with; asked once, as the answer is the same each time, which is a test of its own."""
    return ask(1.0, torch.optim.AdamW)


def test_the_units_of_the_loss_do_not_move_adam_and_divide_sgd() -> None:
    """A power of two, by which gradients are multiplied without rounding."""
    one, other = (ask(scale, torch.optim.AdamW, rates=8) for scale in (1.0, 16.0))
    assert one.edge is not None
    assert other.best == pytest.approx(one.best, rel=0.01)
    assert other.edge == pytest.approx(one.edge, rel=0.01)
    assert [r.reason is None for r in other.rehearsals] == [r.reason is None for r in one.rehearsals]

    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 1.0, momentum=0.9)

    one, other = (ask(scale, sgd) for scale in (1.0, 16.0))
    assert one.best is not None and other.best == pytest.approx(one.best / 16, rel=0.02)


def test_groups_keep_their_ratios_and_an_instance_is_a_function() -> None:
    """The rate is that of the first group; all rates doubled or halved together give the same answer."""

    def groups(model: nn.Module, rate: float) -> torch.optim.Optimizer:
        first, *others = model.parameters()
        return torch.optim.AdamW([{"params": [first], "lr": rate}, {"params": others, "lr": 0.1 * rate}])

    one, other = (ask(1.0, lambda m, rate=rate: groups(m, rate)) for rate in (1.0, 1e-3))
    assert one.best == other.best
    assert one.ratios == pytest.approx((1.0, 0.1))
    assert one.group_rates == pytest.approx((one.best, 0.1 * one.best))
    assert one.best is not None and one.best > 2 * usual().best  # most weights move a tenth as far

    model = small()
    instance = groups(model, 3.0)
    again = edgewise.learning_rate(model, batches(), text_loss, optimizer=instance, progress=False)
    assert again.own is not None and again.own.rate == 3.0 and "Yours is 3, about" in str(again)
    assert again.best == pytest.approx(one.best, rel=0.6)
    assert [group["lr"] for group in instance.param_groups] == [3.0, pytest.approx(0.3)]
    assert not instance.state


def muon(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=1.0)


def trust(model: nn.Module) -> torch.optim.Optimizer:
    return edgewise.optim.LogitTrust(torch.optim.AdamW(model.parameters()), model, 0.05)


def preconditioner(model: nn.Module) -> torch.optim.Optimizer:
    return edgewise.optim.AttentionPreconditioner(torch.optim.AdamW(model.parameters()), model, 0.02)


@pytest.mark.parametrize("make", [muon, trust, preconditioner, torch.optim.Adagrad])
def test_other_optimizers(make: Any) -> None:
    """The advised rate lowers the loss in a run of its own, with the optimizer made anew."""
    rate = ask(1.0, make)
    assert rate.best is not None, str(rate)
    model = small()
    optimizer = make(model) if make is not torch.optim.Adagrad else make(model.parameters())
    for group, ratio in zip(optimizer.param_groups, rate.ratios, strict=True):
        group["lr"] = rate.best * ratio
    losses = []
    for batch in batches()[:20]:
        optimizer.zero_grad()
        value = text_loss(model, batch)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    assert np.mean(losses[-5:]) < losses[0] - 0.05


@pytest.mark.slow
def test_an_optimizer_of_edgewise_as_an_instance() -> None:
    model = small()
    instance = trust(model)
    rate = edgewise.learning_rate(model, batches(), text_loss, optimizer=instance, progress=False)
    assert rate.best == pytest.approx(ask(1.0, trust).best, rel=1e-6)
    assert rate.optimizer == "LogitTrust around AdamW (0.9, 0.999)"
    assert not instance.state


def test_the_same_answer_twice_and_the_json_both_ways() -> None:
    one, other = (ask(1.0, None) for _ in range(2))
    assert one.best == other.best and one.rehearsals == other.rehearsals
    back = Rate.from_json(one.to_json())
    assert back == one
    assert back.at_edge is not None and back.at_edge.step_change is not None
    with pytest.raises(edgewise.BadInput, match="version"):
        Rate.from_json("{}")
    with pytest.raises(edgewise.BadInput, match="not the JSON"):
        Rate.from_json("nonsense")


def test_a_network_is_looked_at_after_1_2_4_8_and_the_last_two_steps() -> None:
    """The step of a look is the number of steps taken: k steps of SGD on x^2/2 leave (1 - rate)^k of the start."""

    class Valley(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.tensor([2.0]))

        def forward(self, _: Tensor) -> Tensor:
            return self.x

    rate = edgewise.learning_rate(
        Valley(),
        [torch.ones(1)] * 30,
        lambda model, batch: model(batch).square().sum() / 2,
        steps=20,
        rates=3,
        optimizer=torch.optim.SGD,
        progress=False,
    )
    whole = rate.rehearsals[0]
    assert [moment.step for moment in whole.moments] == [1, 2, 4, 8, 16, 19, 20]
    for moment in whole.moments:
        assert moment.loss == pytest.approx(2 * (1 - whole.rate) ** (2 * moment.step), rel=1e-4)


def test_warm_up_is_rehearsed() -> None:
    """With a warm-up as long as the rehearsal the mean rate is half: at a rate that is too large less is lost."""
    without, with_it = usual(), ask(1.0, torch.optim.AdamW, warmup=10)
    assert with_it.warmup == 10 and "10 steps of warm-up" in str(with_it)
    assert with_it.best is not None and without.best is not None
    assert with_it.tried[-1] == pytest.approx(without.tried[-1])
    assert with_it.rehearsals[-1].loss < without.rehearsals[-1].loss
    assert with_it.rehearsals[0].loss > without.rehearsals[0].loss


def test_an_edge_beyond_a_rate_that_was_too_large_says_for_which_of_them_the_warm_up_was() -> None:
    """A warm-up longer than a rehearsal is left out, and the edge is taken twice as large for it."""
    longer = edgewise.learning_rate(
        Quadratic(4.0),
        quadratic_batches(),
        lambda m, x: m(x),
        progress=False,
        optimizer=torch.optim.SGD,
        warmup=500,
    )
    assert longer.edge is not None and longer.beyond is not None
    plain, wider = (replace(longer, edge=longer.beyond.rate * factor) for factor in (0.8, 1.5))
    assert "warm-up" not in edge(plain)[0]
    assert "without the warm-up" in edge(wider)[0] and "as the edge" in edge(wider)[0]
    assert edge(wider)[0].endswith("with it.")


def test_a_rate_far_above_the_edge_has_a_reason() -> None:
    """A perceptron on squares with plain SGD: above the edge the loss rises or is not finite."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    data = [torch.randn(32, 8) for _ in range(26)]
    rate = edgewise.learning_rate(
        model,
        data,
        lambda m, x: F.mse_loss(m(x), x.sum(1, keepdim=True)),
        optimizer=torch.optim.SGD,
        progress=False,
        rates=8,
    )
    assert rate.beyond is not None and rate.beyond.reason in ("the loss rose", "the loss was not finite")
    assert (
        rate.edge is not None
        and rate.at_edge is not None
        and rate.at_edge.rate < rate.edge < rate.beyond.rate
    )
    assert "treat" in str(rate)
