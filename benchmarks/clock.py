"""Timings on a noisy machine: all contenders in turn, many times, medians; CPU time beside wall time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Medians in seconds per call, and the scatter of the CPU time: half the distance of its quartiles, relative."""

    wall: float
    cpu: float
    scatter: float
    repetitions: int


@dataclass(frozen=True)
class Task:
    """Something to time; `calls` in a row count as one repetition, so that microseconds can be read."""

    function: Callable[[], Any]
    calls: int = 1


def once(function: Callable[[], Any]) -> tuple[Any, Timing]:
    """The result and the time of a single call, for work of minutes."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, Timing(time.perf_counter() - wall, time.process_time() - cpu, 0.0, 1)


def interleaved(
    tasks: Mapping[str, Task], repetitions: int, tell: Callable[[float, str], None] | None = None
) -> dict[str, Timing]:
    """Every task once as a warm-up, then all in turn, every other round backwards."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    for task in tasks.values():
        task.function()
    for turn in range(repetitions):
        for place, name in enumerate(sorted(tasks, reverse=bool(turn % 2))):
            samples[name].append(_per_call(tasks[name]))
            if tell is not None:
                tell((turn + (place + 1) / len(tasks)) / repetitions, name)
    return {name: _summary(values) for name, values in samples.items()}


def _per_call(task: Task) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(task.calls):
        task.function()
    return (time.perf_counter() - wall) / task.calls, (time.process_time() - cpu) / task.calls


def _summary(samples: list[tuple[float, float]]) -> Timing:
    cpu = sorted(used for _, used in samples)
    middle, count = median(cpu), len(cpu)
    spread = (cpu[(3 * count) // 4] - cpu[count // 4]) / 2
    return Timing(median(wall for wall, _ in samples), middle, spread / middle, count)
