"""Which axis of a stream is the batch, which are tokens, which are features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


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
