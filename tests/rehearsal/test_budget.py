"""Sixty steps: what is learned is measured from the loss of guessing, the plateau is waited out, the edge confirmed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.rehearsal import Rate
from edgewise.rehearsal.baseline import guess
from edgewise.rehearsal.learning_rate import NOISY, RATE, ladder_start
from edgewise.rehearsal.rate import ROSE, Moment, Rehearsal, edge, own, with_reasons
from tests.support import rehearsal_networks as networks

LABELS = torch.tensor([0, 0, 0, 1, 2, 2])
SOFT = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).repeat(3, 1)
SMOOTH = -(0.9 + 0.1 / 3) * math.log(0.9 + 0.1 / 3) - 2 * (0.1 / 3) * math.log(0.1 / 3)


def ask(loss: Any = networks.text_loss, model: nn.Module | None = None, **options: Any) -> Rate:
    model = networks.small() if model is None else model
    rows = networks.batches(40)
    return edgewise.learning_rate(model, rows, loss, **{"progress": False, **options})


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda m, x: F.cross_entropy(m(x), LABELS), 0.0),
        (lambda m, x: F.cross_entropy(m(x), LABELS, label_smoothing=0.1), SMOOTH),
        (lambda m, x: F.cross_entropy(m(x), SOFT), math.log(2) / 2),
        (lambda m, x: F.nll_loss(F.log_softmax(m(x), -1), LABELS) + 100, 100.0),
        (lambda m, x: F.binary_cross_entropy_with_logits(m(x), SOFT), math.log(2) / 3),
        (lambda m, x: F.mse_loss(m(x), 3 * SOFT), 0.0),
        (lambda m, x: -F.log_softmax(m(x), -1)[torch.arange(6), LABELS].mean(), None),  # by hand
    ],
)
def test_what_the_labels_allow_has_its_closed_form(loss: Any, expected: float | None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    found = guess(model, model, loss, [torch.randn(6, 4)])
    assert found.floor is None if expected is None else found.floor == pytest.approx(expected, abs=1e-5)


def test_what_is_added_to_the_loss_does_not_change_the_answer() -> None:
    """A hundred more: 2 % of the loss would be 2 nat, and nothing would count as learned."""
    one, other = ask(), ask(lambda m, x: networks.text_loss(m, x) + 100.0)
    assert one.best is not None and other.best == pytest.approx(one.best, rel=1e-3)
    assert other.learned and other.floor == pytest.approx(100.0, abs=1e-4)


def test_a_loud_start_is_measured_from_guessing() -> None:
    """From 60 nat down to 2.5 it learned nothing; below that it has."""

    class Loud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = networks.small()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.net(x)
            return 40 * logits

    rate = ask(model=Loud())
    assert rate.start.loss > 20
    assert rate.learned == (min(r.end for r in rate.rehearsals) < 0.995 * rate.guess)
    assert (rate.best is not None) or "of guessing frequencies" in str(rate.reason)


def test_the_budget_is_kept_and_the_first_rehearsal_continued() -> None:
    rate = ask()
    assert rate.passes <= 60
    first = max(rate.rehearsals, key=lambda r: len(r.losses))
    assert len(first.losses) == 20 and first.compared == 10
    assert first.loss == first.at(10).loss != first.end


def test_rehearsals_on_the_plateau_are_continued_until_one_leaves_it() -> None:
    first, second, spent = _search(done=10), _search(done=40), _search(done=50)
    assert first._continued(_rehearsal(10, 2.45)) and first._continued(_rehearsal(10, 1.5))
    assert not first._continued(_rehearsal(10, 90.0))  # diverged
    assert not first._continued(_rehearsal(20, 2.499))  # it does not fall: lower rates leave it sooner
    assert first._continued(_rehearsal(20, 2.499, before=2.6))
    second.rehearsals = spent.rehearsals = {0.0: _rehearsal(20, 2.499)}
    assert second._continued(_rehearsal(20, 2.499)) and not second._continued(_rehearsal(20, 2.4))
    assert not spent._continued(_rehearsal(30, 2.499))  # one more rate is to be tried
    second.rehearsals = {0.0: _rehearsal(20, 2.4)}
    assert not second._continued(_rehearsal(10, 2.499))  # the network learns


def _rehearsal(steps: int, end: float, before: float | None = None) -> Rehearsal:
    middle = end if before is None else before
    moments = (Moment(10, middle, 1.0, 0.4, 1.0), Moment(steps, end, 1.0, 0.4, 1.0))
    return Rehearsal(1e-3, (end,) * steps, moments, None, compared=10)


def _search(done: int) -> Any:
    from edgewise.rehearsal.ladder import Guess
    from edgewise.rehearsal.learning_rate import _Search

    search = _Search.__new__(_Search)
    search.plan, search.most, search.passes = SimpleNamespace(steps=10), 6, done
    search.rehearsals, search.scale = {}, 2.5
    search.start = SimpleNamespace(loss=2.6, separation=0.5, output=1.0)
    search.guess = Guess(2.5, "guessing frequencies", floor=0.0)
    return search


def test_a_loss_that_rises_again_as_it_is_continued_is_too_large() -> None:
    start = Moment(0, 3.0, 0.0, 0.5, 1.0)
    moments = (Moment(10, 2.0, 1.0, 0.5, 1.0), Moment(20, 2.6, 1.0, 0.5, 1.0))
    late = Rehearsal(1e-2, (2.5,) * 20, moments, None, compared=10)
    good = Rehearsal(4e-3, (2.5,) * 10, (Moment(10, 2.1, 1.0, 0.5, 1.0),), None)
    judged = with_reasons([good, late], lambda r: r.level, start, 3.0)
    assert judged[0].reason is None and (judged[1].reason, judged[1].left_at) == (ROSE, 20)


def test_no_rate_is_named_above_one_that_diverged() -> None:
    """A larger rate that learned by luck does not count."""
    start = Moment(0, 3.0, 0.0, 0.5, 1.0)

    def run(rate: float, end: float) -> Rehearsal:
        return Rehearsal(rate, (3.0,) * 10, (Moment(10, end, 1.0, 0.5, 1.0),), None)

    rows = [run(1e-3, 2.5), run(2.5e-3, 30.0), run(6e-3, 1.0)]
    judged = with_reasons(rows, lambda r: r.level, start, 3.0)
    assert [r.reason is None for r in judged[:2]] == [True, False] and judged[1].reason == ROSE


class Fragile(nn.Module):
    """Learns at every rate on the first batches; on others it diverges above a rate."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([2.0]))

    def forward(self, batch: Tensor) -> Tensor:
        return self.x.square().sum() * batch.mean()


