"""After a reading everything is as before: also after an exception, and after an alarm at any moment."""

from __future__ import annotations

import copy
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.interrupts import check
from edgewise.models.behavior.read import read
from edgewise.models.state import RandomStreams, preserved
from tests.models.behavior import strangers
from tests.models.behavior.strangers import blocks, ids
from tests.support.alarms import Alarm, Ring, Strikes, alarms, interrupted
from tests.support.unchanged import differences, everything, prepared


def evaluated(model: nn.Module, work: Callable[[], Any]) -> None:
    with preserved(model, gradients=False):
        work()


class Caching(nn.Module):
    """Writes into itself when run: a counter, a buffer in place, a new buffer, a new attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = blocks()
        self.register_buffer("seen", torch.zeros(4))
        self.calls = 0

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1.0
        self.register_buffer("late", torch.ones(2))
        self.last = ids
        return self.inner(ids)


def models() -> dict[str, tuple[nn.Module, Any]]:
    torch.manual_seed(0)
    return {
        "plain": (blocks(), ids(8)),
        "silent": (strangers.Diffusion(), (torch.randn(2, 3, 16, 16), torch.rand(2))),
        "caching": (Caching(), ids(8)),
        "torch": (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2), None),
    }


@pytest.mark.parametrize("name", ["plain", "silent", "caching", "torch"])
def test_after_success(name: str) -> None:
    model, batch = models()[name]
    before = everything(prepared(model))
    batch_before = copy.deepcopy(batch)
    read(model, batch)
    assert differences(before, everything(model)) == []
    given = [] if batch is None else [batch] if isinstance(batch, Tensor) else list(batch)
    copies = [] if batch is None else [batch_before] if isinstance(batch, Tensor) else list(batch_before)
    assert all(torch.equal(a, b) and not vars(a) for a, b in zip(given, copies, strict=True))


def test_what_labels_write_into_the_config_is_taken_back() -> None:
    from tests.support.models import FAMILIES, batch

    model = FAMILIES["vit"]()
    before = everything(model)
    read(model, batch("vit"))
    assert differences(before, everything(model)) == []
    model(**batch("vit"))
    assert "config" in differences(before, everything(model))


def test_the_detector_sees_what_a_forward_pass_leaves() -> None:
    model, batch = models()["caching"]
    before = everything(prepared(model))
    model(batch)
    changed = differences(before, everything(model))
    assert "buffer seen" in changed and "attributes " in changed and "buffer late" in changed


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_after_an_exception(error: type[BaseException]) -> None:
    model, _ = models()["caching"]
    before = everything(prepared(model))

    def work() -> None:
        model(ids(8))
        raise error("on purpose")

    with pytest.raises(error, match="on purpose"):
        evaluated(model, work)
    assert differences(before, everything(model)) == []


def test_inside_other_modes() -> None:
    model, batch = models()["plain"]
    prepared(model)
    with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", torch.bfloat16):
        before = everything(model)
        stack = read(model, batch).stacks[0]
        assert differences(before, everything(model)) == []
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert stack.norm == "pre" and not stack.not_read


@pytest.fixture
def alarm() -> Iterator[Ring]:
    with alarms() as ring:
        yield ring


@pytest.mark.parametrize("name", ["plain", "silent", "caching", "torch"])
def test_an_alarm_at_any_moment(name: str) -> None:
    model, batch = models()[name]
    rang, altered = interrupted(prepared(model), lambda: read(model, batch), 8, seed=1)
    assert altered == [] and rang >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "silent", "caching", "torch"])
def test_five_hundred_alarms(name: str) -> None:
    model, batch = models()[name]
    rang, altered = interrupted(prepared(model), lambda: read(model, batch), 125, seed=2)
    assert altered == [] and rang >= 80


def test_an_alarm_in_every_line_of_the_restoring(alarm: Ring) -> None:
    """Alarms so early or so late that they fall between the lines of entering and leaving."""
    model, _ = models()["caching"]
    before = everything(prepared(model))
    strikes = Strikes(lambda: evaluated(model, lambda: model(ids(8))))
    for step in range(150):
        strikes.strike(alarm, 0.2 + step / 150)
        assert differences(before, everything(model)) == []
    assert strikes.rang > 20


def test_a_second_alarm_waits_until_everything_is_back(alarm: Ring) -> None:
    model, _ = models()["caching"]
    before = everything(prepared(model))

    def work() -> None:
        model(ids(8))
        try:
            signal.raise_signal(signal.SIGALRM)
            check()
        finally:
            signal.raise_signal(signal.SIGALRM)  # while the first is on its way up

    with pytest.raises(Alarm) as second:
        evaluated(model, work)
    assert isinstance(second.value.__context__, Alarm)
    assert differences(before, everything(model)) == []
    alarm(0)


def test_an_alarm_that_the_model_swallows_is_raised_all_the_same(alarm: Ring) -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = blocks()

        def forward(self, ids: Tensor) -> Tensor:
            try:
                signal.raise_signal(signal.SIGALRM)
            except Exception:  # noqa: BLE001 - what careless code does
                self.calm = True
            return self.inner(ids)

    alarm(0)
    with pytest.raises(Alarm):
        read(Careless(), ids(8))


def test_statistics_of_batch_norms_are_put_back() -> None:
    """torch's batch norm writes its running mean without counting a version."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    with preserved(norm):
        norm(torch.randn(8, 4))
        assert bool(norm.running_mean.any())
    assert not bool(norm.running_mean.any()) and int(norm.num_batches_tracked) == 0


class Counting(nn.Module):
    """Writes into its own parameter when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.calls += 1
        return x * self.calls


@pytest.mark.parametrize("gradients", [False, True])
def test_a_parameter_that_is_written_while_a_model_is_read_is_an_error(gradients: bool) -> None:
    model = Counting()
    with pytest.raises(RuntimeError, match="calls was written"), preserved(model, gradients=gradients):
        model(torch.ones(1))
    with preserved(model):  # which may change weights: who does so restores them
        model(torch.ones(1))


def test_random_streams_know_whether_anything_was_drawn() -> None:
    for draw in (lambda: torch.rand(1), random.random, lambda: np.random.rand()):  # noqa: NPY002
        streams = RandomStreams(all_devices=False)
        assert not streams.moved()
        draw()
        assert streams.moved()
        streams.restore()
        assert not streams.moved()


def test_nothing_else_keeps_random_streams() -> None:
    """What may not import it: networks, and processes of their own that draw one thing."""
    source = Path(edgewise.__file__).parent
    found = {
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if "fork_rng" in path.read_text(encoding="utf-8")
    }
    assert found <= {"nets", "cli", "study"}
