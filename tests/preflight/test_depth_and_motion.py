"""Gradients through depth, frozen rows that decay, frozen parameters that move: each with its healthy twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise

WIDTH, TOKENS, WORDS = 32, 12, 40


class Block(nn.Module):
    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.norm, self.skip = nn.LayerNorm(WIDTH), skip
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.sigmoid(self.up(self.norm(x) if self.skip else x)))
        return x + y if self.skip else y


class Reader(nn.Module):
    def __init__(self, skip: bool = True, depth: int = 6) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(skip) for _ in range(depth))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def kinds(model: nn.Module, step: Callable[..., Tensor] | None = None, decay: float = 0.01) -> set[str]:
    batches = [torch.randint(0, WORDS, (8, TOKENS)) for _ in range(4)]

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=decay)
    report = edgewise.check(model, batches, loss, optimizer, step=step)
    return {finding.kind for finding in report.findings} | {
        finding.kind for first in report.findings for finding in first.follows
    }


@pytest.mark.parametrize("skip", [False, True])
def test_a_gradient_that_vanishes_through_depth_is_found(skip: bool) -> None:
    torch.manual_seed(0)
    assert ("gradient through depth" in kinds(Reader(skip))) is not skip


@pytest.mark.parametrize("decay", [0.1, 0.0])
def test_rows_that_a_hook_freezes_must_not_decay(decay: float) -> None:
    torch.manual_seed(0)
    model = Reader()
    keep = torch.zeros(WORDS, 1)
    keep[-8:] = 1.0
    model.table.weight.register_hook(lambda gradient: gradient * keep)
    assert ("rows decay" in kinds(model, decay=decay)) is (decay > 0)


@pytest.mark.parametrize("moved", [True, False])
def test_frozen_parameters_that_move_in_a_step_are_found(moved: bool) -> None:
    torch.manual_seed(0)
    model = Reader()
    model.table.weight.requires_grad_(False)

    def step(model: Reader, optimizer: torch.optim.Optimizer, ids: Tensor, _: int) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        if moved:
            model.table.weight.data *= 0.99
        return loss

    assert ("moved without gradient" in kinds(model, step)) is moved
