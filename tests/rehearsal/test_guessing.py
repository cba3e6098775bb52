"""No rate is named for a network that learns no more than the best constant answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.cli.main import run
from edgewise.rehearsal import Prospect, Rate, outlook
from edgewise.rehearsal.baseline import agreement, guess
from edgewise.rehearsal.ladder import Guess
from edgewise.rehearsal.learning_rate import AGREEMENT
from tests.support import rehearsal_networks as networks
from tests.support.covering import slow


def dice(seed: int = 1, count: int = 40) -> list[Tensor]:
    """Sequences in which nothing follows from anything."""
    generator = torch.Generator().manual_seed(seed)
    shape = (8, networks.TOKENS + 1)
    return [torch.randint(networks.SYMBOLS, shape, generator=generator) for _ in range(count)]


class Scaled(nn.Module):
    """Logits times a factor, or without a path from the input."""

    def __init__(self, factor: float = 1.0, detached: bool = False) -> None:
        super().__init__()
        self.net, self.factor, self.detached = networks.small(), factor, detached
        self.bias = nn.Parameter(torch.zeros(networks.SYMBOLS))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.factor * self.net(x)
        return self.bias + (0 * logits.detach() if self.detached else logits)


def dead_head() -> nn.Module:
    model = networks.small()
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1].requires_grad_(False)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return model


NOTHING: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Tensor]]]] = {
    "zeroed frozen head": (dead_head, networks.batches),
    "no path from the input": (lambda: Scaled(detached=True), networks.batches),
    "nothing to learn": (networks.small, dice),
    "nothing to learn, loud": (lambda: Scaled(20.0), dice),
    "nothing to learn, a little loud": (lambda: Scaled(5.0), dice),
}


@pytest.mark.parametrize("name", slow(NOTHING, ["nothing to learn, a little loud"]))
def test_no_rate_is_named_where_nothing_is_learned(name: str) -> None:
    make, batches = NOTHING[name]
    rate = edgewise.learning_rate(make(), batches(), networks.text_loss, progress=False)
    assert rate.best is rate.low is rate.high is rate.edge is None
    assert rate.reason is not None and "the loss of guessing frequencies (2.4" in rate.reason
    assert rate.reason in str(rate) and "use " not in str(rate)
    assert json.loads(rate.to_json())["best"] is None and Rate.from_json(rate.to_json()) == rate
    answer = outlook(rate)
    assert answer.prospect is Prospect.UNDECIDED and answer.rate is None and answer.probability is None
    assert "guessing frequencies" in answer.sentence and "Trains" not in answer.sentence


def test_a_network_that_learns_still_gets_its_rate() -> None:
    rate = edgewise.learning_rate(networks.small(), networks.batches(), networks.text_loss, progress=False)
    assert rate.best is not None and rate.reason is None and rate.learned
    assert rate.guess == pytest.approx(math.log(networks.SYMBOLS), abs=0.06)
    assert outlook(rate).prospect is Prospect.TRAINS


class Quiet(nn.Module):
    """Logits so small that these steps learn the frequencies at most."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.bias = networks.small(), nn.Parameter(torch.zeros(networks.SYMBOLS))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias + 1e-6 * self.net(x)


def test_gradients_of_different_batches_agree_where_something_can_be_learned() -> None:
    """Then a rate is named although no rehearsal leaves the loss of guessing; without anything to learn, none."""
    assert agreement(networks.small(), networks.text_loss, networks.batches()) > AGREEMENT
    assert all(abs(agreement(networks.small(), networks.text_loss, dice(k))) < AGREEMENT for k in range(5))
    rows = [networks.batches(40), dice()]
    slow, none = (
        edgewise.learning_rate(Quiet(), row, networks.text_loss, schedule="cosine", progress=False)
        for row in rows
    )
    assert not slow.learned and slow.best is not None and "gradients of different batches agree" in str(slow)
    assert none.best is None and "the loss of guessing frequencies" in str(none)


