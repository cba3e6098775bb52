"""After a reading everything is as before: also after an exception, and after an alarm at any moment."""

from __future__ import annotations

import copy
import random
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from edgewise.adapters.reading.read import read
from edgewise.adapters.reading.restore import GLOBAL_HOOKS, undisturbed
from tests.adapters.reading import strangers
from tests.adapters.reading.strangers import blocks, ids


class Alarm(Exception):
    """An ordinary exception, so that whoever catches exceptions broadly is found out."""


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


def prepared(model: nn.Module) -> nn.Module:
    """In train mode but for one part, with gradients, a frozen parameter and a hook of the user's own."""
    model.train()
    parts = list(model.modules())
    parts[len(parts) // 2].eval()
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 0.5) if i % 2 else None
        parameter.requires_grad_(i != 0)
    parts[-1].register_forward_hook(_own_hook)
    return model


def _own_hook(module: nn.Module, args: Any, output: Any) -> None: ...


def everything(model: nn.Module) -> dict[str, Any]:
    """All that must not change, as values or as identities."""
    state: dict[str, Any] = {f"value {k}": v.detach().clone() for k, v in model.named_parameters()}
    state |= {f"buffer {k}": v.clone() for k, v in model.named_buffers()}
    for name, parameter in model.named_parameters():
        state |= {f"gradient {name}": (id(parameter.grad), copy.deepcopy(parameter.grad)), f"id {name}": id(parameter)}
        state[f"flag {name}"] = parameter.requires_grad
    for name, module in model.named_modules():
        state[f"mode {name}"] = module.training
        plain = {k: v for k, v in module.__dict__.items() if isinstance(v, (bool, int, float, str, type(None)))}
        state |= {f"attributes {name}": (sorted(module.__dict__), plain), f"hooks {name}": list(module._forward_hooks)}
    return state | process()


def process() -> dict[str, Any]:
    handlers = {s: signal.getsignal(s) for s in signal.valid_signals()}
    return {
        "python": random.getstate(), "numpy": str(np.random.get_state()), "torch": torch.get_rng_state(),  # noqa: NPY002
        "gradients": torch.is_grad_enabled(), "function modes": torch._C._len_torch_function_stack(),
        "global hooks": [list(getattr(module_hooks, name)) for name in GLOBAL_HOOKS], "handlers": handlers,
        "fast path": torch.backends.mha.get_fastpath_enabled(), "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(), "deterministic": torch.are_deterministic_algorithms_enabled(),
    }  # fmt: skip


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    lost = before.keys() ^ after.keys()
    return [*lost, *(name for name in before.keys() & after.keys() if not same(before[name], after[name]))]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


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

    def work(signals: Any) -> None:  # noqa: ARG001
        model(ids(8))
        raise error("on purpose")

    with pytest.raises(error, match="on purpose"):
        undisturbed(model, work)
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
def alarm() -> Iterator[Callable[[float], None]]:
    def ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise Alarm

    handler = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


def rings(alarm: Callable[[float], None], seconds: float, work: Callable[[], Any]) -> bool:
    """Whether the alarm rang while this was done."""
    try:
        try:
            alarm(max(1e-6, seconds))
            work()
        finally:
            alarm(0)
    except Alarm:
        return True
    return False


def interrupt(name: str, times: int, alarm: Callable[[float], None], seed: int) -> int:
    """Read so often with an alarm at a random moment; how many came before the end."""
    model, batch = models()[name]
    before = everything(prepared(model))
    start = time.perf_counter()
    read(model, batch)
    duration = time.perf_counter() - start
    moments, rang = random.Random(seed), 0
    for _ in range(times):
        rang += rings(alarm, moments.random() * 1.02 * duration, lambda: read(model, batch))
        assert differences(before, everything(model)) == []
    return rang


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "silent", "caching", "torch"])
def test_an_alarm_at_any_moment(name: str, alarm: Callable[[float], None]) -> None:
    assert interrupt(name, 8, alarm, seed=1) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "silent", "caching", "torch"])
def test_five_hundred_alarms(name: str, alarm: Callable[[float], None]) -> None:
    assert interrupt(name, 125, alarm, seed=2) >= 80


@pytest.mark.slow
def test_an_alarm_in_every_line_of_the_restoring(alarm: Callable[[float], None]) -> None:
    """Alarms so early or so late that they fall between the lines of entering and leaving."""
    model, _ = models()["caching"]
    before = everything(prepared(model))
    start = time.perf_counter()
    undisturbed(model, lambda signals: model(ids(8)))
    duration, rang = time.perf_counter() - start, 0
    for step in range(150):
        moment = duration * (0.2 + step / 150)
        rang += rings(alarm, moment, lambda: undisturbed(model, lambda signals: model(ids(8))))
        assert differences(before, everything(model)) == []
    assert rang > 20


def test_a_second_alarm_waits_until_everything_is_back(alarm: Callable[[float], None]) -> None:
    model, _ = models()["caching"]
    before = everything(prepared(model))

    def work(signals: Any) -> None:  # noqa: ARG001
        model(ids(8))
        try:
            signal.raise_signal(signal.SIGALRM)
        finally:
            signal.raise_signal(signal.SIGALRM)  # while the first is on its way up

    with pytest.raises(Alarm) as second:
        undisturbed(model, work)
    assert isinstance(second.value.__context__, Alarm)
    assert differences(before, everything(model)) == []
    alarm(0)


def test_an_alarm_that_the_model_swallows_is_raised_all_the_same(alarm: Callable[[float], None]) -> None:
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
