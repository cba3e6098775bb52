"""Giants on a laptop: blocks exist one at a time, forward, and again (the same weights) for the backward pass."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import torch

from edgewise.adapters.describe import describe
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.probe.batches import default_batch, kept_tokens
from edgewise.probe.gradients import own_loss
from edgewise.probe.isolation import random_streams
from edgewise.probe.materialise import Phantom
from edgewise.probe.measure import assemble
from edgewise.probe.nearby import pair_growth
from edgewise.probe.reading import Reading, Wanted, geometry, keep_attention
from edgewise.probe.streamed_backward import StreamedBackward
from edgewise.probe.streamed_forward import StreamedForward
from edgewise.probe.subjects import as_config, is_config
from edgewise.trace import Trace


def measure_stream(source: Any, batch: Any, wanted: Wanted, tokens: int | None) -> Trace:
    """Every seed is a new initialization; memory: one block (and one matrix's gradient), the embedding or the head."""
    if not is_config(source) or isinstance(config := as_config(source), dict):
        raise BadInput(
            f"stream=True needs a Hugging Face config (object, dict or preset), got {type(source).__name__}: "
            "weights that exist already are in memory."
        )
    readings = []
    with random_streams():
        for seed in wanted.seeds:
            phantom = Phantom(copy.deepcopy(config), seed)
            one = Wanted(wanted.readouts, wanted.attention, wanted.pair, [seed], check=False)
            readings.append(read_streamed(phantom, batch, one, tokens))
    described = describe(config, tokens=readings[0].tokens)
    assert isinstance(described, Architecture)
    notes = dict.fromkeys(note for reading in readings for note in reading.notes)
    said = [f"measured: {config.model_type}, {readings[0].tokens} tokens, {len(readings)} seeds"]
    said += ["each a new initialization, streamed block by block", *notes]
    return assemble(readings, described, "; ".join(said))


def read_streamed(phantom: Phantom, batch: Any, wanted: Wanted, tokens: int | None) -> Reading:
    """Forward, geometry, backward: the same draws as of a network in memory with these weights."""
    seed = wanted.seeds[0]
    if batch is None:  # made for the processor: the model's own device holds nothing
        batch = default_batch(phantom.model, torch.Generator().manual_seed(seed), tokens, torch.device("cpu"))
    with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
        forward = StreamedForward(phantom, wanted)
        output = forward.run(batch, stack)
        streams = forward.streams()
        kept = kept_tokens(batch, tuple(streams[0].shape[:2]))  # type: ignore[arg-type]
        reading = geometry(forward.places, streams, kept)
        if forward.watch is not None:
            keep_attention(reading, forward.watch, forward.places)
        if not reading.finite:
            return reading
        logs, statistics = StreamedBackward(forward, wanted, kept).run(own_loss(output), reading)
        if wanted.pair:
            statistics["pair_growth"] = pair_growth(streams, forward.near_streams(), kept)
        reading.log_gradient.append(logs)
        reading.statistics.append(statistics)
    return reading
