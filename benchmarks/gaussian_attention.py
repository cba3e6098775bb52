"""Gaussian attention by the null key against the direct form and against torch's fused softmax: time and peak memory.

One sequence, two heads of 32, float32. Times in turn in one process; memory of every call in a process of its own.
"""

from __future__ import annotations

from typing import Any

from benchmarks.clock import Task, interleaved
from benchmarks.one_attention import HEAD_WIDTH, HEADS, KERNELS, PASSES, call, extra_megabytes, inputs
from benchmarks.report import Findings, Goal, Table, Tell

REPETITIONS = {512: 30, 2048: 7, 8192: 1}
FASTER, SMALLER, DEARER = 3.0, 30.0, 1.6  # the project's goals; the first two at the largest length


def run(quick: bool, tell: Tell) -> Findings:
    lengths = [512] if quick else list(REPETITIONS)
    rows: list[list[Any]] = []
    for place, n in enumerate(lengths):
        megabytes = {name: extra_megabytes(name, n) for name in KERNELS}
        for which in PASSES:
            tell(place / len(lengths), f"{n} tokens, {which}")
            rows.append(_compared(n, which, {name: found[which] for name, found in megabytes.items()}, quick))
    columns = (
        "tokens",
        "pass",
        "null key, ms",
        "direct, ms",
        "fused softmax, ms",
        "direct / null key",
        "null key / softmax",
        "null key, MB",
        "direct, MB",
        "softmax, MB",
        "direct / null key, MB",
    )
    largest = [row for row in rows if row[0] == lengths[-1]]
    times, sizes, costs = ([row[k] for row in rows] for k in (5, 10, 6))
    goals = [
        _goal(f"{FASTER:g} times faster than the direct form at {lengths[-1]}", largest, 5, FASTER, quick),
        _goal(f"{SMALLER:g} times less memory at {lengths[-1]}", largest, 10, SMALLER, quick),
        Goal(
            f"at most {DEARER} times the cost of fused softmax, every length and pass",
            f"{min(costs):.2f} to {max(costs):.2f}",
            None if quick else max(costs) <= DEARER,
        ),
    ]
    notes = [
        f"CPU time of one core, medians of calls in turn; {HEADS} heads of {HEAD_WIDTH}, float32.",
        "Memory is the peak of a fresh process during the call minus what was resident before it; below one MB it is "
        f"noise. Over all lengths: {min(times):.2f} to {max(times):.2f} times faster, {min(sizes):.0f} to "
        f"{max(sizes):.0f} times less memory.",
    ]
    return [Table("one attention call", columns, rows)], goals, notes


def _goal(promise: str, rows: list[list[Any]], column: int, least: float, quick: bool) -> Goal:
    ratios = [row[column] for row in rows]
    found = ", ".join(f"{ratio:.1f} ({which})" for ratio, which in zip(ratios, PASSES, strict=True))
    return Goal(promise, found, None if quick else min(ratios) >= least)


def _compared(n: int, which: str, megabytes: dict[str, float], quick: bool) -> list[Any]:
    tensors = inputs(n)
    tasks = {
        name: Task(lambda k=name: call(k, tensors, which), calls=4 if n < 1000 else 1) for name in KERNELS
    }
    found = interleaved(tasks, 3 if quick else REPETITIONS[n])
    ms = {name: 1e3 * found[name].cpu for name in KERNELS}
    ratios = [ms["direct"] / ms["null key"], ms["null key"] / ms["fused softmax"]]
    memory = [megabytes[name] for name in KERNELS]
    return [n, which, *ms.values(), *ratios, *memory, megabytes["direct"] / max(megabytes["null key"], 1.0)]
