"""What the cure costs: a plan by theory, one by measurement, and writing it, over one training step of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.clock import Task, interleaved, once
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.repair.by_measurement import plan_by_measurement
from edgewise.repair.initialize import critical_plan, initialize_
from edgewise.repair.layers import Exclusions, layers_of

PASSES = 30  # the project's goal


def run(quick: bool, tell: Tell) -> Findings:
    model, batch = _model(quick)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    tell(0.1, "training step")
    base = interleaved({"step": Task(step)}, 2 if quick else 9)["step"].cpu
    plans: dict[str, Any] = {}
    layers, nothing = layers_of(model), Exclusions.of(model, [])
    rows: list[list[Any]] = [["one training step (AdamW)", base, 1.0, 1]]
    for name, make in (
        ("plan by theory, checked by trial draws", lambda: critical_plan(model, batch)),
        ("plan by measurement", lambda: plan_by_measurement(model, batch, layers, nothing, 1.0)),
    ):
        tell(0.4, name)
        make()  # tables are loaded once per process
        plans[name], spent = once(make)
        rows.append([name, spent.cpu, spent.cpu / base, plans[name].passes])
    tell(0.8, "initialize_")
    _, spent = once(lambda: initialize_(model, plans["plan by measurement"], generator=0))
    rows.append(["initialize_ (writing)", spent.cpu, spent.cpu / base, 0])
    most = max(plan.passes for plan in plans.values())
    goals = [Goal(f"at most {PASSES} forward-backward passes", str(most), most <= PASSES)]
    depth, width = (6, 32) if quick else (24, 128)
    table = Table(
        f"torch encoder, {depth} layers, width {width}, 4 x 64 tokens",
        ("what", "cpu s", "steps", "passes"),
        rows,
    )
    return [table], goals, ["The plan reads every matrix once besides its passes, and evaluates the theory."]


def _model(quick: bool) -> tuple[nn.Module, torch.Tensor]:
    depth, width = (6, 32) if quick else (24, 128)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    return model, torch.randn(4, 64, width)
