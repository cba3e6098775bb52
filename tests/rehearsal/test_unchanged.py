"""A rehearsal leaves no trace: model, optimizer, scheduler, random streams, batches, in every mode of training."""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import edgewise
from edgewise.models.model_map import ModelMap
from edgewise.rehearsal.short_training import BatchSplit, TrainingSettings, training_step
from tests.support.alarms import alarms, rings
from tests.support.rehearsal_networks import batches, small, text_loss
from tests.support.unchanged import differences, everything, prepared

SHORT: dict[str, Any] = {"steps": 4, "rates": 3, "progress": False}


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return copy.deepcopy(optimizer.state_dict())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, rows: list[Tensor]
) -> list[Tensor]:
    """The weights after a few more steps: whatever a rehearsal had touched would show here."""
    for batch in rows:
        optimizer.zero_grad()
        text_loss(model, batch).backward()
        optimizer.step()
        scheduler.step()
    return [p.detach().clone() for p in model.parameters()]


def test_training_goes_on_as_if_nothing_had_been() -> None:
    """In the middle of a training with a scheduler and dropout: the same weights, bit for bit, with and without."""
    ends = []
    for ask in (False, True):
        model = nn.ModuleList([small(), nn.Dropout(0.3)])
        net, drop = model

        def loss(m: nn.Module, batch: Tensor) -> Tensor:
            return text_loss(m[0], batch) + 0.1 * m[1](torch.ones(8)).mean()  # type: ignore[index]

        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        torch.manual_seed(3)
        trained(net, optimizer, scheduler, batches(4))
        before = everything(prepared(net)), state_of(optimizer), copy.deepcopy(scheduler.state_dict())
        if ask:
            edgewise.learning_rate(model, batches(), loss, optimizer=optimizer, **SHORT)
            assert differences(before[0], everything(net)) == []
            assert same(before[1], state_of(optimizer))
            assert before[2] == scheduler.state_dict()
        for p in net.parameters():
            p.requires_grad_(True)
        ends.append(trained(net, optimizer, scheduler, batches(4, seed=1)))
        ends[-1].append(drop(torch.ones(50)))  # dropout reads the global stream
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"autocast": torch.bfloat16},
        {"autocast": torch.float16},
        {"accumulate": 3},
        {"clip": 0.1},
        {"warmup": 2},
        {"optimizer": torch.optim.SGD},
    ],
    ids=str,
)
def test_modes_of_training_leave_the_model_alone(options: dict[str, Any]) -> None:
    model = prepared(small())
    before = everything(model)
    rate = edgewise.learning_rate(model, batches(), text_loss, **SHORT, **options)
    assert differences(before, everything(model)) == []
    assert rate.passes <= SHORT["steps"] * SHORT["rates"] and len(rate.rehearsals) == 3


