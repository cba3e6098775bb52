"""How slow this machine is now: limits in seconds of the processor are stretched by it, and so hold on others."""

from __future__ import annotations

import time

import numpy as np

REFERENCE = 0.0100  # seconds of `_work` where the limits were set
TRIES = 5


def slowness() -> float:
    """How many times longer a fixed piece of work takes than where the limits were set; at least 1."""
    return max(1.0, min(_work() for _ in range(TRIES)) / REFERENCE)


def _work() -> float:
    """Seconds of the processor for what these tests mostly do: Python, and numpy on small and middling arrays."""
    began = time.process_time()
    sum(k * k % 7 for k in range(120_000))
    values = np.linspace(0.0, 1.0, 50_000)
    for _ in range(12):
        np.tanh(values).sum()
    for _ in range(1500):
        values[:8] @ values[8:16]
    return time.process_time() - began
