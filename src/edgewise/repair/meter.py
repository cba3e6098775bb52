"""The total changes of any stack of layers, read in one forward and backward pass.

Parameters can be replaced for the pass, which runs on a copy of the model: nothing is written. Streams may be (B, d),
(B, n, d) or (B, C, ...); two items are two samples or, in a sequence, two tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from edgewise.arrays import check_tokens, in_double
from edgewise.errors import BadInput
from edgewise.interrupts import check
from edgewise.models.inputs import call, default_batch, tensors
from edgewise.models.readable import words
from edgewise.models.state import is_sharded, preserved
from edgewise.models.twin import holding, twin
from edgewise.models.unwrap import unwrap
from edgewise.nouns.verdict import Exponent
from edgewise.probe.batches import token_mask
from edgewise.probe.geometry import mean_square, separation, site_gradients
from edgewise.probe.streams import BlockCall, Catch, TracedSite
from edgewise.repair.layers import LayerStack, has_norms, layers_of
from edgewise.repair.plan import Measured, TotalChanges, exponent_of
from edgewise.stability.lyapunov import growth

SAMPLES, SIDE = 32, 16
READOUT = 7919  # added to the seed, so that a readout does not repeat the numbers of a random input
BEYOND = 1e3  # stands for a total that left the range of numbers


def total_changes(model: nn.Module, batch: object = None, seed: int = 0) -> TotalChanges:
    """Measure the log-changes over the whole depth, of angle and gradient, of a module as it is: one pass.

    batch  whatever the model accepts; default: random ids, pixels or vectors, if the model shows which
    seed   numbers the readout direction

    The layers are those that `measure` reads; without a transformer, the largest family of like siblings.
    These are not what `judge` compares with its limits: see `TotalChanges`.

    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    >>> total_changes(model, torch.randn(2, 8, 16)).angle < 0
    True
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"total_changes takes a torch.nn.Module, got {type(model).__name__}.")
    bare = unwrap(model)
    layers = layers_of(bare, batch)
    with as_bad_input(f"the totals of this {type(bare).__name__} cannot be read"), preserved(bare):
        meter = Meter(
            bare, batch_for(bare) if batch is None else batch, layers, raw=not has_norms(bare, layers)
        )
        return meter.read(seed=seed)