def test_numbers_are_compared_with_their_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = [
        (torch.randn(32, 8, generator=generator), 3 + torch.randn(32, 1, generator=generator))
        for _ in range(40)
    ]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))

    def by_hand(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean()

    rate = edgewise.learning_rate(model, noise, by_hand, progress=False)
    assert rate.best is None and rate.reason is not None and "the best constant answer (" in rate.reason
    learnable = [(x, x.sum(1, keepdim=True)) for x, _ in noise]
    assert edgewise.learning_rate(model, learnable, by_hand, progress=False).best is not None


LABELS = torch.tensor([0, 0, 0, 1, 2, 2])
ENTROPY = -sum(p * math.log(p) for p in (1 / 2, 1 / 6, 1 / 3))
VALUES = torch.tensor([[1.0], [2.0], [6.0], [7.0], [0.0], [2.0]])
VARIANCE = float(VALUES.var(unbiased=False))


@pytest.mark.parametrize(
    "loss, expected",
    [
        (lambda m, x: F.cross_entropy(m(x), LABELS), ENTROPY),
        (
            lambda m, x: F.cross_entropy(m(x), target=torch.cat([LABELS[:5], torch.tensor([-100])])),
            -(0.6 * math.log(0.6) + 0.4 * math.log(0.2)),
        ),
        (lambda m, x: F.nll_loss(F.log_softmax(m(x), -1), LABELS), ENTROPY),
        (lambda m, x: nn.CrossEntropyLoss(reduction="sum")(m(x), LABELS) / 6 + 10, ENTROPY + 10),
        (lambda m, x: -F.log_softmax(m(x), -1)[torch.arange(6), LABELS].mean(), ENTROPY),  # by hand
        (
            lambda m, x: F.binary_cross_entropy_with_logits(m(x)[:, :1], (LABELS > 0)[:, None].float()),
            math.log(2),
        ),
        (lambda m, x: F.mse_loss(m(x)[:, :1], VALUES), VARIANCE),
        (lambda m, x: (m(x)[:, :1] - VALUES).square().mean(), VARIANCE),  # by hand
    ],
)
def test_the_best_constant_answer_has_its_closed_form(
    loss: Callable[[nn.Module, Tensor], Tensor], expected: float
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    state = [p.detach().clone() for p in model.parameters()]
    found = guess(model, model, loss, [torch.randn(6, 4)])
    assert found.loss == pytest.approx(expected, abs=1e-4)
    assert all(torch.equal(a, b) and a.grad is None for a, b in zip(model.parameters(), state, strict=True))
    assert "forward" not in vars(model)


def test_the_loss_of_a_hugging_face_model_is_seen_inside_it() -> None:
    from tests.support.models import build

    model = build("gpt2").eval()
    ids = torch.randint(0, 8, (4, 12), generator=torch.Generator().manual_seed(0))
    found = guess(model, model, lambda m, b: m(**b).loss, [{"input_ids": ids, "labels": ids}])
    counts = torch.bincount(ids[:, 1:].flatten()).double()
    shares = counts[counts > 0] / counts.sum()
    assert found.loss == pytest.approx(float(-(shares * shares.log()).sum()), abs=1e-3)


def test_where_there_are_no_labels_it_says_that_it_could_not_compare() -> None:
    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)

    model, batches = networks.Quadratic(1.0), networks.quadratic_batches()
    rate = edgewise.learning_rate(model, batches, lambda m, x: m(x), optimizer=sgd, progress=False)
    assert rate.best is not None and rate.guess is None and rate.learned is None
    assert any("could not be compared with guessing" in note for note in rate.notes)


def test_a_loss_near_guessing_has_not_left_it() -> None:
    many = Guess(6.0, "guessing frequencies")
    assert many.beaten(5.96) and not many.beaten(5.98) and many.near(6.1)


FILE = """
from tests.rehearsal.test_guessing import dead_head as model
from tests.support.rehearsal_networks import batches, text_loss as loss
"""


def test_the_shell_names_none_and_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    words = ["rate", f"{file}:model", "--batch", f"{file}:batches", "--loss", f"{file}:loss"]
    assert run(words) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("NO RATE NAMED") and "USE" not in printed
    assert "every rate from" in printed and "of guessing frequencies" in " ".join(printed.split())
    assert run([*words, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (
        document["best"] is None and "guessing frequencies" in document["reason"] and document["guess"] < 2.5
    )
    assert document["outlook"]["probability"] is None
