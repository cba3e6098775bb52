"""A written plan writes the same bits as `initialize_`, in a process that cannot import edgewise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import edgewise
from edgewise.errors import BadInput
from edgewise.repair.initialize import critical_plan
from edgewise.repair.new_values import DRAWS, draw, module_text, write_module
from edgewise.repair.plan import Plan
from tests.support.models import batch, build

APPLY = """
import importlib.util, sys
sys.modules["edgewise"] = None  # an import of it raises
import torch
from safetensors.torch import load_file, save_file
from torch import nn

for stem in sys.argv[1:]:
    model = nn.Module()
    for name, values in load_file(f"{stem}_before.safetensors").items():
        *path, last = name.split(".")
        owner = model
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner._modules[part]
        owner.register_parameter(last, nn.Parameter(values))
    spec = importlib.util.spec_from_file_location(stem, f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.initialize_(model, seed=3)
    save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, f"{stem}_after.safetensors")
"""


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
    stack = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(32, 32), stack)  # names with two numbers: 1.layers.0.linear1.weight


def filters() -> nn.Module:
    return nn.Sequential(*(part for _ in range(12) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())))


def perceptron() -> nn.Module:
    return nn.Sequential(*(part for _ in range(16) for part in (nn.Linear(24, 24), nn.ReLU())))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], str]] = {
    "encoder": (encoder, lambda: torch.randn(2, 8, 32), "critical"),
    "gpt2": (lambda: build("gpt2"), lambda: batch("gpt2"), "deepnorm"),  # matrices stored (in, out), fused
    "pythia": (lambda: build("pythia"), lambda: batch("pythia"), "xavier"),  # rows of every head
    "filters": (filters, lambda: torch.randn(2, 8, 6, 6), "critical"),
    "perceptron": (perceptron, lambda: torch.randn(16, 24), "critical"),
}


def plan_of(name: str) -> tuple[nn.Module, Plan]:
    make, inputs, goal = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    return model, critical_plan(model, inputs(), goal=goal)


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone().contiguous() for name, value in model.named_parameters()}


def test_the_module_writes_what_initialize_writes(tmp_path: Path) -> None:
    expected = {}
    for name in NETWORKS:
        model, plan = plan_of(name)
        assert plan.changes
        save_file(parameters(model), tmp_path / f"{name}_before.safetensors")
        write_module(plan, tmp_path / f"{name}.py", f"Plan of {name}.")
        edgewise.initialize_(model, plan=plan, generator=3)
        expected[name] = parameters(model)
    (tmp_path / "apply.py").write_text(APPLY)
    subprocess.run([sys.executable, "apply.py", *NETWORKS], cwd=tmp_path, check=True, timeout=120)
    for name, values in expected.items():
        after, before = (load_file(tmp_path / f"{name}_{when}.safetensors") for when in ("after", "before"))
        assert set(after) == set(values)
        assert any(not torch.equal(after[key], before[key]) for key in values)
        for key, value in values.items():
            assert torch.equal(after[key], value), (name, key)
    assert "names('1.layers.{}.linear1.weight', range(0, 8))" in (tmp_path / "encoder.py").read_text()


def test_every_way_to_draw_can_be_written() -> None:
    model, plan = plan_of("perceptron")
    for kind in DRAWS:
        changes = tuple(type(c)(**(vars(c) | {"draw": kind})) for c in plan.changes if c.draw != "zero")
        text = module_text(type(plan)(**(vars(plan) | {"changes": changes})), "init", "A plan.")
        names: dict[str, Any] = {}
        exec(compile(text, kind, "exec"), names)
        assert set(names["DRAWS"]) == {kind}
        if kind.startswith("delta"):  # of filters, which this plan does not have
            streams = [torch.Generator().manual_seed(3) for _ in range(2)]
            written = names["DRAWS"][kind]((6, 4, 3, 3), 0.5, streams[0], 2)
            assert torch.equal(written, draw(kind, (6, 4, 3, 3), 0.5, streams[1], 2))
            continue
        copy = perceptron()
        names["initialize_"](copy, seed=1)
        edgewise.initialize_(model, plan=type(plan)(**(vars(plan) | {"changes": changes})), generator=1)
        drawn = {name for change in changes for name in change.projection.parameters}
        assert all(torch.equal(copy.get_parameter(name), model.get_parameter(name)) for name in drawn), kind


def test_a_plan_without_changes_is_refused(tmp_path: Path) -> None:
    _, plan = plan_of("perceptron")
    with pytest.raises(BadInput, match="changes nothing"):
        write_module(type(plan)(**(vars(plan) | {"changes": ()})), tmp_path / "init.py", "Nothing.")
    assert not list(tmp_path.iterdir())
