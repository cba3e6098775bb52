"""What a learning rate finder is held against: training for 300 steps at a ladder of rates.

best   the parabola through the lowest three final losses over log rate
edge   the largest rate that ends within MARGIN nats of the best, log-interpolated to the first that does not
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .networks import Row, batches, held_out, loss, network, optimizer

STEPS = 300
FACTOR = 2.5
MARGIN = 0.15
START = {"sgd": 0.04, "adamw95": 1.6e-3, "adamw999": 1.6e-3}
LOOKS = 4  # the final loss is the mean over this many looks in the last fifth of the run
MOST = 9  # rates


def train(row: Row, rate: float, seed: int, steps: int = STEPS) -> float:
    """The final loss on held-out data; infinite where the run diverged."""
    model = network(row)
    model.train()
    step_with, data = optimizer(row, model, rate), batches(row, seed)
    first, finals = math.nan, []
    looks = {steps - round(k * steps / 5 / LOOKS) for k in range(LOOKS)}  # never empty, perhaps fewer
    for step in range(1, steps + 1):
        value = loss(model, next(data))
        number = float(value.detach())
        first = number if step == 1 else first
        if not math.isfinite(number) or number > first + 20 or (step > 100 and number > first + 1.5):
            return math.inf
        step_with.zero_grad()
        value.backward()
        step_with.step()
        if step in looks:
            with torch.no_grad():
                finals.append(float(loss(model.eval(), held_out(row))))
            model.train()
    final = sum(finals) / len(finals)
    return final if math.isfinite(final) else math.inf


def ladder(final: Callable[[float], float], start: float) -> dict[float, float]:
    """Final losses of a ladder of rates: until the best is inside and a larger rate fails."""
    losses: dict[int, float] = {}

    def at(k: int) -> float:
        if k not in losses:
            losses[k] = final(start * FACTOR**k)
        return losses[k]

    at(0)
    at(1)
    while len(losses) < MOST:
        best = min(losses, key=lambda k: losses[k])
        low, high = min(losses), max(losses)
        if best == low:
            at(low - 1)
        elif best == high or losses[high] < losses[best] + MARGIN:
            at(high + 1)
        else:
            break
    return {start * FACTOR**k: losses[k] for k in sorted(losses)}


def best_rate(rates: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    """(rate, loss) at the lowest point of the parabola through the lowest three in log rate; the lowest at an end."""
    k = min(range(len(losses)), key=lambda i: losses[i])
    if not 0 < k < len(losses) - 1 or not all(map(math.isfinite, losses[k - 1 : k + 2])):
        return rates[k], losses[k]
    x = [math.log(rate) for rate in rates[k - 1 : k + 2]]
    (a, b, c), h = losses[k - 1 : k + 2], x[1] - x[0]
    bend = a - 2 * b + c
    shift = h * (a - c) / (2 * bend) if bend > 0 else 0.0
    return math.exp(x[1] + shift), b - (a - c) ** 2 / (8 * bend) if bend > 0 else b


def edge_rate(rates: Sequence[float], losses: Sequence[float], margin: float = MARGIN) -> float | None:
    """Where the loss crosses best + margin above the best rate; None where it never does."""
    k = min(range(len(losses)), key=lambda i: losses[i])
    level = losses[k] + margin
    for i in range(k, len(losses) - 1):
        if losses[i + 1] > level:
            low, high = math.log(rates[i]), math.log(rates[i + 1])
            cap = min(losses[i + 1], losses[k] + 10 * margin)
            share = (level - losses[i]) / (cap - losses[i])
            return math.exp(low + share * (high - low))
    return None


def loss_at(rate: float, rates: Sequence[float], losses: Sequence[float]) -> float:
    """The final loss at any rate: linear in log rate between the rates that were trained, flat outside."""
    caps = [min(value, losses_cap(losses)) for value in losses]
    x = [math.log(r) for r in rates]
    at = min(max(math.log(rate), x[0]), x[-1])
    for i in range(len(x) - 1):
        if at <= x[i + 1]:
            share = (at - x[i]) / (x[i + 1] - x[i])
            return caps[i] + share * (caps[i + 1] - caps[i])
    return caps[-1]


def losses_cap(losses: Sequence[float]) -> float:
    """A diverged run counts as far above the best."""
    return min(losses) + 5.0


def curve(row: Row, seed: int = 0, steps: int = STEPS) -> dict[str, Any]:
    """The ladder of one network with what is read from it."""
    losses = ladder(lambda rate: train(row, rate, seed, steps), START[row["optimizer"]])
    rates, values = list(losses), list(losses.values())
    best, lowest = best_rate(rates, values)
    return {
        "rates": rates,
        "losses": values,
        "best": best,
        "lowest": lowest,
        "edge": edge_rate(rates, values),
    }
