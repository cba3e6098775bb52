"""The training loop: on a problem with a known answer, and its choice of rates."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.study.train import TrainingRun, evaluate, seeded, thinned, train, trapezoid


class Bowl(nn.Module):
    """Loss |w|^2 / 2, whatever the batch; SGD with momentum 0.9 is stable for rates below 3.8."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4) + 1)

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, None]:  # noqa: ARG002
        return 0.5 * self.w.square().sum() + 0.0 * inputs.sum(), None


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(1, generator=generator), torch.zeros(1)


def test_momentum_as_written_out() -> None:
    tuned = train(seeded(Bowl, 0), batches, optimizer="sgd", rates=[0.1], steps=5)
    w, speed, losses = seeded(Bowl, 0)().w.detach(), torch.zeros(4), []
    for _ in range(5):
        losses.append(0.5 * float(w.square().sum()))
        speed = 0.9 * speed + w
        w = w - 0.1 * speed
    assert tuned.best.losses == pytest.approx(losses, rel=1e-5)
    assert tuned.best.first_gradient_norm == pytest.approx(math.sqrt(2 * losses[0]), rel=1e-5)


def test_the_best_rate_wins_and_the_broken_one_costs_nothing() -> None:
    tuned = train(seeded(Bowl, 0), batches, optimizer="sgd", rates=[1e-4, 0.05, 50.0], steps=40)
    assert tuned.best.rate == 0.05
    assert not tuned.best.diverged
    by_rate = {rate: (steps, loss) for rate, steps, loss in tuned.tried}
    assert by_rate[0.05][0] == 40
    assert by_rate[1e-4][0] == 10
    assert by_rate[50.0] == (2, math.inf)


def test_all_rates_broken_is_an_tuned() -> None:
    tuned = train(seeded(Bowl, 0), batches, optimizer="sgd", rates=[50.0], steps=40)
    assert tuned.best.diverged
    assert tuned.best.final() == math.inf


class Trap(Bowl):
    """Falls fast at a large rate; from step 12 on whoever went far sits above where it began."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.first = 0, self.w.detach().clone()

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, None]:
        self.seen += 1
        loss, _ = super().forward(inputs, labels)
        far = float((self.w.detach() - self.first).abs().max()) > 0.5
        return loss + (0.75 * float(self.first.square().sum()) if far and self.seen > 12 else 0.0), None


def test_a_rate_that_breaks_late_gives_way() -> None:
    tuned = train(seeded(Trap, 0), batches, optimizer="sgd", rates=[0.0005, 0.1], steps=40)
    assert tuned.best.rate == 0.0005
    assert [steps for _, steps, _ in tuned.tried] == [40, 40]


def test_a_second_look_takes_a_third_of_the_rate() -> None:
    easy = train(seeded(Trap, 0), batches, optimizer="sgd", rates=[0.0016], steps=40, second_look=1e9)
    assert len(easy.tried) == 1
    hard = train(seeded(Trap, 0), batches, optimizer="sgd", rates=[0.1], steps=40, second_look=1e-9)
    assert [rate for rate, _, _ in hard.tried] == [0.1, pytest.approx(0.03)]
    assert hard.best.final() == min(loss for _, _, loss in hard.tried)


def test_the_same_batches_for_every_rate_and_seed_of_weights() -> None:
    """A run that was interrupted by a trial equals one that was not."""
    whole = train(seeded(Bowl, 3), batches, rates=[0.01], steps=30, schedule=trapezoid)
    parts = train(seeded(Bowl, 3), batches, rates=[0.01, 1e-6], steps=30, schedule=trapezoid)
    assert parts.best.losses == whole.best.losses
    before = torch.get_rng_state()
    first, second = seeded(Bowl, 1)(), seeded(Bowl, 1)()
    assert torch.equal(first.w, second.w)
    assert torch.equal(before, torch.get_rng_state())


def test_schedule_and_clip() -> None:
    assert trapezoid(0.0) < 0.5
    assert trapezoid(0.3) == 1.0
    assert trapezoid(0.75) == pytest.approx(0.5)
    clipped = train(seeded(Bowl, 0), batches, optimizer="sgd", rates=[0.1], steps=2, clip=1e-3).best
    assert clipped.losses[0] - clipped.losses[1] == pytest.approx(
        1e-4 * math.sqrt(2 * clipped.losses[0]), rel=0.01
    )


def test_small_things() -> None:
    run = TrainingRun(1.0, Bowl(), None, losses=[4.0, 2.0])  # type: ignore[arg-type]
    assert run.final() == 3.0
    assert thinned([1.0, 3.0, 5.0, 7.0], count=2) == [2.0, 6.0]
    model = Bowl().train()
    expected = 0.5 * float(model.w.detach().square().sum())
    assert evaluate(model, (torch.zeros(1), torch.zeros(1))) == pytest.approx(expected)
    assert model.training


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "lion"}, "one of sgd, adamw, .*got 'lion'"),
        ({"rates": []}, "rates"),
        ({"rates": [0.1, 0.1]}, "rates"),
        ({"rates": [-1.0]}, "rates"),
        ({"steps": 0}, "steps = 0"),
        ({"trial": 0.0}, "trial = 0"),
        ({"trial": 1.1}, "trial = 1.1"),
    ],
)
def test_bad_input(options: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        train(seeded(Bowl, 0), batches, **options)  # type: ignore[arg-type]


def test_a_trial_may_be_one_step_and_a_training_has_200() -> None:
    two = train(seeded(Bowl, 0), batches, rates=[0.1, 1e-6], steps=2)
    assert [steps for _, steps, _ in two.tried] == [2, 1]
    assert len(train(seeded(Bowl, 0), batches).best.losses) == 200
