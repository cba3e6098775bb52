"""The training loop: on a problem with a known answer, and its choice of rates."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from edgewise.errors import BadInput
from edgewise.nets import build
from edgewise.nouns.architecture import transformer
from edgewise.study.train import (
    TrainingRun,
    descend_stack,
    evaluate,
    seeded,
    thinned,
    train,
    trapezoid,
)


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


SIZES = dict(depth=2, width=16, heads=2, tokens=4, norm="post")
ALONE = {
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, rate),
    "momentum": lambda parameters, rate: torch.optim.SGD(parameters, rate, momentum=0.9),
    "adam": lambda parameters, rate: torch.optim.Adam(parameters, rate),
    "adamw": lambda parameters, rate: torch.optim.AdamW(parameters, rate, weight_decay=0.01),
}


def small_network(seed: int) -> nn.Module:
    make = seeded(build, seed, transformer(**SIZES), inputs=3, outputs=5, vectors=True, pooled=True)
    return make().double()


def member_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(count, 6, 4, 3, generator=generator, dtype=torch.float64),
            torch.randint(5, (count, 6), generator=generator),
        )
        for _ in range(12)
    ]


@pytest.mark.parametrize("optimizer", ALONE)
def test_a_stack_is_what_its_members_are_alone(optimizer: str) -> None:
    """Three starts with rates and batches of their own, against torch's optimizers, in double precision."""
    rates, steps = torch.tensor([0.003, 0.01, 0.02], dtype=torch.float64), 12
    data = member_batches(3)
    every = [dict(small_network(seed).named_parameters()) for seed in range(3)]
    weights = {name: torch.stack([one[name] for one in every]) for name in every[0]}
    bare = small_network(0)

    def loss(own: dict[str, Tensor], *batch: Tensor) -> Tensor:
        return functional_call(bare, own, batch)[0]

    losses, last = descend_stack(
        loss, weights, lambda t: data[t], optimizer=optimizer, rates=rates, steps=steps, schedule=trapezoid
    )
    for k in range(3):
        model = small_network(k)
        method = ALONE[optimizer](model.parameters(), float(rates[k]))
        for t, (inputs, labels) in enumerate(data):
            method.param_groups[0]["lr"] = float(rates[k]) * trapezoid(t / steps)
            value = model(inputs[k], labels[k])[0]
            assert float(losses[t, k]) == pytest.approx(float(value.detach()), rel=1e-10)
            method.zero_grad()
            value.backward()
            method.step()
        for name, weight in model.named_parameters():
            torch.testing.assert_close(last[name][k], weight.detach(), rtol=1e-7, atol=1e-9)


def test_a_member_that_diverges_leaves_the_others_alone() -> None:
    def bowl(weights: dict[str, Tensor], scale: Tensor) -> Tensor:
        return 0.5 * scale * weights["w"].square().sum()

    seen: list[int] = []
    start, rates = {"w": torch.ones(2, 3)}, torch.tensor([0.1, 1e30])
    losses, last = descend_stack(
        bowl,
        start,
        lambda _: (torch.tensor(1.0),),
        optimizer="sgd",
        rates=rates,
        steps=9,
        own=False,
        look=lambda step, _: seen.append(step),
    )
    assert not last["w"][1].isfinite().any() and seen == [*range(9), 9]
    assert losses[:, 0].tolist() == pytest.approx([1.5 * 0.81**t for t in range(9)])
    assert start["w"].tolist() == [[1.0] * 3] * 2  # what was given is not changed


def test_a_stack_rejects_what_does_not_fit() -> None:
    with pytest.raises(BadInput, match="optimizer must be one of"):
        descend_stack(len, {}, tuple, optimizer="lion", rates=torch.ones(1), steps=1)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"expected \(2,\) first"):
        descend_stack(len, {"w": torch.ones(1)}, tuple, optimizer="sgd", rates=torch.ones(2), steps=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_runs_on_the_same_data_share_it(optimizer: str) -> None:
    """Two problems with three starts and rates each, as (2, 3), are the six runs with their data repeated."""
    generator = torch.Generator().manual_seed(1)
    X, y, w = (
        torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in ((5, 4), (5,), (3, 4))
    )
    rates = torch.tensor([[0.01, 0.02, 0.05], [0.03, 0.01, 0.02]], dtype=torch.float64)

    def together(weights: dict[str, Tensor], X: Tensor, y: Tensor) -> Tensor:
        return (weights["w"] @ X.T - y).square().sum(-1)

    def alone(weights: dict[str, Tensor], X: Tensor, y: Tensor) -> Tensor:
        return (X @ weights["w"] - y).square().sum()

    how = {"optimizer": optimizer, "steps": 8}
    losses, last = descend_stack(together, {"w": w}, lambda _: (X, y), rates=rates, **how)
    repeated = X.repeat_interleave(3, 0), y.repeat_interleave(3, 0)
    each, end = descend_stack(alone, {"w": w.flatten(0, 1)}, lambda _: repeated, rates=rates.flatten(), **how)
    torch.testing.assert_close(losses.flatten(1), each)
    torch.testing.assert_close(last["w"].flatten(0, 1), end["w"])
