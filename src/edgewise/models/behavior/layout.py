"""Which axis of a stream is the batch, which are tokens, which are features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from edgewise.models.behavior.graph import Graph


@dataclass(frozen=True)
class Layout:
    """A stream as (entries, tokens, features). The batch axis may be folded with others: (batch tokens, features)."""

    batch: int
    features: int
    rank: int

    @property
    def order(self) -> tuple[int, ...]:
        others = [axis for axis in range(self.rank) if axis not in (self.batch, self.features)]
        return (self.batch, *others, self.features)

    def tokens(self, stream: Tensor, entries: int) -> Tensor:
        """(entries, tokens, features); entries follow each other along the batch axis."""
        moved = stream.permute(self.order)
        return moved.reshape(entries, -1, moved.shape[-1])

    def stream(self, tokens: Tensor, shape: Sequence[int]) -> Tensor:
        """The inverse of `tokens`, for a stream of this shape."""
        moved = tokens.reshape([shape[axis] for axis in self.order])
        inverse = [self.order.index(axis) for axis in range(self.rank)]
        return moved.permute(inverse).contiguous()

    @property
    def text(self) -> str:
        names = {self.batch: "batch", self.features: "feature"}
        return " ".join(names.get(axis, "token") for axis in range(self.rank))


def layouts(one: tuple[int, ...], other: tuple[int, ...], entries: int, more: int) -> list[Layout]:
    """Candidates for a stream of shape `one` with so many entries and `other` with more, likeliest first."""
    if len(one) != len(other) or len(one) < 2:
        return []
    grown = [axis for axis in range(len(one)) if one[axis] != other[axis]]
    if len(grown) != 1 or one[grown[0]] * more != other[grown[0]] * entries:
        return []
    rank, batch = len(one), grown[0]
    return [Layout(batch, axis, rank) for axis in dict.fromkeys((rank - 1, 1)) if axis != batch]


BATCH, TOKEN, FEATURE = "batch", "token", "feature"


def plain_layout(
    graph: Graph, shapes: Sequence[tuple[int, ...]], weights: Iterable[int], entries: int, tokens: int | None
) -> str | None:
    """The axes of the first of some shapes of one stream, which must fit the others; None if they are not certain.

    weights  nodes that may read the stream
    entries  of the batch in this pass
    tokens   ids of one entry, if there are ids
    """
    own, *others = dict.fromkeys(shapes)
    nodes = [graph[index] for index in weights]

    def axes(shape: tuple[int, ...]) -> list[str] | None:
        readers = {n.function for n in nodes if n.weight and any(p.shape == shape for p in graph.parents(n))}
        return _by_tokens(shape, entries, tokens) or _by_readers(shape, entries, readers)

    layout = axes(own)
    if layout is None or not all(axes(shape) == layout or reshaped(own, layout, shape) for shape in others):
        return None
    return " ".join(layout)


def reshaped(shape: tuple[int, ...], layout: Sequence[str], other: tuple[int, ...]) -> list[str] | None:
    """The axes of the same stream with another number of axes: (batch, tokens, features) of an image, for example."""
    if layout.count(FEATURE) != 1 or len(other) in (len(shape), 1, 2) or _count(other) != _count(shape):
        return None
    batch, width = shape[layout.index(BATCH)], shape[layout.index(FEATURE)]
    if other[0] != batch or other[1:].count(width) != 1:
        return None
    if other[-1] == width:
        return [BATCH, *[TOKEN] * (len(other) - 2), FEATURE]
    return [BATCH, FEATURE, *[TOKEN] * (len(other) - 2)] if other[1] == width else None


def _by_tokens(shape: tuple[int, ...], entries: int, tokens: int | None) -> list[str] | None:
    """Several axes of features are streams side by side."""
    if tokens is None or len(shape) < 3 or shape.count(tokens) != 1 or shape.count(entries) != 1:
        return None
    return [{tokens: TOKEN, entries: BATCH}.get(size, FEATURE) for size in shape]


def _by_readers(shape: tuple[int, ...], entries: int, readers: set[str]) -> list[str] | None:
    if len(shape) < 3 or shape[0] != entries:
        return None
    axis = (
        len(shape) - 1
        if readers == {"linear"}
        else 1
        if readers and all("conv" in r for r in readers)
        else None
    )
    if axis is None or shape.count(shape[axis]) != 1:
        return None
    return [BATCH, *(FEATURE if i == axis else TOKEN for i in range(1, len(shape)))]


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
