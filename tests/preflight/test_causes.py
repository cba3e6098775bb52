"""Causes before consequences: one planted mistake has one finding, and circles of consequences have a first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.preflight import catalog
from edgewise.preflight.catalog import FOLLOWS, error, note, tidy, warning

WORDS, WIDTH = 48, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(self.one(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.two(x))))
        return out


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            words=nn.Embedding(WORDS, WIDTH),
            body=nn.Sequential(*(Block() for _ in range(4))),
            norm=nn.LayerNorm(WIDTH),
            head=nn.Linear(WIDTH, WORDS),
        )
    )


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def memory(model: nn.Sequential) -> None:
    model.body[1].up.weight.data[:8] = 3e33


def small(model: nn.Sequential) -> None:
    for p in model.parameters():
        p.data.mul_(0.01 if p.dim() == 2 else 1)


def overwritten_by_zeros(model: nn.Sequential) -> None:
    model.words.register_forward_hook(lambda m, a, out: out * 0)


def overwritten_by_ones(model: nn.Sequential) -> None:
    model.words.register_forward_hook(lambda m, a, out: out * 0 + 1)


def gain_zero(model: nn.Sequential) -> None:
    model.body[1].one.weight.data.zero_()


PLANTED = {
    memory: "never written",
    small: "weight scale",
    overwritten_by_zeros: "constant output",
    overwritten_by_ones: "constant output",
    gain_zero: "silent norm",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda f: f.__name__)
def test_one_mistake_has_one_finding(plant: Callable[[nn.Sequential], None]) -> None:
    model = network()
    plant(model)
    batches = [torch.randint(0, WORDS, (6, 17), generator=torch.Generator().manual_seed(k)) for k in range(3)]
    report = edgewise.check(model, batches, loss, torch.optim.AdamW(model.parameters(), 1e-3))
    assert [f.kind for f in report.problems] == [PLANTED[plant]], str(report)


def of(kind: str, severity: Callable[..., catalog.CheckFinding]) -> catalog.CheckFinding:
    return catalog.replace(severity("model", f"about {kind}"), kind=kind)


def test_a_cause_that_stands_later_in_the_table_takes_its_consequences() -> None:
    order = list(FOLLOWS)
    assert order.index("input unused") < order.index("never written")
    found = tidy([of("input unused", warning), of("never written", error)])
    assert [(f.kind, f.follows) for f in found] == [("never written", ("input unused",))]


def test_of_causes_in_a_circle_the_first_of_the_table_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "FOLLOWS", {"a": ("b",), "b": ("c",), "c": ("a",)})
    kinds = [f.kind for f in tidy([of("c", warning), of("b", warning), of("a", error), of("d", note)])]
    assert kinds[0] == "a" and "d" in kinds and set(kinds) >= {"a", "c", "d"}
