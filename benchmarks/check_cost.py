"""What `edgewise.check` costs beside the plain training step of the same batch, and with `only="tensors"`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import edgewise
from benchmarks.clock import Task, interleaved
from benchmarks.report import Findings, Goal, Table, Tell
from experiments.preflight.networks import NETWORKS, setup

ROOT = Path(__file__).parents[1]
STEPS, SECONDS = 5.0, 1.0  # a check may cost so many steps, and so many seconds beside them
LARGE, TENSORS = 15.0, 1.5  # seconds of one core for the shape of GPT-2 small: a check, and its tensors alone
MEMORY = 1.5  # beyond what plain steps take, in units of weights and optimizer state


def run(quick: bool, tell: Tell) -> Findings:
    """Small networks several times, the shape of GPT-2 small three times; its memory in processes of their own."""
    subjects: dict[str, dict[str, Any]] = {
        "small GPT": setup(NETWORKS[0]),
        "small Llama-like": setup(NETWORKS[3]),
    }
    if not quick:
        subjects["GPT-2 small, 2 x 64 tokens"] = gpt2_small()
    rows: list[list[Any]] = []
    goals = []
    for place, (name, made) in enumerate(subjects.items()):
        tell(place / 4, name)
        cost = interleaved(tasks(made), 1 if quick else 3 if place == 2 else 9)
        step, check, tensors = (cost[what].cpu for what in ("step", "check", "tensors"))
        most = STEPS * step + SECONDS
        rows.append([name, step, check, check / step, tensors, tensors / step])
        promise = f"check of {name}: at most {STEPS:.0f} steps and {SECONDS:.0f} s, {most:.2f} s"
        goals.append(Goal(promise, f"{check:.2f} s", None if quick else check <= most))
    columns = ("network", "step, cpu s", "check, cpu s", "steps", "only tensors, cpu s", "steps")
    tables = [Table("Check beside a training step", columns, rows)]
    if not quick:
        large = rows[-1][0]
        goals.append(Goal(f"check of {large}: under {LARGE:.0f} s", f"{check:.2f} s", check < LARGE))
        goals.append(Goal(f"only its tensors: at most {TENSORS} s", f"{tensors:.2f} s", tensors <= TENSORS))
        subjects.clear()
        tell(3 / 4, "memory")
        table, goal = memory(large)
        tables, goals = [*tables, table], [*goals, goal]
    return tables, goals, ["AdamW; in the first table the optimizer holds no state"]


def memory(name: str) -> tuple[Table, Goal]:
    """Peak memory of three steps and of a check, each in a process of its own, with and without optimizer state."""
    unit = 3 * 4 * sum(p.numel() for p in gpt2_small()["model"].parameters()) / 2**30
    rows: list[list[Any]] = []
    for state in ("none", "of one step"):
        before, steps, check = (peak(what, state) for what in ("nothing", "steps", "check"))
        rows.append([state, before, steps, check, check - steps, (check - steps) / unit])
    most = max(row[-1] for row in rows)
    promise = f"memory of a check of {name} beyond that of plain steps: at most {MEMORY} x (weights + optimizer state)"
    columns = (
        "optimizer state before",
        "before, GiB",
        "3 steps, GiB",
        "check, GiB",
        "more, GiB",
        "x (weights + state)",
    )
    title = f"Peak memory, {name}; weights and optimizer state are {unit:.2f} GiB"
    return Table(title, columns, rows), Goal(promise, f"{most:.2f} x", most <= MEMORY)


def peak(what: str, state: str) -> float:
    """Peak resident memory in GiB of a process that does this."""
    command = [sys.executable, "-m", "benchmarks.check_cost", what, state]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return float(done.stdout.split()[-1])


def alone(what: str, state: str) -> None:
    """In a process of its own: make the network, do it, and print the peak of the memory since."""
    made = gpt2_small()
    step = tasks(made | {"plain": made["optimizer"]})["step"].function
    if state != "none":
        step()
        made["model"].zero_grad()
    with open("/proc/self/clear_refs", "w") as peaks:  # what making the network took is forgotten
        peaks.write("5")
    for _ in range(3 if what == "steps" else 0):
        step()
    if what == "check":
        edgewise.check(**made)
    print(int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 2**20)


def tasks(made: dict[str, Any]) -> dict[str, Task]:
    """A plain step, a whole check, and a check of the tensors alone; the steps move the weights by a rate of 1e-9."""
    model, batch, loss = made["model"], made["batches"][0], made["loss"]
    plain = made.get("plain") or torch.optim.AdamW(model.parameters(), lr=1e-9)

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


if __name__ == "__main__":
    alone(*sys.argv[1:])
