"""What is asked of one network and what was read from it: numbers per site.

Random numbers by purpose: a readout must not repeat the numbers an input was made from.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewise.probe.attention import AttentionWatch, RowStatistics
from edgewise.probe.gradients import WEIGHTS, WeightLogs
from edgewise.probe.places import Place, mean_square, separation


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """A stream of its own for every seed and purpose.

    `torch.manual_seed(0); x = torch.randn(...)` is how most inputs are made. A readout drawn from a generator of the
    same seed would be that input again, and its gradient not that of a random direction.
    """
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{purpose}".encode()))


Array = NDArray[np.float64]
NO_LOSS = "no own loss: the model returned no scalar (give labels in the batch)"


@dataclass
class Wanted:
    """What is to be read; `seeds` number the readout and pair directions drawn on one forward pass."""

    readouts: Sequence[str]
    attention: bool
    pair: bool
    seeds: Sequence[int]
    check: bool = True
    gain: bool = False

    def weighed(self, readouts: Sequence[str]) -> str | None:
        """The readout whose gradients of the matrices are kept."""
        return "token" if "token" in readouts else next(iter(readouts), None)


@dataclass
class Reading:
    """Numbers of one network: norm and separation (N,), the rest per seed."""

    sites: tuple[str, ...]
    tokens: int
    width: int
    norm: Array
    separation: Array
    log_gradient: list[dict[str, list[float]]] = field(default_factory=list)
    statistics: list[dict[str, Array]] = field(default_factory=list)
    attention: dict[int, RowStatistics] = field(default_factory=dict)  # by site
    notes: list[str] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.norm).all())

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def geometry(listed: Sequence[Place], shaped: Sequence[Tensor], kept: Tensor | None) -> Reading:
    """Norm and separation of every stream (sequences, tokens, width).

    Where the stream leaves the range of floating point, what is known before is kept, as theory does.
    """
    _, n, d = shaped[0].shape
    norm = np.array([mean_square(x, kept) for x in shaped])
    finite = np.isfinite(norm)
    apart = [separation(x, kept) if ok else math.nan for x, ok in zip(shaped, finite, strict=True)]
    if not finite.all():
        first = int(np.argmin(finite))
        norm[first:], apart[first:] = np.inf, [apart[first - 1] if first else 0.0] * (len(apart) - first)
    return Reading(tuple(place.site for place in listed), n, d, norm, np.array(apart))


def keep_attention(reading: Reading, watch: AttentionWatch, listed: Sequence[Place]) -> None:
    """Statistics at the sites of attention, or a note why there are none: a mean over some layers would be wrong."""
    missing = [index for index in watch.blocks if index in watch.refused or index not in watch.found]
    if missing:
        why = watch.refused.get(missing[0], "no attention call was seen in it")
        said = f"{len(missing)} of {len(watch.blocks)} blocks; block {missing[0]}: {why}"
        return reading.note(f"attention not measured: {said}")
    for index, place in enumerate(listed):
        if place.block is not None and place.site.split(".")[-1] != "mlp":
            reading.attention[index] = watch.found[place.block]


def weight_arrays(listed: Sequence[Place], logs: WeightLogs, log_output: float) -> dict[str, Array]:
    """log |dL/dW|^2 for mean_a |g_a|^2 = 1 at the output of one sequence, at the site of the matrix's branch."""
    arrays = {f"weight_gradient.{name}": np.full(len(listed), np.nan) for name in WEIGHTS}
    for index, place in enumerate(listed):
        kind = place.site.split(".")[-1]
        for (name, block), log in logs.items():
            branch = "mlp" if name.startswith("mlp") else "attention"
            if block == place.block and (branch in kind.split("+") or kind == "output"):
                arrays[f"weight_gradient.{name}"][index] = log - log_output
    return arrays