@contextmanager
def as_bad_input(what: str) -> Iterator[None]:
    """Turn any exception of the model into a `BadInput` with its text."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        check()  # an interrupt is not an answer of the model
        raise BadInput(
            f"{what}: {words(error)}. Give a model and a batch that run together; the exception that caused this one "
            "shows where."
        ) from error


def batch_for(model: nn.Module, tokens: int | None = None) -> object:
    """Return rows of numbers for a network that keeps rows apart, else the default input of `measure`, else an image.

    A perceptron also runs on sequences of tokens, but its items are rows.
    """
    if tokens is not None:
        check_tokens(tokens)
    generator = torch.Generator().manual_seed(0)
    kinds = (nn.Embedding, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    first = next((m for m in model.modules() if isinstance(m, kinds)), None)
    rows = None
    if isinstance(first, nn.Linear):
        rows = torch.randn((SAMPLES, first.in_features), generator=generator).to(first.weight)
        if tokens is None and _keeps_rows_apart(model, rows):
            return rows
    try:
        return default_batch(model, torch.Generator().manual_seed(0), tokens)
    except BadInput as error:
        batch = rows
        if isinstance(first, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            shape = (SAMPLES // 4, first.in_channels, *[SIDE] * len(first.kernel_size))
            batch = torch.randn(shape, generator=generator).to(first.weight)
        if batch is None or _output(model, batch) is None:
            raise error from None
        return batch


def _keeps_rows_apart(model: nn.Module, rows: Tensor) -> bool:
    """Return whether a changed row changes its own output and no other."""
    before = _output(model, rows)
    changed = rows.clone()
    changed[0] = -changed[0]
    after = _output(model, changed)
    if before is None or after is None or before.dim() == 0 or len(before) != len(rows):
        return False
    return bool(torch.equal(before[1:], after[1:]) and not torch.equal(before[0], after[0]))


def _output(model: nn.Module, batch: Tensor) -> Tensor | None:
    """Return the first tensor that the model makes of a batch, None if it does not take it."""
    try:
        with preserved(model, gradients=True), torch.no_grad():
            return next(iter(tensors(model(batch))), None)
    except (RuntimeError, ValueError, TypeError):
        return None


@dataclass
class Meter:
    """Counts its passes. `raw`: no norm rescales the signal, so that the bare gradient counts."""

    model: nn.Module
    batch: object
    layers: LayerStack
    raw: bool
    passes: int = 0
    streams: list[Tensor] = field(default_factory=list)  # of the last pass
    size: float = 0.0  # log of the last stream's mean square over the first's, in the last pass

    def __post_init__(self) -> None:
        sharded = any(is_sharded(module) for module in self.model.modules())  # it gathers its weights itself
        self._copy = self.model if sharded else twin(self.model)

    def read(self, replacements: Mapping[str, Tensor] | None = None, seed: int = 0) -> TotalChanges:
        """Total changes from the first stream to the last, for a random gradient at every coordinate of the last.

        The model as it is, without replacements, is read at every layer, so that its exponents come along.
        """
        self.passes += 1
        with preserved(self._copy, gradients=True) as stack:
            for module in self._copy.modules():  # as in training: running statistics say nothing yet
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.training = True
            self._run(replacements or {}, stack)
            every_layer = not replacements
            streams = self.streams if every_layer else [self.streams[0], self.streams[-1]]
            sizes = [mean_square(stream, self._mask(stream)) for stream in streams]
            if not (math.isfinite(sizes[-1]) and sizes[-1] > 0):
                return TotalChanges(0.0, -BEYOND if sizes[-1] == 0 else BEYOND, self.raw, self._spread)
            self.size = _log(sizes[-1]) - _log(sizes[0])
            squares = self._gradient_squares(streams, seed)
            change = (
                _log(squares[0]) - _log(squares[-1]) + (0.0 if self.raw else math.log(sizes[0] / sizes[-1]))
            )
            apart = [_log(self._separation(stream)) for stream in streams]
            exponents = None
            if every_layer:
                scale = [0.0 if self.raw else _log(size) for size in sizes]
                exponents = self._exponents(apart, [_log(g) + q for g, q in zip(squares, scale, strict=True)])
            gradient = max(-BEYOND, min(BEYOND, change))
            return TotalChanges(apart[-1] - apart[0], gradient, self.raw, self._spread, exponents)

    @property
    def measured(self) -> Measured:
        """Describe what it reads, for a plan."""
        return Measured(self.batch, self.layers, self.raw)

    def _run(self, replacements: Mapping[str, Tensor], stack: ExitStack) -> None:
        self.streams = []
        copies = {name: buffer.clone() for name, buffer in self._copy.named_buffers()}
        if self.layers.stack is not None:
            places = [TracedSite(str(number), None, end) for number, end in enumerate(self.layers.ends)]
            catch = Catch(places, self.layers.stack, 0, out_of_place=True)
            with holding(self._copy, {**copies, **replacements}):
                catch.run(self._copy, self.batch)
            self.streams = catch.finished()
            return
        for index, name in enumerate(self.layers.modules):
            module = self._copy.get_submodule(name)
            if index == 0:
                stack.callback(module.register_forward_pre_hook(self._enter_first, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self._leave).remove)
        with holding(self._copy, {**copies, **replacements}):
            call(self._copy, self.batch)
        outputs = len(self.streams) - (not self.layers.leaf)
        if outputs < self.layers.depth:
            raise BadInput(
                f"this batch runs {max(outputs, 0)} of the {self.layers.depth} layers from {self.layers.names[0]} to "
                f"{self.layers.names[-1]}; all of them must run."
            )

    def _enter_first(
        self, _: nn.Module, inputs: tuple[object, ...], named: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        """The input of the first block is the first stream; a leaf's input is of another kind (after an activation)."""
        check()
        if self.streams:
            return None
        call = BlockCall(self.layers.names[0], inputs, named)
        stream = call.stream if call.stream.requires_grad else call.stream.detach().requires_grad_()
        if not self.layers.leaf:
            self.streams.append(stream)
        other = call.on(stream)
        return other.inputs, other.named

    def _leave(self, module: nn.Module, inputs: object, output: object) -> None:  # noqa: ARG002
        check()
        self.streams.append(next(tensors(output)))

    def _gradient_squares(self, streams: Sequence[Tensor], seed: int) -> list[float]:
        """|g|^2 at each of these streams, of a normal gradient at the last."""
        last = streams[-1]
        generator = torch.Generator().manual_seed(READOUT + seed)
        readout = torch.randn(last.shape, generator=generator).to(last)
        mask = self._mask(last)
        readout = readout if mask is None else readout * mask[..., None].to(readout)
        gradients, _ = site_gradients(last, streams, readout)
        if any(gradient is None for gradient in gradients):
            names = f"{self.layers.names[0]} to {self.layers.names[-1]}"
            raise BadInput(
                f"the layers {names} do not follow each other: the last does not depend on all before it."
            )
        every = [(in_double(g).square(), self._mask(g)) for g in (*gradients[:-1], readout) if g is not None]
        return [
            float(squares.sum() if m is None else squares[m.to(squares.device)].sum()) for squares, m in every
        ]

    def _exponents(self, angles: Sequence[float], gradients: Sequence[float]) -> tuple[Exponent, Exponent]:
        """As a verdict has them; logs at every layer."""
        angle, gradient = (np.array([logs]) for logs in (angles, gradients))
        return exponent_of(growth(angle, self.width)), exponent_of(growth(-gradient, self.width))

    @property
    def depth(self) -> int:
        return max(len(self.streams) - 1, 1)

    @property
    def width(self) -> int:
        last = self.streams[-1]
        return int(last.shape[1] if last.ndim > 3 else last.shape[-1])

    @property
    def _spread(self) -> float:
        return math.sqrt(2 * (len(self.streams) - 1) / self.width)

    @property
    def start(self) -> tuple[float, float]:
        """(norm, overlap) of the first stream of the last pass: where a prediction begins."""
        first = self.streams[0]
        return mean_square(first, self._mask(first)), 1 - self._separation(first)

    @property
    def tokens(self) -> int:
        """Of the last pass; a stream (n, d) is one sequence."""
        first = self.streams[0]
        return int(first.shape[1 if first.ndim > 2 and self.layers.sequence_first else 0])

    def _mask(self, stream: Tensor) -> Tensor | None:
        """Return which tokens count, if the batch says so."""
        return (
            token_mask(self.model, self.batch, (stream.shape[0], stream.shape[1]))
            if stream.ndim == 3
            else None
        )

    def _separation(self, stream: Tensor) -> float:
        """1 - mean cosine between items, padding left out."""
        if stream.ndim == 2:
            return separation(stream[None])
        if stream.ndim > 3 or any(
            isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1 for module in self.model.modules()
        ):
            if len(stream) > 1:
                return separation(stream.flatten(1)[None])
            return separation(stream.flatten(2).transpose(1, 2))
        sequences = stream if self.layers.sequence_first else stream.transpose(0, 1)
        if sequences.shape[1] < 2:
            return separation(sequences.transpose(0, 1))
        return separation(sequences, self._mask(sequences))


def _log(value: float) -> float:
    return math.log(value) if 0 < value < math.inf else BEYOND if value else -BEYOND
