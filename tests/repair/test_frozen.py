"""Frozen parameters (requires_grad=False): kept bit for bit, counted and named, and written only by frozen=True."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.errors import BadInput
from edgewise.repair.new_values import module_text
from edgewise.repair.plan import TOLERANCE
from tests.support.covering import covering
from tests.support.stacks import perceptron


class LoRA(nn.Module):
    """A frozen matrix with a low-rank update beside it, as peft builds it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2 * self.lora_B(self.lora_A(x))


def encoder(depth: int = 8) -> nn.TransformerEncoder:
    """Post-norm: does not train as torch draws it."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def lora() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).requires_grad_(False)
    for layer in model.model.layers:
        for owner, name in (
            (layer.self_attn, "v_proj"),
            (layer.self_attn, "o_proj"),
            (layer.mlp, "down_proj"),
        ):
            base = getattr(owner, name)
            if name != "v_proj":
                base.weight.mul_(60)
            setattr(owner, name, LoRA(base))
    return model


def head_only() -> nn.Module:
    return nn.Sequential(encoder().requires_grad_(False), nn.Linear(32, 10))


class Prefix(nn.Module):
    """Learned tokens in front of the input of a frozen network, which alone train."""

    def __init__(self, tokens: int = 4) -> None:
        super().__init__()
        self.prefix = nn.Parameter(torch.randn(tokens, 32))
        self.network = encoder().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(torch.cat([self.prefix.expand(len(x), -1, -1), x], 1))


def partly() -> nn.Module:
    model = encoder()
    for layer in model.layers[:4]:
        layer.requires_grad_(False)
    return model


def tied() -> nn.Module:
    """One matrix of all blocks, and a parameter that shares its memory and does not train."""
    model = encoder()
    for layer in model.layers[1:]:
        layer.linear2.weight = model.layers[0].linear2.weight
    model.alias = nn.Linear(64, 32, bias=False)
    model.alias.weight = nn.Parameter(model.layers[0].linear2.weight.data, requires_grad=False)
    return model


def ids() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(16)[None] + 3}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "lora": (lora, ids),
    "head only": (head_only, lambda: torch.randn(2, 8, 32)),
    "prefix": (Prefix, lambda: torch.randn(2, 8, 32)),
    "partly": (partly, lambda: torch.randn(2, 8, 32)),
    "tied": (tied, lambda: torch.randn(2, 8, 32)),
}


def made(name: str) -> tuple[nn.Module, Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    make, batch = NETWORKS[name]
    model = make()
    return model, batch(), {n: p.detach().clone() for n, p in model.named_parameters(remove_duplicate=False)}


def changed(model: nn.Module, before: dict[str, Tensor], frozen: bool) -> list[str]:
    parameters = model.named_parameters(remove_duplicate=False)
    return [n for n, p in parameters if p.requires_grad != frozen and not torch.equal(p, before[n])]


@pytest.mark.parametrize(("name", "goal"), covering([*NETWORKS], ["critical", "xavier"]))
def test_frozen_parameters_stay_bit_for_bit(name: str, goal: str) -> None:
    model, batch, before = made(name)
    with pytest.warns(UserWarning, match=r"frozen parameters? \(requires_grad=False\) stay"):
        applied = edgewise.initialize_(model, plan=goal, batch=batch, generator=1)
    assert changed(model, before, frozen=True) == []
    assert applied.kept and applied.kept == applied.plan.kept
    assert "frozen=True" in str(applied) and applied.kept[0].split(".")[-2] in str(applied)
    assert set(applied.plan.json()["kept"]) == set(applied.kept)
    assert not set(applied.plan.parameters) & set(applied.kept)
    assert bool(changed(model, before, frozen=False)) == bool(applied.plan.changes)
    applied.undo()
    assert changed(model, before, frozen=True) == changed(model, before, frozen=False) == []


@pytest.mark.parametrize("name", NETWORKS)
def test_who_means_it_writes_them_too(name: str) -> None:
    model, batch, before = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied = edgewise.initialize_(model, batch=batch, generator=1, frozen=True)
    assert changed(model, before, frozen=True) and applied.kept == () and applied.plan.frozen
    applied.undo()
    assert changed(model, before, frozen=True) == []


@pytest.mark.parametrize("name", ["lora", "head only", "prefix"])
def test_where_only_frozen_weights_would_help_it_says_that_nothing_can_be_changed(name: str) -> None:
    model, batch, before = made(name)
    plan = edgewise.critical_plan(model, batch)
    assert not plan.changes and not plan.reached and plan.expected == plan.before
    assert "Nothing can be changed: the weights that would help are frozen." in plan.diagnosis
    assert "Expected after" not in str(plan)
    with pytest.warns(UserWarning, match="Nothing is written"):
        applied = edgewise.initialize_(model, batch=batch)
    assert changed(model, before, frozen=False) == [] and str(applied).endswith("Nothing was written.")


def test_what_a_plan_around_frozen_blocks_expects_is_measured() -> None:
    model, batch, _ = made("partly")
    plan = edgewise.critical_plan(model, batch)
    assert plan.changes and plan.expected is not None and plan.before is not None
    assert {name.split(".")[1] for name in plan.parameters} == {str(k) for k in range(4, 8)}
    assert re.search(r"\d+ of them get their own", str(plan)), "a frozen copy stays a copy"
    edgewise.initialize_(model, plan=plan, generator=3)
    after = edgewise.total_changes(model, batch)
    assert abs(after.angle - plan.expected.angle) < TOLERANCE + plan.expected.spread
    assert abs(after.gradient - plan.expected.gradient) < TOLERANCE + plan.expected.spread
    assert plan.reached == (plan.expected.worst <= plan.limit + TOLERANCE)
    assert (
        plan.reached or "The weights that are not frozen do not bring both totals within 1" in plan.diagnosis
    )


def test_parameters_frozen_after_the_plan_was_made_are_kept_too() -> None:
    torch.manual_seed(0)
    model, batch = encoder(), torch.randn(2, 8, 32)
    plan = edgewise.critical_plan(model, batch)
    model.layers[3].requires_grad_(False)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with pytest.warns(UserWarning, match="what it expects does not hold"):
        applied = edgewise.initialize_(model, plan=plan, generator=1)
    assert changed(model, before, frozen=True) == [] and changed(model, before, frozen=False)
    assert applied.kept and all(name.startswith("layers.3.") for name in applied.kept)
    assert f"{len(plan.parameters) - len(applied.kept)} parameters." in str(applied)
    applied.undo()
    assert changed(model, before, frozen=False) == []
    edgewise.initialize_(model, plan=plan, generator=1, frozen=True)
    assert changed(model, before, frozen=True)


def test_the_written_module_keeps_them_and_writes_them_on_request() -> None:
    torch.manual_seed(0)
    plan = edgewise.critical_plan(perceptron(12, 16), torch.randn(16, 20))
    for keeps in (True, False):
        text = module_text(
            plan if keeps else type(plan)(**(vars(plan) | {"frozen": True})), "init", "A plan."
        )
        names: dict[str, Any] = {}
        exec(compile(text, "init", "exec"), names)
        model, other = perceptron(12, 16), perceptron(12, 16)
        other.load_state_dict(model.state_dict())
        for copy in (model, other):
            copy[4].requires_grad_(False)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            names["initialize_"](model, seed=1)
        assert bool(changed(model, before, frozen=True)) == (not keeps)
        assert changed(model, before, frozen=False)
        assert any("4.weight" in str(w.message) for w in caught) == keeps
        names["initialize_"](other, seed=1, frozen=True)
        assert changed(other, before, frozen=True)


def test_frozen_values_are_not_lost_where_the_rest_is_on_the_meta_device() -> None:
    model = perceptron(12, 16)
    plan = edgewise.critical_plan(model, torch.randn(16, 20))
    model[2].requires_grad_(False)
    model[4].to("meta")
    with (
        pytest.warns(UserWarning, match="stay"),
        pytest.raises(BadInput, match="frozen parameters have values"),
    ):
        edgewise.initialize_(model, plan=plan)


def test_a_frozen_parameter_that_no_plan_asks_for_is_not_mentioned() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(encoder(), nn.Linear(32, 10).requires_grad_(False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied = edgewise.initialize_(model, batch=torch.randn(2, 8, 32), generator=1)
    assert applied.kept == () and json.loads(json.dumps(applied.plan.json()))["kept"] == []
