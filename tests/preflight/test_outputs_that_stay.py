"""The fact *constant output*: an error if the input is not used, and not if it enters another call or a code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise


def two_views(count: int = 3) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {side: torch.randint(1, 20, (8, 6), generator=generator) for side in ("one", "two")}
        for _ in range(count)
    ]


class Tower(nn.Module):
    def __init__(self, used: bool = True) -> None:
        super().__init__()
        self.table, self.out, self.used = nn.Embedding(20, 16), nn.Linear(16, 16), used

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids).mean(1)
        return self.out(x if self.used else x * 0 + 1)


def pairs(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    one, two = (F.normalize(model(batch[side]), dim=-1) for side in ("one", "two"))
    scores = 5 * one @ two.T
    return -F.logsigmoid(scores * (2 * torch.eye(len(one)) - 1)).mean()


def one_view(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["one"]), batch["two"][:, 0] % 16)


class Codes(nn.Module):
    """One nearest code at first: the outputs do not move, and a straight-through gradient passes by the choice."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.into, self.choose, self.out = nn.Linear(4, 8), Nearest(straight), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.choose(self.into(x)))


class Nearest(nn.Module):
    def __init__(self, straight: bool) -> None:
        super().__init__()
        codes = torch.full((8, 8), 100.0)
        codes[3] = 0.1
        self.codes, self.straight = nn.Parameter(codes), straight

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.codes[torch.cdist(x, self.codes).argmin(-1)]
        return chosen + (x - x.detach()) if self.straight else chosen


def kinds(model: nn.Module, loss: Any, batches: Any) -> tuple[set[str], set[str]]:
    report = edgewise.check(model, batches, loss, torch.optim.AdamW(model.parameters(), 1e-3))
    return {f.kind for f in report.problems}, {fact for fact, _ in report.undecided}


def test_a_second_call_on_another_input_is_not_constant() -> None:
    torch.manual_seed(0)
    found, open_ = kinds(Tower(), pairs, two_views())
    assert "constant output" not in found and "constant output" in open_


@pytest.mark.parametrize("loss", [one_view, pairs])
def test_an_input_that_is_not_used_is_an_error(loss: Any) -> None:
    torch.manual_seed(0)
    assert "constant output" in kinds(Tower(used=False), loss, two_views())[0]


@pytest.mark.parametrize("straight", [True, False])
def test_a_code_with_a_gradient_past_it_is_not_constant(straight: bool) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(16, 4) for _ in range(3)]
    found, _ = kinds(Codes(straight), lambda model, x: (model(x) - x).square().mean(), batches)
    assert ("constant output" in found) is not straight
