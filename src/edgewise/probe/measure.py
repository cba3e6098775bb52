"""A module, a factory or a config to Trace: the numbers of the theory read from real weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from edgewise.adapters.module.describe import describe_module
from edgewise.adapters.roles.model import sites
from edgewise.adapters.roles.record import ModelSites
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.probe.batches import default_batch
from edgewise.probe.gradients import READOUTS
from edgewise.probe.isolation import random_streams
from edgewise.probe.places import places, without_middle
from edgewise.probe.reading import Reading, Request, trace_of
from edgewise.probe.streamed import measure_stream
from edgewise.probe.subjects import seeded, subject
from edgewise.probe.whole import read
from edgewise.trace import Trace


def measure(
    source: Any, batch: Any = None, *, seeds: int = 1, readouts: Sequence[str] = READOUTS, attention: bool = True,
    pair: bool = True, gain: bool = False, stream: bool = False, tokens: int | None = None,
) -> Trace:  # fmt: skip
    """The orbit through depth, read from a real model.

    source     any source (`edgewise.adapters.source` lists them); what has no weights yet, every seed initialises anew
    batch      whatever the model accepts: keyword arguments, a tuple, a tensor; default: random ids or pixels
    seeds      new initializations of a factory or config; for a module, new readout and pair directions
    readouts   own: the model's loss; token: an independent gradient per token at the last block; pooled: a shared one
    attention  entropy, support, largest eigenvalue and condition of the softmax Jacobian, saturation, largest logit
    pair       `statistics["pair_growth"]`, the local growth of the angle between two nearby inputs
    gain       `statistics["softmax_gain"]` and the spread of the rows' gradients; one more backward pass
    stream     one block in memory at a time (configs of Hugging Face only)
    tokens     length of the random input; default: 64

    Outputs, gradients, random streams, modes, flags and hooks are as before afterwards.

    >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> trace = measure(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), tokens=8)
    >>> trace.depth, trace.readouts
    (3, ('token', 'pooled'))
    """
    _refuse(seeds, readouts, batch, tokens)
    target = subject(source)
    if gain and (stream or not attention or not readouts):
        raise BadInput("gain needs a model in memory, attention=True and a readout to send backwards.")
    request = Request(tuple(readouts), attention, pair, range(seeds), gain=gain)
    if stream:
        return measure_stream(target, batch, request, tokens)
    with random_streams():
        if (module := target.module) is not None:
            model_sites = sites(module)
            reading = _read_one(module, model_sites, batch, request, tokens)
            return _trace([reading], module, model_sites, target.name, f"{seeds} readout directions, weights as given")
        assert target.factory is not None
        readings = []
        for seed in range(seeds):
            network = seeded(target.factory, seed)
            model_sites = sites(network)
            single = replace(request, seeds=[seed], check=seed == 0)
            readings.append(_read_one(network, model_sites, batch, single, tokens))
        return _trace(readings, network, model_sites, target.name, f"{seeds} seeds, each a new initialization")


def _read_one(model: nn.Module, model_sites: ModelSites, batch: Any, request: Request, tokens: int | None) -> Reading:
    if not any(parameter.is_floating_point() for parameter in model.parameters()):
        raise BadInput(f"{type(model).__name__} has no floating-point parameters, so there is nothing to measure.")
    if batch is None:
        batch = default_batch(model, torch.Generator().manual_seed(request.seeds[0]), tokens)
    return read(model, batch, model_sites, request)


def _refuse(seeds: int, readouts: Sequence[str], batch: Any, tokens: int | None) -> None:
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise BadInput(f"seeds must be a whole number of at least 1, got {seeds!r}.")
    unknown = [readout for readout in readouts if readout not in READOUTS]
    if unknown or isinstance(readouts, str) or len(set(readouts)) != len(readouts):
        raise BadInput(f"readouts must be different ones of {', '.join(READOUTS)}, got {readouts!r}.")
    if tokens is not None and batch is not None:
        raise BadInput("tokens is the length of a random input; with a batch, leave it out.")
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 2):
        raise BadInput(f"tokens must be a whole number of at least 2, got {tokens!r}.")


def _trace(readings: Sequence[Reading], model: nn.Module, model_sites: ModelSites, name: str, seeds: str) -> Trace:
    description = _description(model, model_sites, readings[0].tokens)
    return trace_of(readings, description, _source(model_sites, name, seeds, readings))


def _description(model: nn.Module, model_sites: ModelSites, tokens: int) -> Architecture | str:
    """The description of the model, or why there is none: a measurement does not depend on it."""
    try:
        return describe_module(model, tokens=tokens, model_sites=model_sites)
    except BadInput as error:
        return f"not described: {error}"


def _source(model_sites: ModelSites, name: str, seeds: str, readings: Sequence[Reading]) -> str:
    parts = [f"measured: {name}, {readings[0].tokens} tokens, {seeds}"]
    if len(model_sites.stacks) > 1:
        others = ", ".join(stack.name for stack in model_sites.stacks[1:])
        parts.append(f"stack {model_sites.stacks[0].name} (not {others})")
    closed = without_middle(places(model_sites))
    if closed:
        parts.append(f"the middle of {len(closed)} blocks cannot be read, only their ends are")
    return "; ".join([*parts, *dict.fromkeys(note for reading in readings for note in reading.notes)])
