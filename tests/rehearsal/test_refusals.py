"""What cannot be rehearsed is refused in words."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import edgewise
from edgewise.errors import BadInput
from edgewise.rehearsal.ladder import NOISE, Guess
from edgewise.rehearsal.learning_rate import _Search
from edgewise.rehearsal.optimizers import Rates
from edgewise.rehearsal.rate import Moment, Rehearsal
from edgewise.rehearsal.validation import View
from tests.support.rehearsal_networks import batches, small, text_loss


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


def spoiled(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    return model


class Rateless(torch.optim.Optimizer):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move nothing."""


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "NaN weights": ({"model": spoiled(small())}, "the loss of the untrained model is nan"),
    "NaN losses": ({"loss": lambda m, x: text_loss(m, x) * math.nan}, "is nan on fresh batches"),
    "a loss of 0": ({"loss": lambda m, x: text_loss(m, x) * 0}, "is 0 on fresh batches"),
    "a loss that raises": ({"loss": lambda m, x: {}["labels"]}, "raised KeyError: 'labels'"),
    "an optimizer without a rate": (
        {"optimizer": lambda m: Rateless(m.parameters(), {})},
        "Rateless has no learning rate",
    ),
    "one batch": ({"batches": batches(1)}, "1 batch came, and at least 2 are needed"),
    "no batch": ({"batches": []}, "0 batches came"),
    "an iterator that ended": ({"batches": iter([])}, "0 batches came"),
    "a single tensor": ({"batches": torch.zeros(4, 4)}, "got a Tensor"),
    "a number": ({"batches": 3}, "got a int"),
    "an empty batch": ({"batches": [torch.zeros(0, 17, dtype=torch.long)] * 4}, "batch 0 is empty"),
    "frozen": ({"model": frozen(small())}, "has no trainable parameter: all .* are frozen"),
    "no parameters": ({"model": nn.Identity()}, "it has no parameters"),
    "not a model": ({"model": 3}, "takes a torch.nn.Module"),
    "a loss of many numbers": ({"loss": lambda m, x: m(x[:, :-1])}, "must return one number"),
    "a loss without a gradient": (
        {"loss": lambda m, x: text_loss(m, x).detach()},
        "does not depend on any trainable",
    ),
    "a loss without the model": (
        {"loss": lambda m, x: torch.ones((), requires_grad=True)},
        "does not depend on any",
    ),
    "no loss": ({"loss": None, "batches": [row[:, :-1] for row in batches()]}, "Give loss="),
    "an optimizer of another model": (
        {"optimizer": torch.optim.SGD(small().parameters())},
        "not parameters of the",
    ),
    "LBFGS": ({"optimizer": torch.optim.LBFGS}, "several times within one step"),
    "a wrong optimizer": ({"optimizer": "adamw"}, "must be a torch.optim class"),
    "a function of nothing": ({"optimizer": lambda m: None}, "must return a torch.optim.Optimizer"),
    "rate zero": ({"optimizer": lambda m: torch.optim.SGD(m.parameters(), 0.0)}, "has the rate 0"),
    "steps": ({"steps": 1}, "steps must be a whole number of at least 2"),
    "rates": ({"rates": 2.5}, "rates must be"),
    "warmup": ({"warmup": -1}, "warmup must be"),
    "clip": ({"clip": 0.0}, "clip must be"),
    "schedule": ({"schedule": "step"}, "schedule must be one of constant, linear, cosine"),
    "own": ({"own": -1.0}, "own must be a learning rate above zero"),
    "autocast": ({"autocast": torch.float64}, "autocast must be"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_in_words(name: str) -> None:
    options, sentence = CASES[name]
    arguments = {"model": small(), "batches": batches(), "loss": text_loss, "steps": 4, "rates": 3} | options
    model, rows, loss = (arguments.pop(key) for key in ("model", "batches", "loss"))
    with pytest.raises(edgewise.BadInput, match=sentence):
        edgewise.learning_rate(model, rows, loss, progress=False, **arguments)


def test_an_optimizer_of_frozen_parameters() -> None:
    model = small()
    first, *_ = model.parameters()
    first.requires_grad_(False)
    with pytest.raises(edgewise.BadInput, match="is frozen"):
        edgewise.learning_rate(
            model, batches(), text_loss, optimizer=torch.optim.SGD([first]), progress=False
        )


def test_some_frozen_parameters_stay() -> None:
    model = small()
    first, *_ = model.parameters()
    first.requires_grad_(False)
    rate = edgewise.learning_rate(model, batches(), text_loss, steps=4, rates=3, progress=False)
    assert rate.best is not None and not first.requires_grad


def test_a_model_that_cannot_learn_gets_no_rate() -> None:
    """A loss that every step raises on fresh batches: labels of the training part say the opposite."""
    model, rows = nn.Linear(1, 1, bias=False), [torch.ones(4, 1)] * 8 + [-torch.ones(4, 1)] * 4
    with torch.no_grad():
        model.weight.zero_()
    rate = edgewise.learning_rate(
        model,
        rows,
        lambda m, x: (m(torch.ones(4, 1)) - x).square().mean(),
        optimizer=torch.optim.SGD,
        steps=4,
        rates=3,
        progress=False,
    )
    assert rate.best is None and rate.edge is None
    assert "no rate from" in str(rate)


def test_rates_of_groups_are_multiples_of_the_first_that_moves() -> None:
    """A group at rest keeps its zero; under a scheduler the rate before the warm-up counts."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.0, 2e-3, 1e-3)]
    optimizer = torch.optim.SGD(groups)
    rates = Rates(optimizer)
    assert rates.ratios == pytest.approx((0.0, 1.0, 0.5))
    rates.set(0.1)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.0, 0.1, 0.05])
    for group in optimizer.param_groups:
        group["initial_lr"], group["lr"] = 4e-3, 0.0
    assert Rates(optimizer).ratios == (1.0, 1.0, 1.0)
    with pytest.raises(BadInput, match="every group of this SGD has the rate 0"):
        Rates(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0))


@pytest.mark.parametrize(
    "loss, reason",
    [
        (1.5, "lowered the loss on fresh batches"),
        (1 + NOISE, "changed the loss by much"),
        (1 - NOISE, "changed the loss by much"),
        (1 - 3 * NOISE, None),
        (math.inf, "lowered the loss on fresh batches"),
    ],
)
def test_no_rate_is_advised_where_the_loss_rose_or_hardly_moved(loss: float, reason: str | None) -> None:
    """Twice the noise decides, on both sides of the loss at the start; undecided means no advice."""
    search = _Search.__new__(_Search)
    search.start, search.scale, search.guess = View(1.0, torch.zeros(1), None, 1.0), 1.0, Guess(None)
    rows = [
        Rehearsal(rate, (end,) * 4, (Moment(20, end, 0.0, None, 1.0),), None)
        for rate, end in ((1e-3, loss), (3e-3, max(loss, 1.5)))
    ]
    found = search._nothing_learned(rows)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(("separation", "named"), [(1e-4, False), (0.3, True)])
def test_learning_frequencies_is_no_reason_for_a_rate_if_tokens_are_alike(
    separation: float, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if gradients of different batches agree; where tokens are told apart more may come."""
    search = _Search.__new__(_Search)
    search.start, search.scale, search.notes = View(3.1, torch.zeros(1), separation, 1.0), 2.0, []
    search.guess = Guess(2.0, "guessing frequencies", floor=0.0)
    monkeypatch.setattr(search, "_agree", lambda: True)
    row = Rehearsal(1e-3, (2.5,) * 4, (Moment(20, 2.5, 0.0, separation, 1.0),), None)
    reason = search._nothing_learned([row])
    assert reason is None if named else "tokens are alike at every rate" in str(reason)


@pytest.mark.parametrize(
    "asked, elsewhere, stops", [(False, 0.0, False), (True, 1.0, True), (False, 1.0, True)]
)
def test_processes_that_train_together_stop_together(asked: bool, elsewhere: float, stops: bool) -> None:
    """Ctrl-C in one of them stops all at the same step; alone, nobody else is asked."""
    told: list[float] = []

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    search = _Search.__new__(_Search)
    search.interrupts = SimpleNamespace(check=check)
    for group in (None, "gloo"):
        search.plan = SimpleNamespace(group=group, over_processes=lambda mine: told.append(mine) or elsewhere)
        with pytest.raises(KeyboardInterrupt) if (asked if group is None else stops) else nullcontext():
            search._check()
    assert told == [float(asked)]
