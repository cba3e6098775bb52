"""What `edgewise.check` costs beside the plain training step of the same batch, and with `only="tensors"`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import edgewise
from benchmarks.clock import Task, interleaved
from benchmarks.report import Findings, Goal, Table, Tell
from experiments.preflight.networks import NETWORKS, setup

STEPS, SECONDS = 5.0, 1.0  # a check may cost so many steps, and so many seconds beside them


def run(quick: bool, tell: Tell) -> Findings:
    """Small networks several times, the shape of GPT-2 small once."""
    subjects: dict[str, dict[str, Any]] = {
        "small GPT": setup(NETWORKS[0]),
        "small Llama-like": setup(NETWORKS[3]),
    }
    if not quick:
        subjects["GPT-2 small, 2 x 64 tokens"] = gpt2_small()
    rows: list[list[Any]] = []
    goals = []
    for place, (name, made) in enumerate(subjects.items()):
        tell(place / len(subjects), name)
        cost = interleaved(tasks(made), 1 if quick or place == 2 else 9)
        step, check, tensors = (cost[what].cpu for what in ("step", "check", "tensors"))
        most = STEPS * step + SECONDS
        rows.append([name, step, check, check / step, tensors, tensors / step])
        promise = f"check of {name}: at most {STEPS:.0f} steps and {SECONDS:.0f} s, {most:.2f} s"
        goals.append(Goal(promise, f"{check:.2f} s", None if quick else check <= most))
    columns = ("network", "step, cpu s", "check, cpu s", "steps", "only tensors, cpu s", "steps")
    return (
        [Table("Check beside a training step", columns, rows)],
        goals,
        ["AdamW; the optimizer holds no state"],
    )


def tasks(made: dict[str, Any]) -> dict[str, Task]:
    """A plain step, a whole check, and a check of the tensors alone; the steps move the weights by a rate of 1e-9."""
    model, batch, loss = made["model"], made["batches"][0], made["loss"]
    plain = torch.optim.AdamW(model.parameters(), lr=1e-9)

    def step() -> None:
        plain.zero_grad()
        loss(model, batch).backward()
        plain.step()

    return {
        "step": Task(step),
        "check": Task(lambda: edgewise.check(**made)),
        "tensors": Task(lambda: edgewise.check(model, only="tensors")),
    }


def gpt2_small() -> dict[str, Any]:
    """The published shape with fresh weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).train()

    def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())

    batches = [torch.randint(0, 50257, (2, 65)) for _ in range(3)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    return {"model": model, "batches": batches, "loss": loss, "optimizer": optimizer}
