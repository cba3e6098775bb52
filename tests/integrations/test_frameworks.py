"""The Trainer of transformers and Lightning, TensorBoard, W&B and trackio: the real packages, offline."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.errors import BadInput
from edgewise.monitor.columns import fast_columns
from edgewise.monitor.read_run import Run
from edgewise.monitor.sinks import _groups, curves
from tests.monitor.subjects import batches, encoder, hugging_face, loss_of, train


def needed(name: str) -> Any:
    """The package, or a skip that says what is not tested."""
    return pytest.importorskip(name, reason=f"{name} is not installed: watching with it is NOT tested")


class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Sequences for a Trainer."""

    def __init__(self, count: int) -> None:
        self.x = torch.cat(list(batches(count // 4)))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.x[i], "labels": self.x[i]}


def trainer(folder: Path, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=6,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        seed=0,
        **options,
    )
    return Trainer(model=hugging_face("gpt2", dropout=0.1), args=arguments, train_dataset=Texts(24))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_trainer_of_transformers(tmp_path: Path, accumulation: int) -> None:
    """Watched and not, the same weights; a row per step, with the loss."""
    needed("accelerate")
    weights = []
    for watched in (False, True):
        run = trainer(tmp_path / str(watched), gradient_accumulation_steps=accumulation)
        callback = edgewise.HuggingFaceCallback(everything=True, quiet=True)
        if watched:
            run.add_callback(callback)
        run.train()
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    assert torch.equal(*weights)
    assert callback.handle is not None and callback.handle.error == ""
    frame = edgewise.read(tmp_path / "True" / "edgewise")
    assert list(frame.index) == list(range(6))
    assert frame[["loss", "block.1.entropy", "update_ratio", "learning_rate"]].notna().all().all()


def test_a_callback_says_at_the_end_what_was_not_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Called as a Trainer does, which is not needed for it."""
    needed("transformers")
    model, criterion = hugging_face("gpt2"), None
    arguments, state = SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=0)
    callback = edgewise.HuggingFaceCallback(everything=True)
    callback.on_train_begin(arguments, state, None, model=model)
    train(model, 3, criterion)
    callback.on_train_end(arguments, state, None)
    assert (
        "did not see enough to say that nothing is wrong:\n  Only 3 rows were stored"
        in capsys.readouterr().err
    )
    assert callback.handle is not None and callback.handle.unseen == Run(tmp_path / "edgewise").unseen()


def test_the_trainer_stops_at_a_failing_alarm(tmp_path: Path) -> None:
    needed("accelerate")
    run = trainer(tmp_path / "run")
    run.add_callback(edgewise.HuggingFaceCallback(everything=True, stop=True, quiet=True))

    def broken(module: nn.Module, inputs: Any, output: Any) -> Any:  # noqa: ARG001
        broken.calls += 1  # type: ignore[attr-defined]
        if broken.calls > 2:  # type: ignore[attr-defined]
            output.loss = output.loss * float("nan")
        return output

    broken.calls = 0  # type: ignore[attr-defined]
    run.model.register_forward_hook(broken)
    run.train()
    assert run.state.global_step == 3
    alarms = [e for e in Run(tmp_path / "run" / "edgewise").events() if e["kind"] == "alarm"]
    assert [alarm["alarm"] for alarm in alarms] == ["not_a_number"]


def test_a_trainer_may_begin_again_after_an_interrupt(tmp_path: Path) -> None:
    """Ctrl-C in a notebook: the first training never says that it has ended, and would keep its folder."""
    needed("transformers")
    args, state = SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=0)
    callbacks = [edgewise.HuggingFaceCallback(everything=True, quiet=True) for _ in range(2)]
    for callback in callbacks:
        model = encoder()
        callback.on_train_begin(args, state, None, model=model)
        train(model, 3)
    first, second = (callback.handle for callback in callbacks)
    assert first is not None and second is not None and first.step == 3 and second.step == 3
    callbacks[1].on_train_end(args, state, None)
    assert list(edgewise.read(tmp_path / "edgewise").index) == [0, 1, 2]
    callbacks[0].on_train_begin(args, state, None, model=model)  # what has ended can begin again, too
    callbacks[0].on_train_end(args, state, None)


def test_lightning(tmp_path: Path) -> None:
    lightning = needed("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = encoder(dropout=0.1)

        def training_step(self, x: Tensor, index: int) -> Tensor:  # noqa: ARG002
            return loss_of(self.net, x)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    weights = []
    for watched in (False, True):
        lightning.seed_everything(0, verbose=False)
        module = Module()
        callback = edgewise.LightningCallback(everything=True, to=tmp_path / "run", quiet=True)
        run = lightning.Trainer(
            max_steps=5,
            callbacks=[callback] if watched else [],
            default_root_dir=tmp_path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        run.fit(module, torch.utils.data.DataLoader(torch.cat(list(batches(5))), batch_size=4))
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*weights)
    assert callback.handle is not None and callback.handle.error == ""
    frame = edgewise.read(tmp_path / "run")
    assert list(frame.index) == list(range(5))
    columns = ["loss", "block.1.norm", "block.1.gradient", "block.1.entropy", "update_ratio"]
    assert frame[columns].notna().all().all()
    assert (frame["update_ratio"] > 0).all()


def _pass(model: nn.Module, optimizer: Any, criterion: nn.Module, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, x, criterion)
    loss.backward()
    return loss


def test_a_closure_inside_the_step_is_watched() -> None:
    """LBFGS and Lightning make their passes inside the optimizer's step."""
    weights, model = [], encoder()
    for watched in (False, True):
        model, criterion = encoder(), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        handle = edgewise.watch(model, everything=True, quiet=True, criterion=criterion) if watched else None
        for x in batches(3):
            optimizer.step(partial(_pass, model, optimizer, criterion, x))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)
    assert handle is not None
    handle.close()
    assert handle.error == "" and handle.step == 3
    assert np.isfinite([handle.row()[name] for name in ("loss", "block.1.gradient", "block.1.entropy")]).all()


def test_curves_are_few_whatever_the_depth() -> None:
    for depth in (2, 48):
        columns = fast_columns(depth)
        values = curves(_groups(columns), np.arange(len(columns), dtype=float))
        assert len(values) == 11 + 2 * (6 + 18)
    assert values["edgewise/loss"] == 0.0


def test_tensorboard_holds_the_rows(tmp_path: Path) -> None:
    needed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model, criterion = encoder(), nn.CrossEntropyLoss()
    with (
        SummaryWriter(str(tmp_path / "board")) as writer,
        edgewise.watch(model, everything=True, criterion=criterion, quiet=True, mirror=writer),
    ):
        losses = train(model, 3, criterion)
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [e.value for e in events.Scalars("edgewise/loss")] == pytest.approx(losses, rel=1e-6)
    assert {"edgewise/entropy/min", "edgewise/norm/max"} <= set(events.Tags()["scalars"])


def test_wandb_offline_holds_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = needed("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for hook in ("exit", "excepthook"):  # which W&B replaces for good: every later test would see it
        monkeypatch.setattr(sys, hook, getattr(sys, hook))
    model, criterion = encoder(), nn.CrossEntropyLoss()
    run = wandb.init(mode="offline", dir=str(tmp_path), project="edgewise")
    with edgewise.watch(model, everything=True, criterion=criterion, quiet=True) as handle:
        losses = train(model, 3, criterion)
        run.log({"mine": 1.0})
    assert dict(run.summary)["edgewise/loss"] == pytest.approx(losses[-1], rel=1e-6)
    assert list(handle.sinks.targets) == ["W&B"]
    run.finish()


def test_trackio_holds_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = needed("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    model, criterion = encoder(), nn.CrossEntropyLoss()
    trackio.init(project="edgewise", name="one")
    with edgewise.watch(model, everything=True, criterion=criterion, quiet=True) as handle:
        losses = train(model, 3, criterion)
    assert list(handle.sinks.targets) == ["trackio"]
    trackio.finish()
    logs = importlib.import_module("trackio.sqlite_storage").SQLiteStorage.get_logs("edgewise", "one")
    assert [row["edgewise/step"] for row in logs] == [0, 1, 2]
    assert [row["edgewise/loss"] for row in logs] == pytest.approx(losses, rel=1e-6)


def test_a_sink_that_fails_is_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    class Writer:
        def add_scalar(self, *_: Any) -> None:
            raise OSError("no space left")

    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(
        model, everything=True, criterion=criterion, mirror=Writer(), to=tmp_path / "run"
    ) as handle:
        train(model, 3, criterion)
    assert handle.error == "" and len(edgewise.read(tmp_path / "run")) == 3
    assert capsys.readouterr().err.count("no longer mirrored to TensorBoard 1 (OSError: no space left)") == 1
    with pytest.raises(BadInput, match="mirror takes TensorBoard writers, got dict"):
        edgewise.watch(encoder(), mirror={})


def test_the_callbacks_name_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in (
        "lightning",
        "lightning.pytorch",
        "lightning.pytorch.callbacks",
        "pytorch_lightning",
        "pytorch_lightning.callbacks",
    ):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "edgewise.integrations.lightning", raising=False)
    with pytest.raises(BadInput, match="needs lightning, which is not installed"):
        edgewise.LightningCallback()
