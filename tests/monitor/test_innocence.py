"""Training with and without the monitor: loss, gradients, optimizer, random stream and checkpoint, bit for bit."""

from __future__ import annotations

import copy
import gc
import io
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import edgewise
from edgewise.errors import BadInput
from tests.monitor.subjects import batches, encoder, hugging_face, loss_of, train
from tests.support.covering import covering

Loop = Callable[[nn.Module, torch.optim.Optimizer], list[Tensor]]


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[Tensor]) -> dict[str, bytes]:
    """Everything that training leaves behind, as bytes."""
    parts = {
        "losses": losses,
        "weights": list(model.parameters()),
        "buffers": list(model.buffers()),
        "gradients": [p.grad for p in model.parameters()],
        "optimizer": [v for s in optimizer.state.values() for v in s.values()],
        "random": [torch.get_rng_state()],
        "checkpoint": [_file(model), _file(optimizer)],
    }
    return {name: b"".join(_bytes(value) for value in values) for name, values in parts.items()}


def _bytes(value: Any) -> bytes:
    if isinstance(value, Tensor):
        return value.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return value if isinstance(value, bytes) else repr(value).encode()


def _file(thing: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing.state_dict(), file)
    return file.getvalue()


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return _loop(model, optimizer, nullcontext())


def autocast(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return _loop(model, optimizer, torch.autocast("cpu", torch.bfloat16))


def _loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, mode: AbstractContextManager[Any]
) -> list[Tensor]:
    losses = []
    for x in batches(4):
        optimizer.zero_grad()
        with mode:
            loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def accumulation(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    losses = []
    for number, x in enumerate(batches(9)):
        loss = loss_of(model, x) / 3
        loss.backward()
        losses.append(loss.detach())
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=number < 8)
    return losses


def scaled_half(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """fp16 with a scaler, whose first scales overflow: those steps are skipped."""
    scaler, losses = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3), []
    for x in batches(24):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return losses


