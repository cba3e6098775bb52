"""Plans for blocks that are not modules: slices of one parameter, parts side by side, pairs in lists."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import edgewise
from edgewise.repair.new_values import write_module

WIDTH, DEPTH, HEADS = 32, 12, 4


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (z.unflatten(-1, (HEADS, -1)).transpose(1, 2) for z in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def normed(x: Tensor) -> Tensor:
    return functional.layer_norm(x, (WIDTH,))


class OneParameterForAll(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(61, WIDTH)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(2 * torch.randn(DEPTH, *shape) / shape[0] ** 0.5)

        self.mix, self.back = drawn(WIDTH, 3 * WIDTH), drawn(WIDTH, WIDTH)
        self.up, self.down = drawn(WIDTH, 2 * WIDTH), drawn(2 * WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for mix, back, up, down in zip(self.mix, self.back, self.up, self.down, strict=True):
            x = x + attend(*(normed(x) @ mix).chunk(3, -1)) @ back
            x = x + functional.gelu(normed(x) @ up) @ down
        return x


class PartsInLists(nn.Module):
    """Parts in lists; the convolution mixes tokens, so that no part of it is a query."""

    def __init__(self) -> None:
        super().__init__()

        def strong(layer: nn.Module) -> nn.Module:
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.mul_(4)
            return layer

        self.pairs = nn.ModuleList(
            nn.ModuleList(
                [
                    strong(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
                    strong(nn.Linear(WIDTH, WIDTH)),
                    nn.Sequential(
                        strong(nn.Linear(WIDTH, WIDTH)), nn.ReLU(), strong(nn.Linear(WIDTH, WIDTH))
                    ),
                ]
            )
            for _ in range(DEPTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        for convolve, back, think in self.pairs:
            x = x + back(torch.tanh(convolve(normed(x).transpose(1, 2))).transpose(1, 2))
            x = x + think(normed(x))
        return x


def stacked() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return OneParameterForAll(), torch.randint(61, (2, 16))


def test_slices_of_one_parameter_are_planned_and_written_alone() -> None:
    model, batch = stacked()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plan = edgewise.critical_plan(model, batch)
    assert plan.depth == DEPTH and plan.before is not None and plan.before.worst > 1.5
    assert {change.role for change in plan.changes} >= {"attention.output", "mlp.output"}
    assert {change.projection.index for change in plan.changes} == set(range(DEPTH))
    applied = edgewise.initialize_(model, plan=plan, generator=1)
    assert applied.after is not None and applied.after.worst < plan.before.worst and applied.after.worst < 2
    back = dict(model.named_parameters())["back"]
    assert not torch.equal(back[0], back[1]) and torch.equal(model.table.weight, before["table.weight"])
    applied.undo()
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_the_written_module_draws_the_same_slices(tmp_path: Path) -> None:
    model, batch = stacked()
    plan = edgewise.critical_plan(model, batch)
    write_module(plan, tmp_path / "start.py", "a start")
    other, _ = stacked()
    runpy.run_path(str(tmp_path / "start.py"))["initialize_"](other, seed=3)
    edgewise.initialize_(model, plan=plan, generator=3)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_copied_slices_get_values_of_their_own() -> None:
    model, batch = stacked()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 3:
                p.copy_(p[:1].expand_as(p))
    plan = edgewise.critical_plan(model, batch)
    assert any("copies" in note for note in plan.notes)
    edgewise.initialize_(model, plan=plan, generator=0)
    assert not torch.equal(model.mix[0], model.mix[1])


def test_branches_without_roles_are_scaled_by_their_last_matrices() -> None:
    torch.manual_seed(0)
    model, batch = PartsInLists(), torch.randn(2, 16, WIDTH)
    totals = edgewise.total_changes(model, batch)
    plan = edgewise.critical_plan(model, batch, goal="depth-mup")
    assert plan.depth == DEPTH and plan.before is not None
    assert plan.before.angle == pytest.approx(totals.angle)
    ends = {f"pairs.{i}.{part}.weight" for i in range(DEPTH) for part in ("1", "2.2")}
    assert {*plan.parameters} == ends
    assert plan.changes[0].new_std == pytest.approx((DEPTH * WIDTH) ** -0.5)
