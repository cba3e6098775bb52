"""Mistakes of the loop: what backward() begins at, what lies between output and criterion, who changes weights."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.cause_evidence import path_of
from edgewise.monitor.read_run import Run
from edgewise.monitor.watch import Watch, watch
from tests.monitor.subjects import encoder
from tests.monitor.test_facts import named, watched


def functional(steps: int = 40, *, squash: bool = False, scale: float = 1.0) -> Watch:
    """A loop without a criterion."""
    model = encoder()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    handle = watch(model, quiet=True, everything=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randint(0, 64, (4, 16), generator=generator)
        output = model(x)
        output = output.softmax(-1) if squash else output
        optimizer.zero_grad()
        (F.cross_entropy(output.flatten(0, 1), x.flatten()) * scale).backward()
        optimizer.step()
    handle.close()
    assert handle.error == ""
    return handle


def test_the_loss_of_a_functional_criterion_is_heard_at_every_step() -> None:
    before = torch.Tensor.backward
    handle = functional(scale=1024.0)
    assert torch.Tensor.backward is before
    assert handle._losses == 40 and handle.unseen == [] and handle.alarms == []
    assert 2.0 < handle.row()["loss"] < 5.0  # and not 1,024 times that


def test_softmax_before_a_functional_criterion_is_named() -> None:
    assert named(functional(squash=True), "softmax is applied before").kind is AlarmKind.MISTAKE


def test_what_the_loop_logs_wins() -> None:
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, quiet=True, everything=True) as handle:
        for _ in range(3):
            loss = model(torch.randint(0, 64, (4, 16))).square().mean()
            handle.log(loss=7.0)
            loss.backward()
            optimizer.step()
    assert handle.row()["loss"] == 7.0


@pytest.mark.parametrize("between", ["", "softmax", "sigmoid", "tanh", "relu", "scale"])
@pytest.mark.parametrize("part", ["flat", "shifted", "classes second", "last", "mean"])
def test_the_way_from_output_to_criterion_is_found(between: str, part: str) -> None:
    z = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    picked = {
        "flat": z.flatten(0, 1),
        "shifted": z[:, :-1].flatten(0, 1),
        "classes second": z.transpose(1, 2),
        "last": z[:, -1],
        "mean": z.mean(1),
    }[part]
    dimension = 1 if part == "classes second" else -1
    given = {
        "": picked,
        "softmax": picked.softmax(dimension),
        "sigmoid": picked.sigmoid(),
        "tanh": picked.tanh(),
        "relu": picked.relu(),
        "scale": picked / 100,
    }[between]
    found = path_of(z, given)
    assert found is not None and found.between == between
    assert torch.allclose(found(z, given.shape), given)
    assert path_of(z, given + torch.rand(given.shape)) is None


def test_a_loss_with_the_wrong_sign_is_named() -> None:
    assert "wrong sign" in named(watched(scalar=lambda loss, k: -loss, everything=True), "maximized").cause


def test_a_loss_that_only_backward_sees_broken_is_located() -> None:
    alarm = named(
        watched(scalar=lambda loss, k: loss * torch.nan if k == 30 else loss, everything=True), "begins at"
    )
    assert alarm.kind is AlarmKind.NOT_A_NUMBER and alarm.step == 30


def test_no_backward_pass_is_named() -> None:
    named(watched(scalar=lambda loss, k: loss.detach(), everything=True), "backward() is never called")


def test_weights_that_something_else_changes_are_named() -> None:
    def reset(model: nn.Module, k: int) -> None:
        if k == 80:
            for module in model.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()

    handle = watched(
        steps=100, start=reset, optimizer=lambda m: torch.optim.Adam(m.parameters(), 1e-2), everything=True
    )
    assert named(handle, "before step 80", "not by an optimizer").step == 80


def test_a_rate_that_fades_is_named_and_the_end_of_a_schedule_is_not() -> None:
    def faded(k: int, steps: int) -> float:
        return 1e-3 * max(0.7**k, 1e-6) if steps == 90 else 1e-3 * (1 - k / steps)

    for steps in (90, 91):
        model = encoder()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)

        def start(_: nn.Module, k: int, steps: int = steps, own: Any = optimizer) -> None:
            own.param_groups[0]["lr"] = faded(k, steps)

        handle = watched(steps=steps, model=model, optimizer=lambda _, own=optimizer: own, start=start)
        assert bool([a for a in handle.alarms if "decayed" in a.cause]) == (steps == 90)


def test_two_steps_for_one_backward_pass_are_named() -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return super().step(closure)

    handle = watched(optimizer=lambda m: Twice(m.parameters(), 1e-2), everything=True)
    assert [a.cause[:49] for a in handle.alarms] == ["optimizer.step() is called more than once for eac"]


def test_an_optimizer_without_a_memory_is_named() -> None:
    class Fresh(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            self.state.clear()
            return super().step(closure)

    named(watched(optimizer=lambda m: Fresh(m.parameters(), 1e-3), everything=True), "loses its state")


def test_trials_leave_models_with_closures_alone() -> None:
    """A copy of such a model trains the original, so that trials must not be made on one."""
    ends: list[list[Tensor]] = []
    for watching in (False, True):
        model, criterion = encoder(), nn.CrossEntropyLoss()
        layer = model[1].layers[0]  # type: ignore[index, union-attr]
        layer.forward = lambda *args, own=layer.forward, **named: own(*args, **named)
        optimizer = torch.optim.SGD(model.parameters(), 30.0)
        handle = edgewise.watch(model, criterion=criterion, quiet=True, everything=True) if watching else None
        generator = torch.Generator().manual_seed(1)
        for _ in range(12):
            x = torch.randint(0, 64, (4, 16), generator=generator)
            optimizer.zero_grad()
            criterion(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
        if handle is not None:
            handle.close()
            assert handle.error == "" and any("rate is too high" in alarm.cause for alarm in handle.alarms)
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*ends, strict=True))


def test_predictions_of_other_shapes_leave_the_monitor_on() -> None:
    """Masked tokens: another number of them in every batch."""
    model, criterion = encoder(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    with edgewise.watch(model, criterion=criterion, quiet=True, everything=True) as handle:
        for _ in range(70):
            x = torch.randint(0, 64, (4, 16), generator=generator)
            asked = torch.rand(x.shape, generator=generator) < 0.3
            optimizer.zero_grad()
            criterion(model(x)[asked], x[asked]).backward()
            optimizer.step()
    assert handle.error == "" and handle.alarms == []


def test_a_test_for_causes_that_fails_is_said_and_the_monitor_stays_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("shape")

    monkeypatch.setattr("edgewise.monitor.differential.mistakes", fails)
    handle = watched(everything=True, quiet=False)
    assert handle.error == "" and handle.budget.samples == 60
    assert "a test for causes failed (RuntimeError: shape)" in capsys.readouterr().err


def test_a_watch_that_nobody_closed_goes_with_its_model(tmp_path: Path) -> None:
    """60 of them kept 290 MB and 240 open files: hooks of all optimizers held their models."""
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    handle = ref(watch(model, tmp_path / "run", quiet=True, everything=True))
    gc.collect()
    for _ in range(2):
        model(torch.randint(0, 64, (4, 16))).square().mean().backward()
        optimizer.step()
    gc.collect()
    assert handle() is not None and handle().step == 2  # the model keeps it
    gone = ref(model)
    del model, optimizer
    gc.collect()
    assert gone() is None and handle() is None
    run = Run(tmp_path / "run")
    assert [event["kind"] for event in run.events()][-1] == "stop" and len(run.rows()) == 2