def reentrant(model: Any, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return plain(model, optimizer)


def not_reentrant(model: Any, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return plain(model, optimizer)


def hand_checkpointed(model: Any, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """torch's encoder, its layers under checkpoint as people write it."""
    losses = []
    for x in batches(4):
        optimizer.zero_grad()
        hidden = model[0](x)
        for layer in model[1].layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        loss = nn.functional.cross_entropy(model[2](hidden).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def both(make: Callable[[], nn.Module], loop: Loop, **options: Any) -> Any:
    """Run without and with the monitor; fails where a byte differs. Returns the handle."""
    prints, handle = [], None
    for watched in (False, True):
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        torch.manual_seed(7)
        if watched:
            handle = edgewise.watch(model, everything=True, quiet=True, **options)
        losses = loop(model, optimizer)
        prints.append(fingerprint(model, optimizer, losses))
        if handle is not None:
            handle.close()
    assert [name for name in prints[0] if prints[0][name] != prints[1][name]] == []
    assert handle is not None and handle.error == ""
    return handle


def gpt2() -> Any:
    return hugging_face("gpt2", dropout=0.1)


@pytest.mark.parametrize("loop", [plain, autocast, accumulation, reentrant, not_reentrant, scaled_half])
def test_gpt2_trains_bit_for_bit_the_same(loop: Loop, tmp_path: Path) -> None:
    handle = both(gpt2, loop, to=tmp_path / "run")
    frame = edgewise.read(tmp_path / "run")
    assert len(frame) == handle.step > 0
    for column in (
        "loss",
        "update_ratio",
        *(f"block.1.{n}" for n in ("norm", "gradient", "entropy", "softmax_gain")),
    ):
        assert frame[column].notna().all(), column


@pytest.mark.parametrize("loop", [plain, accumulation, hand_checkpointed])
def test_the_encoder_trains_bit_for_bit_the_same(loop: Loop) -> None:
    both(lambda: encoder(dropout=0.1), loop)


def test_the_budgeted_monitor_is_innocent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are not sampled are those where hooks do nothing."""
    monkeypatch.setattr("edgewise.monitor.budget.TOTAL", 0.0)  # else the three seconds pay for all of them
    prints = []
    for watched in (False, True):
        model = gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        with edgewise.watch(model, budget=1e-6, quiet=True) if watched else nullcontext() as handle:
            prints.append(fingerprint(model, optimizer, [*plain(model, optimizer), *plain(model, optimizer)]))
    assert prints[0] == prints[1]
    assert handle is not None and handle.budget.samples < handle.step == 8


def test_checkpointing_leaves_the_statistics_the_same(tmp_path: Path) -> None:
    """A second forward pass overwrites what the first copied; it does not count twice."""
    rows = []
    for loop in (plain, reentrant, not_reentrant):
        both(gpt2, loop, to=tmp_path / loop.__name__)
        rows.append(edgewise.read(tmp_path / loop.__name__, frame=False))
    for other in rows[1:]:
        for name in set(rows[0]) - {"time"}:
            # Checkpointing itself adds gradients in another order; only the first forward pass is the same to the bit.
            forward = name.rpartition(".")[2] in (
                "loss",
                "norm",
                "separation",
                "largest",
                "entropy",
                "largest_logit",
            )
            np.testing.assert_allclose(
                rows[0][name][0], other[name][0], rtol=0 if forward else 1e-4, err_msg=name
            )
            np.testing.assert_allclose(rows[0][name], other[name], rtol=1e-3, err_msg=name)


def test_the_gradient_is_unscaled() -> None:
    """The same network with and without a scale of 1024: the stored gradients agree."""
    gradients = []
    for scale in (1.0, 1024.0):
        model = hugging_face("gpt2")
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with edgewise.watch(model, everything=True, quiet=True, scaler=scaler) as handle:
            scaler.scale(loss_of(model, next(iter(batches(1))))).backward()
            scaler.step(optimizer)
        gradients.append([handle.row()[name] for name in ("block.0.gradient", "gradient_norm", "loss")])
        assert handle.row()["loss_scale"] == scale
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-4)


def test_evaluation_between_steps_is_not_seen() -> None:
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        x, *others = batches(3)
        loss = loss_of(model, x)
        loss.backward()
        with torch.no_grad():
            for y in others:
                loss_of(model, torch.cat([y, y], 1))
        optimizer.step()
    assert handle.row()["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    assert handle.instrument.sizes.read() in {(0, 0, 0), (2, 16, 16)}


class Broken(Exception):
    """An error of the monitor's own."""


M = "edgewise.monitor"
PLACES = [  # every way from a training step into the monitor, and what lies behind it
    f"{M}.instrument.Instrument.before_step",
    f"{M}.instrument.Instrument.after_step",
    f"{M}.instrument.Instrument.clear",
    f"{M}.hooks.Switch.run",
    f"{M}.capture.StreamCopy.enter",
    f"{M}.capture.StreamCopy.leave",
    f"{M}.capture.StreamCopy._see_gradient",
    f"{M}.capture.StreamCopy._keep",
    f"{M}.capture.StreamCopy._keep_gradient",
    f"{M}.capture.TokenCopy.leave",
    f"{M}.capture.QueryCopy.enter",
    f"{M}.capture.QueryCopy._see_gradient",
    f"{M}.capture.LossCopy.leave",
    f"{M}.capture.Window.see",
    f"{M}.capture._tensor_of",
    f"{M}.capture.tensor_in",
    f"{M}.attention.Masks.enter",
    f"{M}.capture.BatchMemory.enter",
    f"{M}.budget.Clock.run",
    f"{M}.budget.Budget.stepped",
    f"{M}.budget.Budget.due",
    f"{M}.hooks.OptimizerSteps.begins",
    f"{M}.hooks.OptimizerSteps.ends",
    f"{M}.watched_steps.WatchedSteps._store",
    f"{M}.watched_steps.WatchedSteps._step_begins",
    f"{M}.watched_steps.WatchedSteps._before_step",
    f"{M}.watched_steps.WatchedSteps._after_step",
    f"{M}.watched_steps.WatchedSteps._due_after",
    f"{M}.replay.Dossiers.before_step",
    f"{M}.run_folder.RunFolder.append",
    f"{M}.causes.Diagnosis.see",
    f"{M}.series.History.see",
    f"{M}.sinks.Sinks.send",
    f"{M}.examination.Examination.before_step",
    f"{M}.examination.Examination.after_row",
    f"{M}.examination.Examination.after_step",
    f"{M}.examination.Examination.released",
]


@pytest.mark.parametrize(("place", "quiet"), covering(PLACES, (False, True)))
def test_no_error_of_the_monitor_reaches_the_loop(
    place: str,
    quiet: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same losses and weights, bit for bit, and one sentence, which quiet=True does not silence."""

    def broken(*_: Any, **__: Any) -> None:
        raise Broken("on purpose")

    expected, weights = _unwatched()
    monkeypatch.setattr(place, broken)
    model, optimizer = _fresh()
    with edgewise.watch(model, everything=True, to=tmp_path / "run", quiet=quiet) as handle:
        losses = plain(model, optimizer)
    assert losses == expected
    assert all(map(torch.equal, model.parameters(), weights))
    assert handle.error == "Broken: on purpose" and "switched itself off" in handle.unseen[0]
    said = capsys.readouterr().err
    assert len(re.findall(r"has switched itself off at step [01] \(Broken: on purpose\)", said)) == 1
    assert said.count("\n") == 1 or not quiet
    from edgewise.monitor.read_run import Run

    assert [e["kind"] for e in Run(tmp_path / "run").events()].count("off") == 1
    assert not model.transformer.h[0]._forward_hooks
    assert "The monitor switched itself off at step" in Run(tmp_path / "run").unseen()[0]


@pytest.mark.parametrize("place", [f"{M}.capture.CallCopy.leave", f"{M}.capture.BatchMemory.enter_criterion"])
def test_no_error_reaches_the_loop_of_an_encoder(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise Broken("on purpose")

    model, criterion = encoder(), nn.CrossEntropyLoss()
    expected = train(encoder(), 3, criterion)
    monkeypatch.setattr(place, broken)
    with edgewise.watch(model, everything=True, criterion=criterion, quiet=True) as handle:
        assert train(model, 3, criterion) == expected
    assert handle.error == "Broken: on purpose"


def test_what_an_alarm_calls_may_raise_too(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> None:
        raise Broken("on purpose")

    model = encoder()
    expected = train(encoder(), 3)
    with edgewise.watch(model, everything=True, quiet=True, on_alarm=broken) as handle:
        handle.log(loss=float("nan"))
        assert train(model, 3) == expected
    assert handle.error == "Broken: on purpose"
    assert capsys.readouterr().err.count("switched itself off") == 1


def test_an_error_while_it_is_switched_off_does_not_reach_the_loop_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise Broken("on purpose")

    expected, _ = _unwatched()
    monkeypatch.setattr(f"{M}.instrument.Instrument.before_step", broken)
    model, optimizer = _fresh()
    handle = edgewise.watch(model, everything=True, quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(f"{M}.instrument.Instrument.detach", broken)
        assert plain(model, optimizer) == expected
    handle.close()
    assert "switching it off met another error (Broken: on purpose)" in capsys.readouterr().err


def test_a_closed_standard_error_does_not_stop_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = _unwatched()
    model, optimizer = _fresh()
    closed = io.StringIO()
    closed.close()
    with edgewise.watch(model, everything=True, on_alarm=None) as handle:
        monkeypatch.setattr("sys.stderr", closed)
        handle._guarded(handle.said.say, "into the void")
        assert plain(model, optimizer) == expected
    assert handle.error == ""


def test_a_folder_that_is_rejected_leaves_nothing_on_the_model(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = gpt2()
    callbacks = len(gc.callbacks)
    with pytest.raises(BadInput, match="cannot be written"):
        edgewise.watch(model, to=tmp_path / "file" / "run")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert len(gc.callbacks) == callbacks


def _fresh() -> tuple[Any, torch.optim.Optimizer]:
    model = gpt2()
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


@cache
def _unwatched() -> tuple[list[Tensor], list[Tensor]]:
    """Losses and weights of the loop without a watch."""
    model, optimizer = _fresh()
    return plain(model, optimizer), list(model.parameters())


def test_nothing_is_left_after_it_closes() -> None:
    model = gpt2()
    with edgewise.watch(model, everything=True, quiet=True):
        plain(model, torch.optim.AdamW(model.parameters(), 1e-3))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    assert not _global_optimizer_pre_hooks and not _global_optimizer_post_hooks


def test_another_models_optimizer_is_not_a_step() -> None:
    """Also where the model's own optimizer comes to stand where a freed one stood."""
    model, other = gpt2(), encoder()
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        plain(other, torch.optim.SGD(other.parameters(), 0.1))
        for _ in range(20):
            torch.optim.SGD(other.parameters(), 0.0).step()
        plain(model, torch.optim.SGD(model.parameters(), 0.1))
    assert handle.step == 4


def _stored_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("kind", ["encoder", "gpt2"])
@pytest.mark.parametrize("copied", [copy.deepcopy, torch.optim.swa_utils.AveragedModel, _stored_and_loaded])
def test_a_watched_model_can_be_copied_and_its_copy_is_not_watched(
    tmp_path: Path, copied: Callable[[nn.Module], nn.Module], kind: str
) -> None:
    """An average of the weights, or a file of the whole model, would else take the monitor with it."""
    model, criterion = encoder() if kind == "encoder" else hugging_face(kind), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with edgewise.watch(
        model, everything=True, to=tmp_path / "run", criterion=criterion, quiet=True
    ) as handle:
        for x in batches(2):
            loss_of(model, x, criterion).backward()
            (other := copied(model)).train()
            loss_of(other, x[:1, :5]).backward()  # must not count as a pass of the model
            assert handle.instrument.sizes.read()[2] == x.shape[1]
            optimizer.step()
    assert handle.error == "" and handle.step == 2
