"""The doors for other people's loops, against the real packages; a test that is skipped names what is missing."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import edgewise
from edgewise.integrations import huggingface
from edgewise.integrations.huggingface import learning_rate_for_trainer
from edgewise.integrations.lightning import RehearseLearningRate
from edgewise.rehearsal.rate import schedule_named
from tests.support.rehearsal_networks import batches, small, text_loss


def test_a_hugging_face_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate, which is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(
        vocab_size=12, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": x, "labels": x} for x in torch.cat(batches(26))[:, :16]]
    arguments = transformers.TrainingArguments(
        tmp_path,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        max_steps=50,
        weight_decay=0.1,
        report_to=[],
        use_cpu=True,
        learning_rate=1e-9,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    before = [p.detach().clone() for p in model.parameters()]
    rate = learning_rate_for_trainer(trainer, steps=5, rates=4, progress=False)
    assert rate.best is not None and 1e-5 < rate.best < 1
    assert len(rate.ratios) == 2  # with and without weight decay
    assert rate.schedule == "linear" and rate.own is not None and rate.own.rate == 1e-9  # the Trainer's own
    assert "times below what this network takes" in str(rate)
    assert trainer.optimizer is None and arguments.learning_rate == 1e-9
    assert all(torch.equal(a, p) for a, p in zip(before, model.parameters(), strict=True))
    arguments.learning_rate = rate.best
    assert trainer.train().training_loss < rate.start.loss


@pytest.mark.parametrize(
    ("kind", "schedule"),
    [("cosine_with_restarts", "cosine"), ("constant_with_warmup", "constant"), ("inverse_sqrt", None)],
)
def test_the_schedule_and_the_warm_up_of_a_trainer(kind: str, schedule: str | None) -> None:
    arguments = SimpleNamespace(
        lr_scheduler_type=kind,
        warmup_steps=0.1,
        max_steps=-1,
        num_train_epochs=3,
        gradient_accumulation_steps=2,
    )
    assert schedule_named(kind) == schedule
    assert huggingface._warmup(arguments, range(100)) == 15
    arguments.max_steps = 400
    assert huggingface._warmup(arguments, range(100)) == 40
    arguments.warmup_steps = 7
    assert huggingface._warmup(arguments, iter(())) == 7


def test_the_schedule_of_a_lightning_trainer() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    schedulers = torch.optim.lr_scheduler
    names = [
        (schedulers.CosineAnnealingLR(optimizer, 10), "cosine"),
        (schedulers.OneCycleLR(optimizer, 0.1, 10), "cosine"),
        (schedulers.LinearLR(optimizer), "linear"),
        (schedulers.StepLR(optimizer, 10), None),
    ]
    for scheduler, name in names:
        assert schedule_named(type(scheduler).__name__) == name
    assert schedule_named() == "constant"


def test_what_is_not_a_trainer() -> None:
    with pytest.raises(edgewise.BadInput, match=r"takes a transformers\.Trainer"):
        learning_rate_for_trainer(3)


def test_a_lightning_callback(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net: nn.Module = small()
            self.lr = 1e-9

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            loss = text_loss(self.net, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), self.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1000)]

    module, callback = Module(), RehearseLearningRate(steps=5, rates=4)
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(torch.cat(batches(26)), batch_size=8))  # type: ignore[arg-type]
    assert callback.rate is not None and callback.rate.best is not None
    assert module.lr == callback.rate.best
    assert callback.rate.own is not None and callback.rate.own.rate == 1e-9 and callback.rate.schedule is None
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(callback.rate.best)
    assert float(trainer.callback_metrics["loss"]) < callback.rate.start.loss - 0.2


def test_the_callback_has_the_defaults_of_the_function() -> None:
    own = {
        name: parameter.default
        for name, parameter in inspect.signature(RehearseLearningRate.__init__).parameters.items()
        if name != "self"
    }
    theirs = inspect.signature(edgewise.learning_rate).parameters
    assert own == {name: theirs[name].default for name in ("steps", "rates", "seed")} | {"update": True}


def test_the_door_for_a_trainer_has_the_defaults_of_the_function() -> None:
    own, theirs = (
        inspect.signature(f).parameters for f in (learning_rate_for_trainer, edgewise.learning_rate)
    )
    assert {n: own[n].default for n in ("steps", "rates", "seed", "progress")} == {
        n: theirs[n].default for n in ("steps", "rates", "seed", "progress")
    }


@pytest.mark.parametrize("automatic, optimizers", [(False, 1), (True, 2)])
def test_an_optimizer_that_lightning_does_not_step_alone_is_rejected(
    automatic: bool, optimizers: int
) -> None:
    trainer = SimpleNamespace(global_step=0, optimizers=[None] * optimizers)
    with pytest.raises(edgewise.BadInput, match="expected one optimizer that Lightning steps"):
        RehearseLearningRate.on_train_start(
            SimpleNamespace(), trainer, SimpleNamespace(automatic_optimization=automatic)
        )
