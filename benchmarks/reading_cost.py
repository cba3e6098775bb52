"""What reading a model costs: `describe(model, batch)` over one forward pass of the batch, at several depths."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.clock import Task, interleaved
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise import describe
from edgewise.models.behavior.read import read

FORWARDS = 2.0  # the project's goal


def run(quick: bool, tell: Tell) -> Findings:
    depths = (2, 4) if quick else (4, 12, 24)
    rows: list[list[Any]] = []
    for place, depth in enumerate(depths):
        tell(place / len(depths), f"{depth} blocks")
        model, batch = _model(depth, quick)
        times = interleaved(_tasks(model, batch), 2 if quick else 5)
        base = times["forward"].cpu
        rows += [[depth, name, t.cpu, t.cpu / base, t.scatter] for name, t in times.items()]
    worst = max(row[3] for row in rows if row[1] == "describe")
    goal = Goal(
        f"describe: at most {FORWARDS:g} forward passes", f"{worst:.2f}", None if quick else worst <= FORWARDS
    )
    columns = ("blocks", "what", "cpu s", "over a forward", "scatter")
    shape = "8 x 512 tokens" if not quick else "2 x 64 tokens"
    return [Table(f"GPT-2, width 384, {shape}", columns, rows)], [goal], []


def _model(depth: int, quick: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = (2, 64) if quick else (8, 512)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=384, n_layer=depth, n_head=6, vocab_size=1024, n_positions=512)
    ).eval()
    return model, {"input_ids": torch.randint(0, 1024, shape, generator=torch.Generator().manual_seed(0))}


def _tasks(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, Task]:
    def forward() -> None:
        with torch.no_grad():
            model(**batch)

    return {
        "forward": Task(forward),
        "read": Task(lambda: read(model, batch)),
        "describe": Task(lambda: describe(model, batch)),
    }
