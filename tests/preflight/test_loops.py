"""Check inside loops of others: the Trainer of transformers, Lightning, accelerate, a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.preflight.script import Checking
from experiments.preflight.networks import NETWORKS, setup
from tests.integrations.test_frameworks import needed, trainer


def cut(module: nn.Module, arguments: Any, output: Any) -> Any:  # noqa: ARG001
    """A mistake: the graph ends here."""
    return output.detach() if torch.is_tensor(output) else (output[0].detach(), *output[1:])


def kinds(checking: Checking | None) -> list[str]:
    assert checking is not None and checking.report is not None
    return [f.kind for f in checking.report.problems]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_trainer_is_checked_and_not_changed(tmp_path: Path) -> None:
    needed("accelerate")  # of which the Trainer is made
    weights = []
    for check in (False, True):
        run = trainer(tmp_path, gradient_accumulation_steps=2)
        callback = edgewise.HuggingFaceCallback(to=tmp_path / str(check), quiet=True, check=check)
        run.add_callback(callback)
        run.train()
        weights.append(flat(run.model))
    assert kinds(callback.checking) == []
    assert callback.checking is not None and callback.checking.report is not None
    assert callback.checking.report.facts["label offset"] == 1
    assert torch.equal(*weights)


@pytest.mark.parametrize("stop, steps", [(True, 1), (False, 6)])
def test_the_trainer_stops_at_an_error(
    stop: bool, steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed("accelerate")
    run = trainer(tmp_path)
    run.model.transformer.h[1].register_forward_hook(cut)
    callback = edgewise.HuggingFaceCallback(to=tmp_path / "run", check=True, stop=stop)
    run.add_callback(callback)
    run.train()
    assert run.state.global_step == steps
    assert "no gradient" in kinds(callback.checking) and "graph is cut" in capsys.readouterr().err


def test_lightning_is_checked(tmp_path: Path) -> None:
    lightning = needed("lightning")
    made = setup(NETWORKS[0])

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = made["model"]

        def training_step(self, ids: Tensor, index: int) -> Tensor:  # noqa: ARG002
            loss: Tensor = made["loss"](self.net, ids)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    for mistake, steps in (
        (False, 3),
        (True, 2),
    ):  # Lightning computes the gradient inside the step: one is needed
        module = Module()
        if mistake:
            module.net.blocks[1].register_forward_hook(cut)
        callback = edgewise.LightningCallback(to=tmp_path / "run", quiet=True, check=True, stop=True)
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        run = lightning.Trainer(
            max_steps=3, callbacks=[callback], default_root_dir=tmp_path, accelerator="cpu", **options
        )
        run.fit(module, torch.utils.data.DataLoader(torch.cat(made["batches"]), batch_size=6))
        assert run.global_step == steps
        assert ("no gradient" in kinds(callback.checking)) == mistake


def test_accelerate_is_checked() -> None:
    accelerate = needed("accelerate")
    made = setup(NETWORKS[0])
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(made["model"], made["optimizer"])
    with Checking(stop_on="error", show=lambda report: None) as checking:
        for batch in made["batches"]:
            accelerator.backward(made["loss"](model, batch))
            optimizer.step()
            optimizer.zero_grad()
    assert kinds(checking) == []


def test_a_plain_loop_is_checked_once_and_stopped() -> None:
    made, seen = setup(NETWORKS[0]), []
    made["model"].blocks[1].attn.mistake = "no mask"

    def train() -> None:
        for batch in made["batches"]:
            made["optimizer"].zero_grad()
            made["loss"](made["model"], batch).backward()
            made["optimizer"].step()

    cross_entropy = nn.functional.cross_entropy
    with pytest.raises(SystemExit, match="2"), Checking(stop_on="error", show=seen.append):
        train()
    assert [f.kind for f in seen[0].problems] == ["leak"] and nn.functional.cross_entropy is cross_entropy
    with Checking(show=seen.append) as checking:
        train()
    assert len(seen) == 2 and not checking.stops
    with pytest.raises(edgewise.BadInput, match="stop_on"):
        Checking(stop_on="always")