def test_accumulation_is_one_large_batch() -> None:
    """Three steps of SGD on the mean gradient of three batches, against the same sequences in one batch."""
    rows = batches(18)
    joined = [torch.cat(rows[k : k + 3]) for k in range(0, 12, 3)]
    losses = []
    for train, accumulate in ((rows[:12], 3), (joined, 1)):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        plan = TrainingSettings(text_loss, BatchSplit(tuple(train), (rows[-1],)), 4, accumulate=accumulate)
        losses.append([training_step(model, optimizer, plan, step) for step in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][3] < losses[0][0] - 0.1


def test_half_precision_is_rehearsed() -> None:
    """bfloat16 rounds: losses differ from those in full precision, and not by much."""
    full, half = (
        edgewise.learning_rate(small(), batches(), text_loss, autocast=kind, **SHORT).rehearsals[0].losses
        for kind in (None, torch.bfloat16)
    )
    assert full != half
    assert half == pytest.approx(full, rel=0.02)


def test_a_model_whose_attribute_cannot_be_copied() -> None:
    """A lock cannot be copied and is shared; the parameters of the copy are its own."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model.lock = threading.Lock()  # type: ignore[assignment]
    model[2].also = [model[0].weight]  # type: ignore[assignment]
    before = [p.detach().clone() for p in model.parameters()]
    rows = [torch.randn(8, 4) for _ in range(10)]
    rate = edgewise.learning_rate(
        model, rows, lambda m, x: (m(x) - x.sum(1, keepdim=True)).square().mean(), steps=4, rates=3
    )
    assert rate.passes >= 12
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_map_of_a_model_serves_as_the_model() -> None:
    where = ModelMap(small())
    assert edgewise.learning_rate(where, batches(12), text_loss, **SHORT).passes >= 12
    assert where._reading is not None  # read once, on the map that was given


def test_clipping_is_rehearsed() -> None:
    """A gradient that is cut a million times shorter takes a rate so many times as large."""
    sgd = {"optimizer": torch.optim.SGD, "progress": False}
    free, clipped = (
        edgewise.learning_rate(small(), batches(), text_loss, clip=clip, **sgd) for clip in (None, 1e-6)
    )
    assert free.best is not None and clipped.best is not None
    assert 1e5 < clipped.best / free.best < 1e8
    longest = clipped.rehearsals[0].rate * 1e-6 * 10
    model, start = small(), [p.detach().clone() for p in small().parameters()]
    optimizer = torch.optim.SGD(model.parameters(), clipped.rehearsals[0].rate)
    for batch in batches()[:10]:
        optimizer.zero_grad()
        text_loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        optimizer.step()
    moved = sum(
        float((p.detach() - s).square().sum()) for p, s in zip(model.parameters(), start, strict=True)
    )
    assert moved**0.5 <= longest * 1.01


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model(backend: str) -> None:
    torch._dynamo.reset()
    model = torch.compile(small(), backend=backend)
    text_loss(model, batches(1)[0]).backward()
    before = [p.detach().clone() for p in model.parameters()]
    compiled = edgewise.learning_rate(model, batches(), text_loss, **SHORT)
    plain = edgewise.learning_rate(small(), batches(), text_loss, **SHORT)
    assert compiled.best == pytest.approx(plain.best, rel=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_a_loader_gives_the_same_batches_afterwards() -> None:
    """Its own generator and the global stream are put back; so are those of its sampler."""
    orders = []
    for ask in (False, True):
        torch.manual_seed(5)
        rows = torch.cat(batches(20, size=4))
        loader = DataLoader(rows, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))  # type: ignore[arg-type]
        if ask:
            edgewise.learning_rate(small(), loader, text_loss, **SHORT)
            torch.manual_seed(5)
        orders.append(torch.cat(list(loader)))
    assert torch.equal(*orders)


def test_an_iterator_is_read_once_and_said_so() -> None:
    rows = iter(batches(40))
    rate = edgewise.learning_rate(small(), rows, text_loss, **SHORT)
    again = edgewise.learning_rate(small(), batches(40), text_loss, **SHORT)
    assert rate.best == again.best
    assert any("first 10 batches are gone" in note for note in rate.notes)  # 4 for a rehearsal, 6 held back
    assert not any("gone" in note for note in again.notes)
    assert torch.equal(next(rows), batches(40)[10])


def test_control_c_keeps_what_was_learned() -> None:
    """A real signal in the second rehearsal: the answer rests on the first, and nothing is left behind."""
    model = small()
    before, handler = everything(model), signal.signal(signal.SIGINT, signal.default_int_handler)
    calls = iter(range(10**6))

    def progress(_: float) -> None:
        if next(calls) == 10:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        rate = edgewise.learning_rate(model, batches(), text_loss, steps=8, rates=3, progress=progress)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert rate.interrupted and len(rate.rehearsals) == 1 and rate.best is not None
    assert "interrupted" in str(rate)
    assert (
        differences(
            {k: v for k, v in before.items() if k != "handlers"},
            {k: v for k, v in everything(model).items() if k != "handlers"},
        )
        == []
    )


def test_control_c_before_the_first_rate_is_an_interrupt() -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            edgewise.learning_rate(
                small(),
                batches(),
                text_loss,
                steps=4,
                rates=3,
                progress=lambda _: os.kill(os.getpid(), signal.SIGINT),
            )
    finally:
        signal.signal(signal.SIGINT, handler)


def test_an_alarm_at_any_moment_leaves_the_model_alone() -> None:
    model = small()
    before = everything(model)
    rang = 0
    with alarms() as set_alarm:
        before = everything(model)
        for tenths in range(1, 9):
            rang += rings(
                set_alarm, 0.05 * tenths, lambda: edgewise.learning_rate(model, batches(), text_loss, **SHORT)
            )
            assert differences(before, everything(model)) == []
    assert rang > 0


def test_progress_and_the_estimate() -> None:
    fractions: list[float] = []
    rate = edgewise.learning_rate(small(), batches(), text_loss, steps=4, rates=4, progress=fractions.append)
    assert fractions == sorted(fractions) and fractions[0] > 0 and fractions[-1] <= 1
    assert rate.estimate > 0 and rate.seconds > 0 and rate.passes == len(fractions)


def endless() -> Iterator[Tensor]:
    while True:
        yield from batches(4)


def test_an_endless_iterator_ends() -> None:
    assert edgewise.learning_rate(small(), endless(), text_loss, **SHORT).best is not None
