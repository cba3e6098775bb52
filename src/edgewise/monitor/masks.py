"""Masks that a call of attention is given beside its tokens: padding, windows, several documents in a row.

No name says what an argument means. Every tensor of the call with the shape of a mask is read in each way it could be
meant; the referee keeps the reading with which rebuilt rows give the layer's own output.

    visible (L S, H or 1, Q, K): whether key k is seen by query q
    counted (L S, 1, Q):         whether the query is a token, and not padding: it sees itself

In compiled code only that there was one can be noted. What the whole model was called with, which is seen beside the
graph, is then offered to the referee, who inspects every such row.

Shapes of an argument, with 1 for all alike: (B, K), (Q, K), (B, Q, K), (B H, Q, K), (B, H, Q, K).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgewise.monitor.capture import Sizes, tensor_in
from edgewise.monitor.hooks import ModelHook, Switch

# what is added to a logit to hide a key lies below: -10,000, the least number of a type, or -infinity
LOW = -5e3


class MaskReading(NamedTuple):
    """One way in which an argument could be meant."""

    argument: str
    shape: str  # one of "B K", "Q K", "B Q K", "BH Q K", "B H Q K"
    meaning: str  # "seen": true where a key is; "hidden": true where it is not; "added": to the logits
    alone: bool  # it also says what a causal mask would


class Masks(ModelHook):
    """What one layer was given in this pass, by argument."""

    def __init__(self, switch: Switch, looked: set[str], sizes: Sizes) -> None:
        self.switch, self.looked, self.sizes = switch, looked, sizes
        self.given: dict[str, tuple[Tensor, int]] = {}
        self.traced = False  # whether compiled code came by here: it may hold the layer from then on

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        """Pre-hook of the attention."""
        if not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling():
            stream = tensor_in(inputs, named)
            self.trace([x for x in (*inputs, *named.values()) if x is not stream])
        else:
            self.switch.run(self.see, inputs, named)

    def trace(self, values: Sequence[Any]) -> None:
        """In compiled code: note whether one of them could be a mask. Nothing is added to a graph that has none."""
        self.traced = True
        if any(isinstance(x, Tensor) and not x.requires_grad and 2 <= x.dim() <= 4 for x in values):
            self.sizes.mark()

    def see(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep what could be a mask; most calls have none, and are asked in few operations."""
        for x in inputs:
            if isinstance(x, Tensor) and not x.requires_grad:
                self._keep({str(i): value for i, value in enumerate(inputs)})
                break
        for x in named.values():
            if isinstance(x, Tensor) and not x.requires_grad:
                self._keep(named)
                break

    def _keep(self, given: dict[str, Any]) -> None:
        """One that was never inspected has the referee check this row."""
        for name, x in given.items():
            if isinstance(x, Tensor) and not x.requires_grad and 2 <= x.dim() <= 4:
                self.given[name] = x, x._version
                if name not in self.looked:
                    self.switch.check = True

    def tensor(self, argument: str) -> Tensor | None:
        """As it was given; None if it was not."""
        return self.given[argument][0] if argument in self.given else None

    def lasts(self, argument: str) -> bool:
        """Return whether it is still unchanged."""
        x, version = self.given.get(argument, (None, 0))
        return x is None or x._version == version


def of_call(inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, tuple[Tensor, int]]:
    """Find what could be a mask among the arguments of the whole model, and in dictionaries among them."""
    found: dict[str, Any] = {}
    for name, value in ((str(i), x) for i, x in enumerate(inputs)):
        found |= (
            {f"{name}.{key}": x for key, x in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    found |= named
    return {
        f"model.{name}": (x, x._version)
        for name, x in found.items()
        if isinstance(x, Tensor) and not x.requires_grad and 2 <= x.dim() <= 4
    }


def readings(masks: Masks, sequences: int, heads: int, length: int) -> Iterator[MaskReading]:
    """Every way in which what a layer was given could be meant."""
    for argument, (x, _) in masks.given.items():
        meanings = ("added", "seen") if x.is_floating_point() else ("seen", "hidden")
        for shape in _shapes(x.shape, sequences, heads, length):
            square = shape != "B K" and x.shape[-2] == length
            for alone in (False, True) if square else (False,):
                yield from (MaskReading(argument, shape, meaning, alone) for meaning in meanings)


def _shapes(shape: torch.Size, sequences: int, heads: int, length: int) -> Iterator[str]:
    batch, rows = shape[0], shape[-2] in (1, length)
    enough = batch == 1 or batch >= sequences
    if shape[-1] != length:
        return
    if len(shape) == 2:
        yield from ["B K"] if enough else []
        yield from ["Q K"] if batch == length else []
    if len(shape) == 3:
        yield from ["B Q K"] if enough and rows else []
        yield from ["BH Q K"] if rows and batch % heads == 0 and batch // heads >= sequences else []
    if len(shape) == 4 and enough and rows and shape[1] in (1, heads):
        yield "B H Q K"


class Seen(NamedTuple):
    """Which keys the sampled rows see, and which of the rows count."""

    visible: Tensor
    counted: Tensor


def seen(
    layers: Sequence[Masks],
    taken: Sequence[MaskReading],
    sequences: int,
    heads: int,
    queries: Tensor,
    keys: int,
    causal: Tensor | None,
) -> Seen | None:
    """Join the readings of a pass; None if no layer was given any of them. causal: (Q, K), or None.

    A query that sees nothing is let see everything, so that its row has numbers, and does not count. Where a mask was
    written over since, none does.
    """
    given = [r for r in taken if any(r.argument in masks.given for masks in layers)]
    if not given:
        return None
    visible = _mask(layers, given[0], sequences, heads, queries, keys)
    for reading in given[1:]:
        visible = visible & _mask(layers, reading, sequences, heads, queries, keys)
    visible = visible if causal is None or any(r.alone for r in given) else visible & causal
    own = visible[..., torch.arange(len(queries), device=queries.device), queries].all(1, keepdim=True)
    if causal is not None:  # padding may be let see what comes later
        own = own & ~(visible & ~causal).any(-1).any(1, keepdim=True)
    own = own & all(masks.lasts(reading.argument) for masks in layers for reading in given)
    return Seen(visible | ~visible.any(-1, keepdim=True), own)


def _mask(
    layers: Sequence[Masks], reading: MaskReading, sequences: int, heads: int, queries: Tensor, keys: int
) -> Tensor:
    """(L S, H or 1, Q, K) of one argument."""
    given = [masks.tensor(reading.argument) for masks in layers]
    one = all(x is given[0] for x in given)
    parts = [_part(x, reading, sequences, heads, queries, keys) for x in (given[:1] if one else given)]
    return torch.stack(parts * len(given) if one else parts).flatten(0, 1)


def _part(
    x: Tensor | None, reading: MaskReading, sequences: int, heads: int, queries: Tensor, keys: int
) -> Tensor:
    """(S, H or 1, Q, K) of a mask."""
    if x is None:
        return torch.ones(sequences, 1, len(queries), keys, dtype=torch.bool, device=queries.device)
    match reading.shape:
        case "B K":
            x = x[:, None, None]
        case "Q K":
            x = x[None, None]
        case "B Q K":
            x = x[:, None]
        case "BH Q K":
            x = x.unflatten(0, (-1, heads))
    x = x[:sequences, ..., :keys]
    x = x if x.shape[2] == 1 else x[:, :, queries]
    x = x > LOW if reading.meaning == "added" else x != 0
    x = ~x if reading.meaning == "hidden" else x
    return x.expand(sequences, -1, len(queries), -1)
