"""What `structure` and `measure` cost by depth: 200 blocks may take at most ten times the seconds of 20."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from benchmarks.report import Findings, Goal, Table

WIDTH, HEADS, TOKENS, WORDS = 32, 4, 16, 61
TIMES = 10.0  # the most that ten times the blocks may cost


class Block(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.first, self.last = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.one(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.last(F.gelu(self.first(self.two(x))))


def model_of(blocks: int) -> nn.Module:
    """A decoder with so many blocks."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.Sequential(*(Block() for _ in range(blocks))), nn.Linear(WIDTH, WORDS)
    )


def seconds(verb: Callable[..., Any], blocks: int, repeats: int) -> float:
    """Processor seconds of a verb, the least of several."""
    ids, model = torch.randint(WORDS, (2, TOKENS)), model_of(blocks)
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        verb(model, ids)
        taken.append(time.process_time() - start)
    return min(taken)


def run(quick: bool, tell: Callable[..., None]) -> Findings:
    """Both verbs at two depths."""
    few, many, repeats = (5, 50, 1) if quick else (20, 200, 3)
    seconds(edgewise.measure, 2, 1)  # imports
    rows, goals = [], []
    for place, verb in enumerate((edgewise.structure, edgewise.measure)):
        tell(place / 2, verb.__name__)
        short, long = seconds(verb, few, repeats), seconds(verb, many, repeats)
        rows.append([verb.__name__, short, long, long / short])
        promise = f"{verb.__name__} of {many} blocks takes at most {TIMES:.0f} times the seconds of {few}"
        goals.append(Goal(promise, f"{long / short:.1f} times", None if quick else long / short <= TIMES))
    columns = ["verb", f"{few} blocks, s", f"{many} blocks, s", "times"]
    return [Table("Processor seconds", columns, rows)], goals, [f"width {WIDTH}, {TOKENS} tokens, one thread"]
