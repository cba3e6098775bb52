"""The learning rate at the size you will train, from rehearsals at small sizes of the same network.

The law: the best rate is a constant times the start of the ladder, which one gradient and one small step measure at any
size. The constant is rehearsed at every small size; if those do not agree, no rate is named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.files import json_values
from edgewise.landscape.evaluation import Batch, Loss
from edgewise.progress import Tell
from edgewise.rehearsal.learning_rate import ladder_start, learning_rate
from edgewise.rehearsal.optimizers import OptimizerSource
from edgewise.rehearsal.rate import RANGE, Rate, format_rate

Size = tuple[int, int]  # width, depth
AGREE = 1.5  # the most by which a small size may be off the law


@dataclass(frozen=True)
class SizedRate:
    """The rate at a target size; `best` is None, with a reason, if the small sizes do not agree."""

    best: float | None
    low: float | None
    high: float | None
    error: float | None  # the factor by which the small sizes are off the law at most
    target: Size
    sizes: tuple[Size, ...]
    rates: tuple[Rate, ...]  # the rehearsals, by size
    starts: tuple[float, ...]  # of the ladders at the small sizes
    start: float  # of the ladder at the target
    reason: str | None = None

    def to_json(self) -> str:
        """Return one JSON document; numbers that are not finite are null."""
        return json.dumps(json_values(asdict(self)), allow_nan=False)

    def __str__(self) -> str:
        """Return the rate, its error and how it was checked."""
        small = ", ".join(
            f"{_pair_of(s)}: {_named(r.best)}" for s, r in zip(self.sizes, self.rates, strict=True)
        )
        steps = sum(rate.passes for rate in self.rates)
        cost = f"Rehearsed at {small} (width x depth; {steps} small steps)."
        if self.best is None or self.low is None or self.high is None:
            return f"At {_pair_of(self.target)} no rate is named: {self.reason}. {cost}"
        span = f"({format_rate(self.low)} to {format_rate(self.high)})"
        return (
            f"At {_pair_of(self.target)} use {format_rate(self.best)} {span}. {cost} The law, a constant times the "
            f"rate that one small step puts at the start of a ladder, holds within {self.error:.2f} at these sizes; "
            "nothing was trained at the target."
        )


def learning_rate_at(
    build: Callable[[int, int], nn.Module],
    target: Size,
    batches: Iterable[Batch],
    loss: Loss | None = None,
    *,
    sizes: Sequence[Size] | None = None,
    optimizer: OptimizerSource | None = None,
    warmup: int = 0,
    schedule: str | None = None,
    steps: int = 10,
    rates: int = 6,
    seed: int = 0,
    accumulate: int = 1,
    clip: float | None = None,
    autocast: torch.dtype | None = None,
    progress: Tell | bool | None = None,
) -> SizedRate:
    """Return the rate of a network that is not trained yet, from rehearsals at small sizes of it.

    build    a function of width and depth that returns the network; the target is built too, for one gradient
    target   width and depth at which you will train
    batches  as in `edgewise.learning_rate`, re-iterable: every size sees the same ones
    sizes    two or three small ones, with widths and depths apart; by default a quarter of the width and half of the
             depth, twice that width, and twice that depth

    All else is as in `edgewise.learning_rate`; the optimizer is a class, or a function of the model.

    >>> layer = lambda width, depth: nn.Sequential(
    ...     nn.Linear(4, width), *(nn.Tanh() for _ in range(depth)), nn.Linear(width, 1)
    ... )
    >>> data = [torch.randn(8, 4, generator=torch.Generator().manual_seed(k)) for k in range(26)]
    >>> found = learning_rate_at(layer, (64, 2), data, lambda m, x: (m(x) - x[:, :1]).square().mean())
    >>> found.error is not None and found.error >= 1
    True
    """
    chosen = _quarter_size(target) if sizes is None else list(sizes)
    if not 2 <= len(chosen) <= 3 or len({w for w, _ in chosen}) < 2 or len({d for _, d in chosen}) < 2:
        raise BadInput(
            f"sizes must be two or three pairs (width, depth) with different widths and depths, got {chosen}."
        )
    common: dict[str, Any] = {"optimizer": optimizer, "seed": seed, "accumulate": accumulate, "clip": clip}
    common["autocast"] = autocast
    budget: dict[str, Any] = {"steps": steps, "rates": rates, "progress": progress}
    found = [
        learning_rate(build(*size), batches, loss, warmup=warmup, schedule=schedule, **budget, **common)
        for size in chosen
    ]
    starts = [ladder_start(build(*size), batches, loss, **common) for size in chosen]
    start = ladder_start(build(*target), batches, loss, **common)
    facts = (target, tuple(chosen), tuple(found), tuple(starts), start)
    unnamed = [(s, r) for s, r in zip(chosen, found, strict=True) if r.best is None]
    if unnamed:
        size, rate = unnamed[0]
        return SizedRate(None, None, None, None, *facts, f"at {_pair_of(size)}, {rate.reason}")
    logs = [
        math.log(rate.best / own) for rate, own in zip(found, starts, strict=True) if rate.best is not None
    ]
    middle = sum(logs) / len(logs)
    error = math.exp(max(abs(x - middle) for x in logs))
    if error > AGREE:
        why = f"the small sizes do not agree on a law (off by {error:.2g}, at most {AGREE:g} is taken)"
        return SizedRate(None, None, None, error, *facts, why)
    best, range_ = start * math.exp(middle), RANGE * error
    return SizedRate(best, best / range_, best * range_, error, *facts)


def _quarter_size(target: Size) -> list[Size]:
    width, depth = target
    if width < 8 or depth < 2:
        raise BadInput(f"width {width} and depth {depth} are too small to be rehearsed smaller. Name sizes.")
    narrow, shallow = width // 4, depth // 2
    return [(narrow, shallow), (2 * narrow, shallow), (narrow, 2 * shallow)]


def _pair_of(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def _named(rate: float | None) -> str:
    return "none" if rate is None else format_rate(rate)


__all__ = ["SizedRate", "learning_rate_at"]