def test_the_edge_is_confirmed_on_other_batches() -> None:
    """Batches are easy at first and hard at last: the second rehearsal begins with the hard ones."""
    easy, hard, held = [torch.full((1,), c) for c in (0.5, 4.0, 1.0)]
    rows = [easy] * 40 + [hard] * 10 + [held] * 6
    ask_with: dict[str, Any] = {"optimizer": torch.optim.SGD, "progress": False, "rates": 8}
    rate = edgewise.learning_rate(Fragile(), rows, lambda m, x: m(x), **ask_with)
    plain = edgewise.learning_rate(Fragile(), [easy] * 50 + [held] * 6, lambda m, x: m(x), **ask_with)
    assert plain.edge is not None and rate.edge is not None
    assert plain.confirmed and rate.edge < 0.7 * plain.edge
    assert rate.best is not None and rate.best < rate.edge


@pytest.mark.parametrize(
    ("rate", "words"),
    [(1e-5, "times below what this network takes"), (3.0, "times above what this network takes")],
)
def test_the_users_own_rate_comes_first(rate: float, words: str) -> None:
    answer = ask(own=rate)
    assert answer.best is not None and answer.own is not None and answer.own.rate == rate
    assert str(answer).startswith("Yours is") and words in str(answer)
    assert answer.passes <= 60 and Rate.from_json(answer.to_json()) == answer
    ratio = max(answer.best / rate, rate / answer.best)
    number = float(own(answer)[0].split("about ")[1].split(" times")[0].replace(",", ""))
    assert number == pytest.approx(ratio, rel=0.35)


def test_an_own_rate_nearby_is_a_rung_and_costs_nothing() -> None:
    usual = ask()
    assert usual.best is not None
    near = ask(own=usual.rehearsals[1].rate * 1.1)
    assert near.own in near.rehearsals
    close = ask(own=usual.best)
    assert close.best is not None and "within a factor of 2" in own(close)[0]


def test_undecided_gives_no_advice_on_the_own_rate() -> None:
    generator = torch.Generator().manual_seed(1)
    shape = (8, networks.TOKENS + 1)
    dice = [torch.randint(networks.SYMBOLS, shape, generator=generator) for _ in range(40)]
    rate = edgewise.learning_rate(networks.small(), dice, networks.text_loss, own=1e-5, progress=False)
    assert rate.best is None and own(rate) == [] and "Yours" not in str(rate)


def test_a_schedule_allows_more_and_without_one_the_screen_says_so() -> None:
    constant, cosine = ask(schedule="constant"), ask(schedule="cosine")
    assert constant.best is not None and cosine.best is not None
    assert 1.2 < cosine.best / constant.best < 1.05 * RATE["cosine"] / RATE["constant"]
    assert "cosine" in edge(constant)[-1] and edge(constant)[-1] in str(constant)
    assert "decay" not in str(cosine)


def test_finished_rehearsals_are_not_trained_again(tmp_path: Path) -> None:
    file, trained = tmp_path / "rate.json", []

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        if model.training:
            trained.append(1)
        return networks.text_loss(model, batch)

    first = ask(loss, resume=file)
    kept = json.loads(file.read_text())
    kept["rehearsals"].popitem()
    file.write_text(json.dumps(kept))
    before = len(trained)
    again = ask(loss, resume=file)
    assert again.best == first.best and again.rehearsals == first.rehearsals and again.passes == first.passes
    assert 10 <= len(trained) - before <= 21 < before
    with pytest.raises(edgewise.BadInput, match="rehearsals of another training"):
        ask(loss, resume=file, clip=1.0)
    file.write_text("{}")
    with pytest.raises(edgewise.BadInput, match="does not hold rehearsals"):
        ask(loss, resume=file)


def test_a_step_with_more_labels_takes_a_larger_rate() -> None:
    """Every batch twice over has the same gradient and twice as many labels."""

    def start(times: int, **options: Any) -> float:
        batches = [b.repeat(times, 1) for b in networks.batches(8)]
        return ladder_start(networks.small(), batches, networks.text_loss, **options)

    assert start(2) == pytest.approx(2**NOISY * start(1), rel=1e-4)
    assert start(2, accumulate=2) == pytest.approx(start(4), rel=0.05)
    assert start(64) == pytest.approx(start(16), rel=1e-3)  # beyond what was measured


def test_a_quiet_start_is_not_taken_for_room() -> None:
    """Branches that begin at zero (ReZero) move their stream hardly at all in the first step."""
    starts = {}
    for gain in (1.0, 0.0):
        model = networks.small()
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and parameter.dim() == 2 and "blocks" in name:
                parameter.data *= gain
        starts[gain] = ladder_start(model, networks.batches(8), networks.text_loss)
    assert starts[1.0] <= starts[0.0] < 3 * starts[1.0]
