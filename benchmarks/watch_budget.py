"""Whether edgewise.watch keeps to its budget: twenty short runs of a network so small that a sample costs half a step.

Meant for a machine with other work on it, where steps and samples take now more, now less.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.report import Findings, Goal, Table, Tell
from benchmarks.watch_price import Loop
from edgewise import watch

BUDGET, RUNS, STEPS = 0.02, 20, 200


def run(quick: bool, tell: Tell) -> Findings:
    runs, steps = (3, 60) if quick else (RUNS, STEPS)
    rows = []
    for number in range(runs):
        tell(number / runs, f"run {number + 1}")
        rows.append([number + 1, *_price(steps)])
    held = sum(price <= BUDGET for _, price, _, _ in rows)
    goal = Goal(
        f"the budget of {BUDGET:.0%} is held in {RUNS} of {RUNS} runs of {STEPS} steps",
        f"{held} of {runs}",
        None if quick else held == runs,
    )
    columns = ("run", "price", "samples", "step, cpu ms")
    return [Table(f"an encoder of 2 x 32, {steps} steps", columns, rows)], [goal], []


def _price(steps: int) -> tuple[float, int, float]:
    """(share of the training time, samples, ms of a step) after some steps."""
    loop = Loop(_tiny)
    with watch(loop.model, budget=BUDGET, quiet=True) as handle:
        for _ in range(steps):
            loop.step()
        return handle.price, handle.budget.samples, 1e3 * handle.budget.elapsed / steps


def _tiny() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, norm_first=True)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model, x = nn.Sequential(nn.Embedding(64, 32), stack, nn.Linear(32, 64)), torch.randint(0, 64, (8, 32))
    return model, lambda m: nn.functional.cross_entropy(m(x).flatten(0, 1), x.flatten())
