"""Forty models, every verb, uninterrupted and interrupted at a random moment: the state is the same to the last bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import edgewise
from tests.fuzz.networks import build, with_weights
from tests.support.alarms import alarms, rings
from tests.support.unchanged import differences, everything, prepared

KINDS = (
    "encoder",
    "post",
    "tokens",
    "tied",
    "batch_norm",
    "spectral",
    "weight_norm",
    "shared",
    "in_place",
    "dictionary",
)
NEVER = 3600.0  # seconds until the alarm
TYPES = ("float32", "float64", "bfloat16", "float16")
MODELS = [(kind, dtype) for kind in KINDS for dtype in TYPES]


def _change_and_back(model: nn.Module) -> None:
    edgewise.initialize_(model, plan="critical", generator=0).undo()


VERBS: dict[str, Callable[[nn.Module], Any]] = {
    "measure": lambda model: edgewise.measure(model, tokens=8),
    "describe": lambda model: edgewise.describe(model),
    "audit": edgewise.audit_initialization,
    "plan": lambda model: edgewise.critical_plan(model, tokens=8),
    "total_changes": edgewise.total_changes,
    "initialize_ and undo": _change_and_back,
}


def attempt(verb: Callable[[nn.Module], Any], model: nn.Module, seconds: float) -> str:
    """Run it, with an alarm after some seconds: how it ended."""
    with alarms() as set_alarm:
        try:
            return "interrupted" if rings(set_alarm, seconds, lambda: verb(model)) else "done"
        except edgewise.BadInput:
            return "refused"


def check(kind: str, dtype: str, verbs: tuple[str, ...]) -> list[str]:
    """Every verb on a model in a mixed state, first in peace and then with an alarm; the endings."""
    moments, endings = random.Random(f"{kind} {dtype}"), []
    model = prepared(with_weights(build(kind, 16, 3), "drawn", dtype))
    for name in verbs:
        for seconds in (NEVER, moments.uniform(0.01, 0.3)):
            before = everything(model)
            endings.append(attempt(VERBS[name], model, seconds))
            assert not (changed := differences(before, everything(model))), (name, endings[-1], changed)
    return endings


@pytest.mark.parametrize(
    "kind, dtype", [("batch_norm", "float32"), ("spectral", "float64"), ("tied", "float16")]
)
def test_three_models_are_left_as_they_were(kind: str, dtype: str) -> None:
    assert "done" in check(kind, dtype, ("measure", "audit"))


@pytest.mark.slow
@pytest.mark.parametrize("kind, dtype", MODELS)
def test_forty_models_are_left_as_they_were(kind: str, dtype: str) -> None:
    check(kind, dtype, tuple(VERBS))


class Lazy(nn.Module):
    """A residual stack whose matrices have no shape before the first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.readout = nn.Embedding(32, 16), nn.LazyLinear(32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.LazyLinear(16)) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = x + block(x)
        out: torch.Tensor = self.readout(x)
        return out


@pytest.mark.parametrize(
    "verb",
    [*VERBS.values(), edgewise.check, edgewise.structure, edgewise.predict, edgewise.watch],
    ids=[*VERBS, "check", "structure", "predict", "watch"],
)
def test_a_lazy_model_is_rejected_by_the_name_of_its_parameter(verb: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(edgewise.BadInput, match=r"readout\.weight has no shape yet \(a lazy module\)"):
        verb(Lazy())
