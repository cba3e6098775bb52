"""Extreme eigenvalues of softmax Jacobians: batched secular roots against torch.linalg.eigvalsh, accuracy and time.

Accuracy is against Newton's method in sixty digits on the same row. CPU time of one core; the dense solver gets one
row, the secular one a batch (that is what it is for), both are given per row.
"""

from __future__ import annotations

from typing import Any

import mpmath
import torch

from benchmarks.clock import Task, interleaved, once
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise import softmax_jacobian as jacobian
from edgewise.probe.attention_rows import row_statistics

GOALS = {128: 6, 512: 30, 2048: 120, 8192: 1000}  # times faster than eigvalsh
ROWS = {128: 256, 512: 64, 2048: 16, 8192: 4}
SHARPNESS = 4.0  # deviation of the logits: smallest entries about 1e-13 at n = 8192


def run(quick: bool, tell: Tell) -> Findings:
    lengths = [128, 512] if quick else list(GOALS)
    rows, goals = [], []
    for place, n in enumerate(lengths):
        tell(place / len(lengths), f"{n} keys")
        row = _compared(n)
        rows.append(row)
        ratio, ours, dense = row[3], max(row[4], row[5]), max(row[6], row[7])
        found = f"{ratio:.0f} times, error {ours:.1e} against {dense:.1e}"
        met = ratio >= GOALS[n] and ours <= dense
        promise = f"n = {n}: {GOALS[n]} times faster at equal or better accuracy"
        goals.append(Goal(promise, found, None if quick else met))
    tell(0.95, "sampled rows")
    columns = (
        "keys",
        "secular, ms/row",
        "eigvalsh, ms/row",
        "ratio",
        "largest, error",
        "smallest, error",
        "eigvalsh largest",
        "eigvalsh smallest",
    )
    tables = [
        Table("extreme eigenvalues of diag(s) - s s^T, float64, cpu time", columns, rows),
        Table(
            "statistics of sampled rows over one softmax of the whole map (4 x 8 x 256 x 256, float32)",
            ("what", "cpu ms", "softmaxes"),
            _sampled(quick),
        ),
    ]
    notes = ["Errors are relative, of one row; the rows have logits of deviation 4."]
    return tables, goals, notes


def _log_rows(count: int, n: int) -> torch.Tensor:
    logits = SHARPNESS * torch.randn(
        count, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64
    )
    return torch.log_softmax(logits, -1)


def _compared(n: int) -> list[Any]:
    batch = _log_rows(ROWS[n], n)
    s = batch[0].exp()
    J = torch.diag(s) - torch.outer(s, s)
    if n > 1024:  # seconds to minutes: once is enough
        dense, slow = once(lambda: torch.linalg.eigvalsh(J))
    else:
        dense = torch.linalg.eigvalsh(J)
        slow = interleaved({"dense": Task(lambda: torch.linalg.eigvalsh(J))}, 5)["dense"]
    fast = interleaved({"secular": Task(lambda: jacobian.extremes(batch))}, 9)["secular"]
    ours = jacobian.extremes(batch[:1])
    largest, smallest = (_refined(batch[0], float(value)) for value in (ours.largest, ours.smallest))
    errors = [
        abs(float(mpmath.expm1(float(ours.largest) - largest))),
        abs(float(mpmath.expm1(float(ours.smallest) - smallest))),
        abs(float(mpmath.mpf(float(dense[-1])) / mpmath.exp(largest) - 1)),
        abs(float(mpmath.mpf(float(dense[1])) / mpmath.exp(smallest) - 1)),
    ]
    per_row = 1e3 * fast.cpu / ROWS[n]
    return [n, per_row, 1e3 * slow.cpu, 1e3 * slow.cpu / per_row, *errors]


def _refined(row: torch.Tensor, log_root: float) -> Any:
    """log of the root nearest to exp(log_root): three Newton steps on g(x) = sum s/(s - x), in sixty digits."""
    with mpmath.workdps(60):
        s = [mpmath.exp(mpmath.mpf(float(value))) for value in row]
        x = mpmath.exp(mpmath.mpf(log_root))
        for _ in range(3):
            terms = [value / (value - x) for value in s]
            slope = sum(term / (value - x) for term, value in zip(terms, s, strict=True))
            x -= sum(terms) / slope
        return mpmath.log(x)


def _sampled(quick: bool) -> list[list[Any]]:
    tokens = 64 if quick else 256
    logits = torch.randn(4, 8, tokens, tokens, generator=torch.Generator().manual_seed(0))
    some = logits[:, :, torch.arange(0, tokens, tokens // 8)]  # 4 x 8 x 8 = 256 rows
    tasks = {
        "softmax of the map": Task(lambda: torch.softmax(logits, -1)),
        "statistics, 256 sampled rows": Task(lambda: row_statistics(some)),
        "estimate of the condition, 256 rows": Task(
            lambda: jacobian.condition_estimate(torch.log_softmax(some.double(), -1))
        ),
    }
    found = interleaved(tasks, 3 if quick else 15)
    base = found["softmax of the map"].cpu
    return [[name, 1e3 * timing.cpu, timing.cpu / base] for name, timing in found.items()]
