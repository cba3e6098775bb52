"""The axes of a stream that no edited pass has shown, where the batch or the matrices that read it leave no doubt.

Token ids say how many tokens there are. A linear map acts on the last axis, a convolution on axis 1: what they read is
features there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgewise.models.behavior.graph import Graph

BATCH, TOKEN, FEATURE = "batch", "token", "feature"


def plain_layout(
    graph: Graph, shapes: Sequence[tuple[int, ...]], weights: Iterable[int], entries: int, tokens: int | None
) -> str | None:
    """The axes of the first of some shapes of one stream, which must fit the others; None where they are not certain.

    weights  nodes that may read the stream
    entries  of the batch in this pass
    tokens   ids of one entry, where there are ids
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
