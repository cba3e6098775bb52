"""What `learning_rate` costs: training steps of one answer, and processor seconds at 48 blocks of width 64."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from benchmarks.report import Findings, Goal, Table

SYMBOLS, TOKENS, SIZE = 28, 24, 16
STEPS, SECONDS = 60, 30.0  # the most that one answer may cost; seconds at 48 blocks


def model_of(blocks: int, norm: str) -> nn.Module:
    """A decoder of width 64 with so many blocks."""
    torch.manual_seed(0)
    knobs = {"depth": blocks, "width": 64, "heads": 2, "mlp_width": 128, "tokens": TOKENS, "causal": True}
    return edgewise.nets.build(edgewise.transformer(norm=norm, **knobs), inputs=SYMBOLS, outputs=SYMBOLS)


def batches(count: int = 70) -> list[Tensor]:
    """Sequences in which a symbol is followed by one of two others."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.zeros(count, SIZE, TOKENS + 1, dtype=torch.long)
    rows[..., 0] = torch.randint(SYMBOLS, (count, SIZE), generator=generator)
    for t in range(TOKENS):
        rows[..., t + 1] = (
            5 * rows[..., t] + 1 + torch.randint(2, (count, SIZE), generator=generator)
        ) % SYMBOLS
    return list(rows)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Cross-entropy of the next symbol."""
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def run(quick: bool, tell: Callable[..., None]) -> Findings:
    """Ask at several depths, one thread."""
    rows, goals = [], []
    torch.set_num_threads(1)
    cases = [(depth, norm) for depth in ((2,) if quick else (2, 12, 48)) for norm in ("pre", "post")]
    for place, (depth, norm) in enumerate(cases):
        tell(place / len(cases), f"{depth} blocks, {norm}-norm")
        start = time.process_time()
        rate = edgewise.learning_rate(model_of(depth, norm), batches(), loss, progress=False)
        spent = time.process_time() - start
        rows.append([f"{depth}, {norm}", rate.passes, spent, 1000 * spent / rate.passes])
    most = max(row[1] for row in rows)
    goals.append(Goal(f"one answer takes at most {STEPS} training steps", f"{most}", most <= STEPS))
    deepest = max(row[2] for row in rows)
    goals.append(
        Goal(
            f"at most {SECONDS:.0f} s at {cases[-1][0]} blocks",
            f"{deepest:.0f} s",
            None if quick else deepest <= SECONDS,
        )
    )
    columns = ["blocks, norm", "training steps", "processor seconds", "ms per step"]
    return [Table("One answer", columns, rows)], goals, [f"width 64, {SIZE} x {TOKENS} tokens, one thread"]
