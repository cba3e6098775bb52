"""Validation between steps: loss on fresh batches, last stream, separation of tokens, size of outputs.

The stream is found by reading the model once. If the last block's module returns it, a hook catches it in the pass
that computes the loss; elsewhere the reader's own tracer does. Without a recognized stack the output stands in for it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.landscape.evaluation import Batch, Loss, loss_of
from edgewise.models.behavior.record import Stack
from edgewise.models.inputs import tensors
from edgewise.models.model_map import ModelMap
from edgewise.models.unwrap import unwrap
from edgewise.probe.batches import sequences_of, token_mask
from edgewise.probe.geometry import separation
from edgewise.probe.streams import Catch, traced_sites
from edgewise.rehearsal.baseline import Guess, guess

LossCall = tuple[tuple[object, ...], dict[str, object]]
DIRECT = "batch token feature"  # the layout of a stream that needs no rearranging


@dataclass(frozen=True)
class View:
    """One look at a network: its loss on fresh batches, and the stream and output on the first of them."""

    loss: float
    stream: Tensor  # flattened, in float32
    separation: float | None
    output: float  # root mean square of the model's first floating output


class Validation:
    """Inspects copies of one model, always on the same fresh batches, in evaluation mode."""

    def __init__(
        self,
        loss: Loss,
        fresh: Sequence[Batch],
        whole: Callable[[float], float],
        model_map: ModelMap | None = None,
    ) -> None:
        self.loss, self.fresh = loss, fresh
        self.map = model_map  # of the model that is copied
        self.whole = whole  # the mean over processes
        self.stack: Stack | None = None
        # The module that the loss calls: the model, or a part of it; None if none is.
        self.entry: str | None = ""
        self.block: str | None = None  # the module whose output is the last stream
        self.note = ""
        self.width: int | None = None  # of the stream
        self._ready = False

    def measure(self, model: nn.Module, batches: int | None = None) -> View:
        """Return the mean loss over fresh batches (all, or the first few), stream and output on the first."""
        whole = unwrap(model)
        with _evaluating(whole), torch.no_grad(), _eagerly():
            if not self._ready:
                calls: list[str] = []
                handles = [
                    module.register_forward_pre_hook(lambda _, __, name=name: calls.append(name))
                    for name, module in whole.named_modules()
                ]
                try:
                    loss_of(self.loss, model, self.fresh[0])
                finally:
                    for handle in handles:
                        handle.remove()
                self._ready, self.entry = True, calls[0] if calls else None
                self._prepare(model, whole if self.entry is None else whole.get_submodule(self.entry))
            bare = whole if self.entry is None else whole.get_submodule(self.entry)
            first, record = self._first(model, bare)
            others = [float(loss_of(self.loss, model, batch)) for batch in self.fresh[1:batches]]
        stream = record.stream if record.stream is not None else self._stream(bare, record.call)
        self.width = None if self.stack is None else stream.shape[-1]
        apart = self.whole(self._separation(bare, stream, record.call))
        mean = self.whole(sum([first, *others]) / (1 + len(others)))
        size = self.whole(_size(record.output))
        return View(mean, stream.detach().float().flatten(), None if math.isnan(apart) else apart, size)

    def guess(self, model: nn.Module) -> Guess:
        """Return the loss of the best constant answer on the fresh batches; after the first look."""
        whole = unwrap(model)
        with _evaluating(whole), _eagerly():
            bare = None if self.entry is None else whole.get_submodule(self.entry)
            found = guess(model, bare, self.loss, self.fresh)
        loss, floor = (self.whole(math.nan if x is None else x) for x in (found.loss, found.floor))
        if math.isnan(loss) or found.loss is None:
            return found
        return replace(found, loss=loss, floor=None if math.isnan(floor) else floor)

    def _prepare(self, model: nn.Module, bare: nn.Module) -> None:
        """Find the stack, and whether the output of its last block is the stream itself."""
        _, record = self._first(model, bare)
        if record.call is None:
            self.note = "the loss calls no module"
            return
        try:
            whole = self.map if self.map is not None and self.entry == "" else ModelMap(bare)
            stack = whole.reading(_as_batch(bare, record.call)).default
        except BadInput as error:
            stack, self.note = None, f"no residual stream was recognized ({error})"
        if stack is None or stack.layout is None or not stack.blocks:
            self.note = self.note or "no residual stream was recognized"
            return
        self.stack = stack
        name = stack.blocks[-1].module
        if stack.layout != DIRECT or not name or name not in dict(bare.named_modules()):
            return
        self.block = name
        _, record = self._first(model, bare)
        if record.stream is None or not torch.equal(record.stream, self._stream(bare, record.call)):
            self.block = None

    def _first(self, model: nn.Module, bare: nn.Module) -> tuple[float, _Record]:
        """Return the loss of the first fresh batch, with what went into and came out of the model."""
        record = _Record()
        handles = [bare.register_forward_hook(record.keep, with_kwargs=True)]
        if self.block is not None:
            handles.append(bare.get_submodule(self.block).register_forward_hook(record.catch))
        try:
            value = float(loss_of(self.loss, model, self.fresh[0]))
        finally:
            for handle in handles:
                handle.remove()
        return value, record

    def _stream(self, bare: nn.Module, call: LossCall | None) -> Tensor:
        if call is None:
            return torch.zeros(1)
        if self.stack is None:
            return next((t for t in tensors(_run(bare, call)) if t.is_floating_point()), torch.zeros(1))
        batch = _as_batch(bare, call)
        catch = Catch(traced_sites(self.stack), self.stack, sequences_of(batch))
        with torch.no_grad():
            catch.run(bare, batch)
        if catch.overwritten:
            catch = Catch(traced_sites(self.stack), self.stack, sequences_of(batch), out_of_place=True)
            with torch.no_grad():
                catch.run(bare, batch)
        return catch.shaped(catch.finished()[-1])

    def _separation(self, bare: nn.Module, stream: Tensor, call: LossCall | None) -> float:
        """NaN without a stream, a pair of tokens, or a finite number."""
        if self.stack is None or stream.shape[1] < 2 or not bool(torch.isfinite(stream).all()):
            return math.nan
        shape = (stream.shape[0], stream.shape[1])
        mask = None if call is None else token_mask(bare, _as_batch(bare, call), shape, self.stack.name)
        if mask is not None and bool((mask.sum(-1) < 2).any()):
            return math.nan
        return separation(stream, mask)


class _Record:
    """The arguments and output of the model, and the output of its last block, in one pass."""

    def __init__(self) -> None:
        self.call: LossCall | None = None
        self.output: object = None
        self.stream: Tensor | None = None

    def keep(self, _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        if self.call is None:
            self.call, self.output = (tuple(args), dict(kwargs)), output

    def catch(self, _: nn.Module, __: object, output: object) -> None:
        stream = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(stream, Tensor) and stream.dim() == 3:
            self.stream = stream


def _as_batch(bare: nn.Module, call: LossCall | None) -> object:
    """Return the arguments of a call as one batch: by name where both kinds were used."""
    assert call is not None
    args, kwargs = call
    if not kwargs:
        return args
    if not args:
        return kwargs
    bound = inspect.signature(bare.forward).bind(*args, **kwargs)
    return dict(bound.arguments) | bound.arguments.get("kwargs", {})


def _run(bare: nn.Module, call: LossCall | None) -> object:
    assert call is not None
    with torch.no_grad():
        return bare(*call[0], **call[1])


def _size(output: object) -> float:
    first = next((t for t in tensors(output) if t.is_floating_point() and t.numel() > 1), None)
    return math.nan if first is None else float(first.detach().float().square().mean().sqrt())


@contextmanager
def _evaluating(bare: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in bare.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _eagerly() -> Iterator[None]:
    """Compiled code runs as it was written: hooks inside it would be compiled in."""
    with torch.compiler.set_stance("force_eager"):
        yield
