"""Other ways to name a rate before training: a constant, the range test by two rules, the critical rate."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from .networks import Batch, Row, batches, loss, network, optimizer

CONSTANT = {
    "adamw95": 5.7e-3,
    "adamw999": 5.7e-3,
    "sgd": 0.043,
}  # geometric means of the best rates of DEVELOPMENT
RANGE = {"adamw95": (1e-6, 1.0), "adamw999": (1e-6, 1.0), "sgd": (1e-5, 10.0)}
TEST_STEPS = 100
UNIT = 1e-4  # rate of the step that gives the direction of the critical rate


def range_test(row: Row, seed: int, steps: int = TEST_STEPS) -> dict[str, float]:
    model = network(row).train()
    low, high = RANGE[row["optimizer"]]
    return swept(model, batches(row, seed), optimizer(row, model, low), low, high, steps)


def swept(
    model: nn.Module,
    data: Iterator[Batch],
    moving: torch.optim.Optimizer,
    low: float,
    high: float,
    steps: int = TEST_STEPS,
) -> dict[str, float]:
    """[Smith 2017]: the rate grows by a factor each step; where the smoothed loss falls fastest, or a tenth of the rate
    of its minimum. It ends where the loss is above four times the lowest."""
    shares = [group["lr"] / low for group in moving.param_groups]
    rates, smooth, mean = [], [], 0.0
    for step in range(steps):
        rate = low * (high / low) ** (step / max(steps - 1, 1))
        for group, share in zip(moving.param_groups, shares, strict=True):
            group["lr"] = share * rate
        value = loss(model, next(data))
        number = float(value.detach())
        mean = 0.9 * mean + 0.1 * number
        level = mean / (1 - 0.9 ** (step + 1))
        if not math.isfinite(number) or (smooth and level > 4 * min(smooth)):
            break
        rates.append(rate)
        smooth.append(level)
        moving.zero_grad()
        value.backward()
        moving.step()
    slopes = [smooth[k + 1] - smooth[k - 1] for k in range(1, len(smooth) - 1)]
    steepest = rates[1 + min(range(len(slopes)), key=slopes.__getitem__)] if slopes else low
    return {"range_steepest": steepest, "range_minimum": rates[smooth.index(min(smooth))] / 10}


def critical_rate(row: Row, seed: int) -> float:
    model = network(row).train()
    made = optimizer(row, model, UNIT)
    return critical(model, batches(row, seed), made, RANGE[row["optimizer"]][0])


def critical(model: nn.Module, data: Iterator[Batch], moving: torch.optim.Optimizer, lowest: float) -> float:
    """[Kalra 2026]: the smallest rate at which one step along the optimizer's first update no longer lowers the loss
    of a fresh batch; doubling, then bisection. The optimizer has the rate `UNIT`."""
    first, fresh = next(data), next(data)
    start = [p.detach().clone() for p in model.parameters()]
    loss(model, first).backward()
    moving.step()
    with torch.no_grad():
        update = [(p - s) / UNIT for p, s in zip(model.parameters(), start, strict=True)]

        def level(rate: float) -> float:
            for p, s, u in zip(model.parameters(), start, update, strict=True):
                p.copy_(s + rate * u)
            return float(loss(model, fresh))

        reference, rate = level(0.0), lowest
        while rate < 1e3 and level(rate) <= reference:
            rate *= 2
        low, high = rate / 2, rate
        for _ in range(4):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if level(middle) <= reference else (low, middle)
    return math.sqrt(low * high)
