"""Eight threads give what one gives, and a thousand calls take no more memory than a hundred."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgewise
from tests.fuzz.networks import build
from tests.support.unchanged import differences, process

THREADS = 8


def _predicted(depth: int) -> list[np.ndarray]:
    trace = edgewise.predict(edgewise.transformer(depth=depth, tokens=8 + depth))
    assert trace.log_gradient is not None
    return [trace.norm, trace.separation, trace.log_gradient]


@cache  # drawn before the threads begin: torch's own random stream is one for all of them
def _encoder(layers: int) -> torch.nn.Module:
    return build("encoder", 16, layers)


def _measured(depth: int) -> list[np.ndarray]:
    trace = edgewise.measure(deepcopy(_encoder(2 + depth % 3)), tokens=6 + depth)
    assert trace.log_gradient is not None
    return [trace.norm, trace.separation, trace.log_gradient]


@pytest.mark.parametrize("verb", [_predicted, _measured])
def test_eight_threads_give_the_bits_of_one(verb: Callable[[int], list[np.ndarray]]) -> None:
    """And torch's own switches are as before, which are the whole process's."""
    before = process()
    serial = [verb(depth) for depth in range(1, THREADS + 1)]
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(verb, range(1, THREADS + 1)))
    for one, other in zip(serial, together, strict=True):
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first, second)
    assert not differences(before, process())


def _resident() -> int:
    """Bytes in memory now."""
    gc.collect()
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def _calls() -> dict[str, Callable[[], Any]]:
    network, model = edgewise.transformer(depth=2, tokens=8), build("encoder", 8, 3)
    trace = edgewise.predict(network)
    return {
        "predict": partial(edgewise.predict, network),
        "judge": lambda: str(edgewise.judge(trace)),
        "describe": partial(edgewise.describe, "gpt2", depth=2),
        "compare": partial(edgewise.compare, network, network),
        "measure": partial(edgewise.measure, model, tokens=4),
        "audit": partial(edgewise.audit_initialization, model),
        "total_changes": partial(edgewise.total_changes, model, torch.ones(1, 4, 8)),
        "critical_plan": partial(edgewise.critical_plan, model, torch.randn(1, 4, 8)),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", ["predict", "judge", "describe", "compare", "measure", "audit", "total_changes", "critical_plan"]
)
def test_a_thousand_calls_take_no_more_memory_than_a_hundred(verb: str) -> None:
    """Less than 10 kB per call: one float64 vector that is kept would be seen from a length of 1,300 on."""
    call = _calls()[verb]
    for _ in range(100):
        call()
    before = _resident()
    for _ in range(1000):
        call()
    assert _resident() - before < 10e6
