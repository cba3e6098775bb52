"""The rate at a size that is not trained: small sizes that obey a law name it, others do not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.rehearsal import at_size, learning_rate_at
from edgewise.rehearsal.learning_rate import ladder_start
from tests.support.rehearsal_networks import batches, small, text_loss


class Sum(nn.Module):
    """A width of weights that are added: a step of Adam moves the output by width times the rate."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(width))
        self.depth = depth

    def forward(self, batch: Tensor) -> Tensor:
        return (self.x.sum() - 1.0).square() + 0 * batch.sum()


def build(width: int, depth: int) -> nn.Module:
    return small(width=width, depth=depth, mlp_width=2 * width)


def test_nothing_is_trained_at_the_target() -> None:
    """Its batches are read in training mode once: for the one gradient of its ladder's start."""
    passes: dict[int, int] = {}

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        width = next(p.shape[-1] for p in model.parameters())
        passes[width] = passes.get(width, 0) + model.training
        return text_loss(model, batch)

    found = learning_rate_at(build, (64, 4), batches(40), loss, progress=False)
    assert passes[64] == 1 and min(passes[16], passes[32]) > 30
    assert found.sizes == ((16, 2), (32, 2), (16, 4)) and found.error is not None
    steps = sum(rate.passes for rate in found.rates)
    assert steps <= 180 and f"{steps} small steps" in str(found)
    assert json.loads(found.to_json())["target"] == [64, 4]
    if found.best is not None:
        assert "nothing was trained at the target" in str(found)
        own = [rate.best / start for rate, start in zip(found.rates, found.starts, strict=True) if rate.best]
        assert found.best / found.start == pytest.approx(math.prod(own) ** (1 / 3))


def test_sizes_that_disagree_name_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = iter([1e-3, 1e-3, 9e-3, 1e-3])
    monkeypatch.setattr(at_size, "ladder_start", lambda *_, **__: next(starts))
    found = learning_rate_at(build, (64, 4), batches(40), text_loss, progress=False)
    assert found.best is None and found.error is not None and found.error > at_size.AGREE
    assert "do not agree on a law" in str(found) and "no rate is named" in str(found)


def test_a_small_size_that_learns_nothing_names_no_rate() -> None:
    generator = torch.Generator().manual_seed(1)
    dice = [torch.randint(12, (8, 17), generator=generator) for _ in range(40)]
    found = learning_rate_at(build, (64, 4), dice, text_loss, progress=False)
    assert found.best is None and "at 16 x 2, " in str(found) and "of guessing" in str(found)


@pytest.mark.parametrize(
    ("target", "sizes", "sentence"),
    [
        ((4, 2), None, "too small to be rehearsed smaller"),
        ((64, 4), [(16, 2)], "two or three pairs"),
        ((64, 4), [(16, 2), (32, 2)], "different widths and depths"),
    ],
)
def test_sizes_that_tell_nothing_are_refused(target: Any, sizes: Any, sentence: str) -> None:
    with pytest.raises(edgewise.BadInput, match=sentence):
        learning_rate_at(build, target, batches(), text_loss, sizes=sizes)


def test_the_start_of_a_ladder_follows_the_width() -> None:
    """The output of width weights moves by width times the rate of Adam: the start falls as its square root."""
    starts = [
        ladder_start(Sum(width, 1), batches(8), lambda m, x: m(x.float()), optimizer=torch.optim.Adam)
        for width in (4, 64)
    ]
    assert starts[0] > starts[1]
