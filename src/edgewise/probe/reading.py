"""One network read once: a forward pass with hooks, several backward passes, a nearby input. Numbers per site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgewise.adapters.site_types import ModelSites
from edgewise.probe.activations import mean_square, pair_separation, separation
from edgewise.probe.attention import AttentionWatch
from edgewise.probe.batches import kept_tokens
from edgewise.probe.gradients import (
    WEIGHTS,
    WeightLogs,
    log_norms,
    matrices,
    output_gradient,
    own_loss,
    site_gradients,
    weight_logs,
)
from edgewise.probe.isolation import call, observed, same
from edgewise.probe.places import Catch, Place, places, sequence_first
from edgewise.probe.rows import RowStatistics

Array = NDArray[np.float64]
NEARBY = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative distance of a nearby input; 0.1 for half precisions


@dataclass
class Wanted:
    """What is to be read; `seeds` number the readout and pair directions drawn on one forward pass."""

    readouts: Sequence[str]
    attention: bool
    pair: bool
    seeds: Sequence[int]
    check: bool = True


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


def read(model: nn.Module, batch: Any, found: ModelSites, wanted: Wanted) -> Reading:
    """The model is exactly as before afterwards, also when something inside raises."""
    with observed(model) as stack:
        return _Pass(model, batch, found, wanted).run(stack)


class _Pass:
    def __init__(self, model: nn.Module, batch: Any, found: ModelSites, wanted: Wanted) -> None:
        self.model, self.batch, self.found, self.wanted = model, batch, found, wanted
        self.places = places(found)
        self.names = tuple(place.site for place in self.places)
        self.catch = Catch(self.places, sequence_first(model.get_submodule(found.stacks[0].blocks[0].name)))

    def run(self, stack: ExitStack) -> Reading:
        watch = None
        if self.wanted.attention:
            watch = AttentionWatch(self.found.blocks, torch.Generator().manual_seed(self.wanted.seeds[0]))
            self.catch.counted = watch.sample
            if self.wanted.check:
                with torch.no_grad():
                    self.plain = call(self.model, self.batch)  # before any hook, to compare with
        hooks = stack.enter_context(ExitStack())
        self.catch.attach(self.model, hooks)
        output = self._forward(watch)
        hooks.close()
        streams = self.catch.finished()
        shaped = [self.catch.shaped(stream) for stream in streams]
        kept = kept_tokens(self.batch, tuple(shaped[0].shape[:2]))  # type: ignore[arg-type]
        reading = self._geometry(shaped, kept)
        if watch is not None:
            self._attention(reading, watch, output)
        if np.isfinite(reading.norm).all():
            for seed in self.wanted.seeds:
                self._directions(reading, seed, streams, own_loss(output), kept)
        return reading

    def _forward(self, watch: AttentionWatch | None) -> Any:
        if watch is None:
            return call(self.model, self.batch)
        with ExitStack() as stack:
            watch.attach(self.model, stack)
            with watch:
                return call(self.model, self.batch)

    def _geometry(self, shaped: Sequence[Tensor], kept: Tensor | None) -> Reading:
        _, n, d = shaped[0].shape
        norm = np.array([mean_square(x, kept) for x in shaped])
        finite = np.isfinite(norm)
        apart = [separation(x, kept) if ok else math.nan for x, ok in zip(shaped, finite, strict=True)]
        if not finite.all():  # the stream left the range of floating point: what is known is kept, as theory does
            first = int(np.argmin(finite))
            norm[first:], apart[first:] = np.inf, [apart[first - 1] if first else 0.0] * (len(apart) - first)
        return Reading(self.names, n, d, norm, np.array(apart))

    def _attention(self, reading: Reading, watch: AttentionWatch, output: Any) -> None:
        """All layers or none: a mean over a part of them would be silently wrong."""
        if self.wanted.check and not same(self.plain, output):
            self.plain = call(self.model, self.batch)  # with a graph: some kernels differ without one
        if self.wanted.check and not same(self.plain, output):
            reading.notes.append("attention not measured: the output changed while observed (not deterministic?)")
            return
        keep_attention(reading, watch, self.places)

    def _directions(
        self, reading: Reading, seed: int, streams: Sequence[Tensor], loss: Tensor | None, kept: Tensor | None
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        logs: dict[str, list[float]] = {}
        statistics: dict[str, Array] = {}
        weighed = "token" if "token" in self.wanted.readouts else next(iter(self.wanted.readouts), None)
        for readout in self.wanted.readouts:
            if readout == "own" and loss is None:
                continue
            logs[readout] = self._readout(readout, streams, loss, kept, generator, statistics, readout == weighed)
        if self.wanted.pair:
            statistics["pair_growth"] = self._pair(streams, kept, generator)
        reading.log_gradient.append(logs)
        reading.statistics.append(statistics)
        if loss is None and "own" in self.wanted.readouts and not reading.notes.count(NO_LOSS):
            reading.notes.append(NO_LOSS)

    def _readout(
        self, readout: str, streams: Sequence[Tensor], loss: Tensor | None, kept: Tensor | None,
        generator: torch.Generator, statistics: dict[str, Array], weighed: bool,
    ) -> list[float]:  # fmt: skip
        listed = matrices(self.found.blocks) if weighed else []
        names = list(dict.fromkeys(name for matrix in listed for name in matrix.projection.parameters))
        parameters = [self.model.get_parameter(name) for name in names]
        last = self.catch.shaped(streams[-1])
        if readout == "own":
            assert loss is not None
            target, start = loss, None
        else:
            start = output_gradient(last, readout, generator, kept)
            start = start if self.catch.sequence_first else start.transpose(0, 1)
            target, start = streams[-1], start.reshape(streams[-1].shape)
        at_sites, at_weights = site_gradients(target, streams, start, parameters)
        shaped = [None if g is None else self.catch.shaped(g) for g in at_sites]
        logs = log_norms(shaped, self.names, kept)
        if weighed:
            each = weight_logs(listed, dict(zip(names, at_weights, strict=True)))
            statistics |= weight_arrays(self.places, each, logs[-1] + math.log(last.shape[0]))
        return [value - logs[-1] for value in logs]

    def _pair(self, streams: Sequence[Tensor], kept: Tensor | None, generator: torch.Generator) -> Array:
        """log-growth of 1 - cos between the same token of two nearby inputs, site before to site; 0 at the first."""
        first = streams[0].detach()
        size = NEARBY.get(first.dtype, 0.1)
        noise = torch.randn(first.shape, generator=generator, dtype=torch.float32).to(first)
        scale = first.square().mean(-1, keepdim=True).sqrt()
        catch = Catch(self.places, self.catch.sequence_first)
        with torch.no_grad(), ExitStack() as stack:
            catch.attach(self.model, stack, replace_first=first + size * scale * noise)
            call(self.model, self.batch)
        near = catch.finished()
        pairs = [(self.catch.shaped(a), self.catch.shaped(b)) for a, b in zip(streams, near, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log([pair_separation(a, b, kept) for a, b in pairs])
            return np.diff(logs, prepend=logs[:1])


NO_LOSS = "no own loss: the model returned no scalar (give labels in the batch)"


def keep_attention(reading: Reading, watch: AttentionWatch, listed: Sequence[Place]) -> None:
    """Statistics at the sites of attention, or a note why there are none."""
    missing = [index for index in watch.blocks if index in watch.refused or index not in watch.found]
    if missing:
        why = watch.refused.get(missing[0], "no attention call was seen in it")
        said = f"{len(missing)} of {len(watch.blocks)} blocks; block {missing[0]}: {why}"
        reading.notes.append(f"attention not measured: {said}")
        return
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
