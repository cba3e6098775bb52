"""Steps of loops with one optimizer, several, another one later, and one that moves little."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

import edgewise
from tests.monitor.subjects import batches, encoder, loss_of


def parts(model: nn.Module, *names: str) -> list[list[nn.Parameter]]:
    """The parameters whose names begin like this, and all the others."""
    named = list(model.named_parameters())
    chosen = [[p for key, p in named if key.startswith(name)] for name in names]
    known = {id(p) for part in chosen for p in part}
    return [*chosen, [p for _, p in named if id(p) not in known]]


def run(model: nn.Module, optimizers: list[Optimizer], steps: int = 3) -> None:
    for x in batches(steps):
        model.zero_grad()
        loss_of(model, x).backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_several_optimizers_make_one_step(order: tuple[int, ...]) -> None:
    """Updates of all of them are seen, whichever comes first; none moves more than half of the model."""
    model = encoder()
    each = [torch.optim.SGD(part, 0.1) for part in parts(model, "1.layers.0", "1.layers.1")]
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        run(model, [each[i] for i in order])
    row = handle.row()
    assert handle.error == "" and handle.step == 3
    assert min(row[f"block.{i}.update_ratio.{part}"] for i in range(2) for part in ("attention", "mlp")) > 0
    assert row["embedding_update"] > 0


@pytest.mark.parametrize("kept", [False, True])
def test_another_optimizer_takes_over(kept: bool) -> None:
    """The first one may be gone, or still be there and unused."""
    model, known = encoder(), []
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        for _ in range(3):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            known += [optimizer] if kept else []
            run(model, [optimizer])
    assert handle.step == 9 and handle.budget.samples == 9


def test_one_that_steps_now_and_then_does_not_lose_count() -> None:
    model = encoder()
    rest, most = (torch.optim.SGD(part, 0.1) for part in parts(model, "0"))
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        for step in range(9):
            run(model, [most, rest] if step % 3 == 0 else [most], steps=1)
    assert handle.error == "" and handle.step == 9


def test_an_optimizer_that_moves_little_is_watched_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The head alone was given to it, and the rest does not train: no step was seen, and nothing said."""
    model = encoder()
    with edgewise.watch(model, everything=True) as handle:
        run(model, [torch.optim.SGD(model[2].parameters(), 0.1)], steps=4)
    assert handle.step >= 3 and handle.row()["gradient_norm"] > 0
    assert (
        capsys.readouterr().err.count(
            "of the parameters that require a gradient; the others keep their values"
        )
        == 1
    )


def test_the_named_optimizer_alone_counts() -> None:
    model = encoder()
    blocks, rest = (torch.optim.SGD(part, 0.1) for part in parts(model, "1"))
    with edgewise.watch(model, everything=True, quiet=True, optimizer=rest) as handle:
        run(model, [blocks, rest, rest])
    assert handle.step == 6
    assert handle.row()["block.0.update_ratio.mlp"] == 0.0


def test_an_optimizer_inside_another_is_part_of_its_step() -> None:
    class Twice(torch.optim.SGD):
        """Steps by another one, and moves the weights once more itself."""

        @torch.no_grad()
        def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
            inner.step()
            for p in model.parameters():
                p.mul_(0.5)

    model = encoder()
    inner, outer = torch.optim.SGD(model.parameters(), 1e-6), Twice(model.parameters(), 0.1)
    with edgewise.watch(model, everything=True, quiet=True) as handle:
        run(model, [outer])
    assert handle.step == 3
    assert handle.row()["update_ratio"] == pytest.approx(0.5, rel=1e-3)
