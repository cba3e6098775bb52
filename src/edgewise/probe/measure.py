"""A module, a factory or a config to Trace: the numbers of the theory read from real weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edgewise.adapters.describe import describe
from edgewise.adapters.roles.model import sites
from edgewise.adapters.roles.record import ModelSites
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.probe.attention import RowStatistics
from edgewise.probe.batches import default_batch
from edgewise.probe.gradients import READOUTS
from edgewise.probe.isolation import random_streams
from edgewise.probe.places import places, unread
from edgewise.probe.reading import Reading, Wanted
from edgewise.probe.subjects import seeded, subject
from edgewise.probe.whole import read
from edgewise.trace import Trace

Array = NDArray[np.float64]


def measure(
    source: Any, batch: Any = None, *, seeds: int = 1, readouts: Sequence[str] = READOUTS, attention: bool = True,
    pair: bool = True, gain: bool = False, stream: bool = False, tokens: int | None = None,
) -> Trace:  # fmt: skip
    """The orbit through depth, read from a module (or a factory or config, initialised anew for every seed).

    batch      whatever the model accepts: keyword arguments, a tuple, a tensor; random ids or pixels unless given
    seeds      new initializations of a factory or config; for given weights, new readout and pair directions
    readouts   own: the model's loss; token: an independent gradient per token at the last block; pooled: a shared one
    attention  entropy, support, largest eigenvalue and condition of the softmax Jacobian, saturation, largest logit
    pair       `statistics["pair_growth"]`, the local growth of the angle between two nearby inputs
    gain       `statistics["softmax_gain"]` and the spread of the rows' gradients; one more backward pass
    stream     one block in memory at a time (configs of Hugging Face only)
    tokens     length of the random input, 64 unless given

    Outputs, gradients, random streams, modes, flags and hooks are as before afterwards.
    """
    _refuse(seeds, readouts, batch, tokens)
    module, factory, name = subject(source)
    if gain and (stream or not attention or not readouts):
        raise BadInput("gain needs a model in memory, attention=True and a readout to send backwards.")
    wanted = Wanted(tuple(readouts), attention, pair, range(seeds), gain=gain)
    if stream:
        from edgewise.probe.streamed import measure_stream

        return measure_stream(source, batch, wanted, tokens)
    with random_streams():
        if module is not None:
            found, said = sites(module), f"{seeds} readout directions, weights as given"
            return _trace([_one(module, found, batch, wanted, tokens)], module, found, name, said)
        assert factory is not None
        readings = []
        for seed in range(seeds):
            last = seeded(factory, seed)
            found = sites(last)
            only = Wanted(wanted.readouts, attention, pair, [seed], check=seed == 0, gain=gain)
            readings.append(_one(last, found, batch, only, tokens))
        return _trace(readings, last, found, name, f"{seeds} seeds, each a new initialization")


def _one(model: nn.Module, found: ModelSites, batch: Any, wanted: Wanted, tokens: int | None) -> Reading:
    if not any(parameter.is_floating_point() for parameter in model.parameters()):
        raise BadInput(f"{type(model).__name__} has no floating-point parameters, so there is nothing to measure.")
    given = default_batch(model, torch.Generator().manual_seed(wanted.seeds[0]), tokens) if batch is None else batch
    return read(model, given, found, wanted)


def _refuse(seeds: int, readouts: Sequence[str], batch: Any, tokens: int | None) -> None:
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise BadInput(f"seeds = {seeds!r} is not possible: expected a whole number of at least 1.")
    unknown = [readout for readout in readouts if readout not in READOUTS]
    if unknown or isinstance(readouts, str) or len(set(readouts)) != len(readouts):
        raise BadInput(f"readouts = {readouts!r} is not possible: expected different ones of {', '.join(READOUTS)}.")
    if tokens is not None and batch is not None:
        raise BadInput("tokens is the length of a random input; with a batch, leave it out.")
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 2):
        raise BadInput(f"tokens = {tokens!r} is not possible: expected a whole number of at least 2.")


def _trace(readings: Sequence[Reading], model: nn.Module, found: ModelSites, name: str, seeds: str) -> Trace:
    return assemble(readings, _described(model, readings[0].tokens), _source(found, name, seeds, readings))


def _described(model: nn.Module, tokens: int) -> Architecture | str:
    """The description of the model, or why there is none: a measurement does not depend on it."""
    try:
        found = describe(model, tokens=tokens)
    except BadInput as error:
        return f"not described: {error}"
    return found if isinstance(found, Architecture) else "not described: not a transformer"


def _source(found: ModelSites, name: str, seeds: str, readings: Sequence[Reading]) -> str:
    parts = [f"measured: {name}, {readings[0].tokens} tokens, {seeds}"]
    if len(found.stacks) > 1:
        others = ", ".join(stack.name for stack in found.stacks[1:])
        parts.append(f"stack {found.stacks[0].name} (not {others})")
    missed = unread(places(found))
    if missed:
        parts.append(f"the middle of {len(missed)} blocks cannot be read, only their ends are")
    return "; ".join([*parts, *dict.fromkeys(note for reading in readings for note in reading.notes)])


def assemble(readings: Sequence[Reading], described: Architecture | str, source: str) -> Trace:
    """One Trace from readings of several networks, or from several directions in one."""
    directions = max(len(reading.statistics) for reading in readings)
    copies = directions if len(readings) == 1 and directions else 1
    logs = [log for reading in readings for log in reading.log_gradient]
    whole = len(logs) == len(readings) * copies and bool(logs)
    names = tuple(logs[0]) if whole else ()
    kept = [s for reading in readings for s in reading.statistics] if whole else []
    statistics = {name: np.array([s[name] for s in kept]) for name in (kept[0] if kept else ())}
    rows = _attention(readings, copies)
    entropy, condition = (rows.pop(name, None) for name in ("attention_entropy", "softmax_condition"))
    text = isinstance(described, str)
    return Trace(
        sites=readings[0].sites,
        source=source + (f"; {described}" if text else ""),
        norm=np.concatenate([np.tile(reading.norm, (copies, 1)) for reading in readings]),
        separation=np.concatenate([np.tile(reading.separation, (copies, 1)) for reading in readings]),
        readouts=names,
        log_gradient=np.array([[log[name] for log in logs] for name in names]) if names else None,
        attention_entropy=entropy,
        softmax_condition=condition,
        statistics=statistics | rows,
        architecture=None if isinstance(described, str) else described,
    )


def _attention(readings: Sequence[Reading], copies: int) -> dict[str, Array]:
    """Each statistic (S, N, H), nan where a site has no attention; empty when some network refused."""
    if not all(reading.attention for reading in readings):
        return {}
    heads = max(len(rows.attention_entropy) for reading in readings for rows in reading.attention.values())
    found = {}
    for name in RowStatistics.names():
        values = np.full((len(readings), len(readings[0].sites), heads), np.nan)
        for i, reading in enumerate(readings):
            for site, rows in reading.attention.items():
                per_head = getattr(rows, name)
                values[i, site, : len(per_head)] = per_head
        found[name] = np.repeat(values, copies, axis=0)
    return found
