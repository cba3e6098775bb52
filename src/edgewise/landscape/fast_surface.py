"""A surface that answers from memory what does not move, once it has shown that it gives the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from edgewise.errors import BadInput
from edgewise.landscape.evaluation import Surface
from edgewise.landscape.replay import Replay

METHODS = ("auto", "direct")
TRIALS = ((0.7, -0.4), (-0.3, 0.9))  # shares of the reach at which both ways are compared


class Evaluated(Protocol):
    """Whatever gives a loss at a point."""

    def at(self, point: Sequence[float]) -> float: ...


class FastSurface:
    """The mean over batches, each from its own replay."""

    def __init__(self, surface: Surface, reach: float) -> None:
        self.replays = [Replay(surface, batch, reach) for batch in surface.batches]

    def at(self, point: Sequence[float]) -> float:
        return sum(float(replay.at(point)) for replay in self.replays) / len(self.replays)

    @property
    def method(self) -> str:
        first = self.replays[0]
        words = ["four matrices"] if first.logits is not None else ["linear layers"] if first.linear else []
        words += [f"{first.constants} modules from memory"] if first.constants else []
        return " and ".join(words) or "direct"


def chosen(surface: Surface, reach: float, method: str) -> tuple[Evaluated, str]:
    """The way to evaluate and its name; the fast way only if it agrees with the direct one off the centre."""
    if method not in METHODS:
        raise BadInput(f"method = {method!r} is not known: expected one of {', '.join(METHODS)}.")
    compiled = any("_orig_mod" in module._modules for module in surface.module.modules())
    if method == "direct" or compiled:  # what is compiled cannot be watched
        return surface, "direct"
    fast = FastSurface(surface, reach)
    if fast.method == "direct":
        return surface, "direct"
    for trial in TRIALS:
        point = [share * reach for share in trial[: len(surface.directions)]]
        if not agree(fast.at(point), surface.at(point), surface.dtype):
            return surface, "direct: the short way gave another loss"
    return fast, fast.method


def agree(one: float, other: float, dtype: torch.dtype) -> bool:
    """Equal up to rounding; two losses that overflow agree."""
    return one == other or abs(one - other) <= 100 * torch.finfo(dtype).eps * max(1.0, abs(other))
