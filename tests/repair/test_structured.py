"""What a plan must not draw: structured parameters, adapters, and layers that are no copies; and what it says after."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from edgewise.errors import BadInput
from edgewise.models.names.weight_gains import is_set, is_structured
from edgewise.repair.layers import LayerStack, copies_of_first, layers_of
from tests.repair.test_frozen import LoRA
from tests.support.strange_names import Strange


class Decaying(nn.Module):
    """A recurrence with decays log(1..n) in a matrix, and time steps in a bias: neither was drawn."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.into, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.Linear(width, width, bias=False),
        )
        self.log_a = nn.Parameter(torch.arange(1, width + 1).float().log().repeat(width, 1))
        nn.init.uniform_(self.into.bias, -7, -2)
        nn.init.normal_(self.out.weight, std=3.0)

    def forward(self, x: Tensor) -> Tensor:
        step = F.softplus(self.into(self.norm(x)))
        decay = torch.exp(-step @ self.log_a.exp() / 100)
        return x + self.out(torch.cumsum(step * decay, 1))


@pytest.mark.parametrize("goal", ["critical", "xavier"])
def test_decays_and_time_steps_are_not_drawn(goal: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Decaying() for _ in range(4)))
    plan = edgewise.critical_plan(model, torch.randn(2, 8, 16), goal=goal)
    assert plan.changes and not [n for n in plan.parameters if "log_a" in n or "into.bias" in n]
    assert any("out.weight" in name for name in plan.parameters)


def test_what_counts_as_set_and_what_as_drawn() -> None:
    torch.manual_seed(0)
    drawn = [torch.randn(32, 32), torch.rand(8, 64) - 0.5, nn.init.orthogonal_(torch.empty(16, 16))]
    set_by_hand = [
        torch.zeros(8, 8),
        torch.ones(8, 8),
        torch.eye(16),
        torch.rand(16, 16),
        torch.randn(1, 9).repeat(9, 1),
    ]
    assert not any(map(is_structured, drawn)) and all(map(is_structured, set_by_hand))
    assert is_set(torch.ones(8)) and is_set(torch.rand(64) - 5)
    assert not is_set(torch.zeros(8)) and not is_set(torch.rand(64) - 0.5)


class Adapted(Strange):
    """Every output matrix has a low-rank update; only these train."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        for room in self.rooms:
            room.delta = LoRA(room.delta)
            nn.init.normal_(room.delta.lora_B.weight)


def test_a_scheme_does_not_draw_adapters() -> None:
    torch.manual_seed(0)
    model = Adapted()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for frozen in (False, True):
        plan = edgewise.critical_plan(model, goal="xavier", frozen=frozen)
        assert not [name for name in plan.parameters if "lora" in name]
        assert bool(plan.changes) == frozen
    with pytest.warns(UserWarning, match="frozen"):
        edgewise.initialize_(model, plan="xavier", generator=1)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_one_equal_matrix_makes_no_copy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)))
    layers, paths = LayerStack(("0", "1", "2"), leaf=False), ("0.weight", "2.weight")
    with torch.no_grad():
        model[1][0].weight.copy_(model[0][0].weight)
    assert copies_of_first(model, layers, paths) == []
    with torch.no_grad():
        model[1][2].weight.copy_(model[0][2].weight)
    assert copies_of_first(model, layers, paths) == ["1.0.weight", "1.2.weight"]


def test_weights_that_are_not_numbers_are_rejected_by_name() -> None:
    model = Strange()
    with torch.no_grad():
        model.rooms[1].delta.weight[0, 0] = torch.nan
    with pytest.raises(BadInput, match=r"rooms\.1\.delta\.weight"):
        edgewise.initialize_(model)


def test_the_new_weights_are_measured_once_and_the_result_says_what_came_of_them() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
    model, batch = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), torch.randn(2, 8, 32)
    applied = edgewise.initialize_(model, batch=batch, generator=3)
    assert applied.plan.changes and applied.after is not None and not applied.unmeasured
    now = edgewise.total_changes(model, batch)
    assert (applied.after.angle, applied.after.gradient) == pytest.approx((now.angle, now.gradient))
    assert f"Measured after the change:            {applied.after}" in str(applied)
    assert applied.after.worst < applied.plan.before.worst


def test_layers_are_those_that_measure_reads_one_for_each_call() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    model, batch = nn.Sequential(*[layer] * 3), torch.randn(2, 8, 16)
    assert layers_of(model, batch).names == ("0", "0", "0")
    plan = edgewise.critical_plan(model, batch)
    assert plan.depth == edgewise.measure(model, batch).depth == 3
    assert len(set(plan.parameters)) == len(plan.changes) or not plan.changes


class Pairs(nn.Module):
    """Attention and MLP blocks of one module: no block is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(6))
        self.maps = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for norm, turn in zip(self.norms, self.maps, strict=True):
            x = x + turn(norm(x)).relu()
        return x


def test_a_stack_whose_blocks_are_no_modules_is_planned_block_by_block() -> None:
    torch.manual_seed(0)
    model = Pairs()
    with torch.no_grad():
        for turn in model.maps:
            turn.weight.mul_(40)
    plan = edgewise.critical_plan(model, torch.randn(2, 8, 16))
    assert plan.depth == 6
    assert {change.projection.parameter for change in plan.changes} == {f"maps.{k}.weight" for k in range(6)}
