"""One reading for several questions about one model: `fix` plans, measures, draws weights anew and measures again.

A reading takes dozens of passes. What it says of the structure does not change with the weights; gains, and what the
weights themselves say (copies, trained), are read again where they have changed, which takes a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgewise.adapters.reading.read import choose_stack, reread
from edgewise.adapters.reading.read import read as read_anew
from edgewise.adapters.reading.record import Reading
from edgewise.adapters.reading.weights import TRAINED, copies, spectral_edge
from edgewise.adapters.unwrap import unwrap
from edgewise.errors import BadInput

if TYPE_CHECKING:
    from torch import nn


@dataclass
class _Kept:
    """A model, and its reading with the versions of its parameters at that time."""

    model: nn.Module
    reading: Reading | None = None
    versions: tuple[int, ...] = ()


_kept: ContextVar[_Kept | None] = ContextVar("the model that is read once", default=None)


@contextmanager
def read_once(model: nn.Module) -> Iterator[None]:
    """Inside, this very model is read once; its weights may change, its modules may not."""
    token = _kept.set(_Kept(unwrap(model)))
    try:
        yield
    finally:
        _kept.reset(token)


def read(model: nn.Module, batch: Any = None, stack: str | None = None) -> Reading:
    """As `edgewise.adapters.reading.read.read`, or the reading that was kept."""
    kept = _kept.get()
    if kept is None or kept.model is not unwrap(model):
        return read_anew(model, batch, stack)
    versions = tuple(parameter._version for parameter in kept.model.parameters())
    if kept.reading is not None and versions != kept.versions:
        kept.reading = _with_these_weights(kept.model, batch, kept.reading)
    if kept.reading is None or kept.reading.default is None:
        kept.reading = read_anew(model, batch)
    kept.versions = versions
    return choose_stack(kept.reading, stack)


def _with_these_weights(model: nn.Module, batch: Any, reading: Reading) -> Reading | None:
    """The numbers of the default stack, read again; None where it does not show them alone."""
    stack = reading.default
    if stack is None or len(reading.stacks) > 1:
        return None
    try:
        fresh = reread(model, stack, stack.blocks, batch)
    except BadInput:
        return None
    edge = spectral_edge(model)
    fresh = replace(fresh, copies=copies(model, fresh.blocks))
    return replace(reading, stacks=(fresh,), trained=None if edge is None else edge > TRAINED, spectral_edge=edge)
