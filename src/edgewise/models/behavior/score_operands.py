"""Where the tokens of the stream stand among queries, keys and scores: learned keys or registers may stand beside them.

Shown by a pass of two entries that are the same but for two neighboring tokens, which are exchanged: along an axis of
tokens two neighbors differ, and nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgewise.models.behavior.compare import wide
from edgewise.models.behavior.graph import FUSED
from edgewise.models.behavior.record import Operation

EXCHANGED = (3, 2)  # from the end: the tokens that are exchanged
FEWEST = 6  # tokens; in fewer a row of scores that changes whole is not told from one in which two keys do
CHANGED = 1e-3  # of the largest change
ROUNDING = 1e-6  # of the largest number: changes below are none
HIDDEN = -5e3  # scores below are masked; a mask of -1e4 leaves the score on top of it


@dataclass
class TokenPlaces:
    """Where the first token of the stream stands; None if that was not shown."""

    query: int | None = None
    key: int | None = None
    row: int | None = None  # of the scores
    column: int | None = None


def first_token(value: Tensor, axis: int, entries: int, length: int) -> int | None:
    """Along an axis of queries or keys.

    entries  the axis of the two entries, or of entries and heads together, entries first
    """
    if value.shape[entries] % 2:
        return None
    one, other = wide(value).chunk(2, entries)
    changes = (one - other).abs().movedim(axis, -1).flatten(0, -2).amax(0)
    return _start(_changed(changes, value), length)


def first_pair(scores: Tensor, length: int) -> tuple[int | None, int | None]:
    """The row and the column of scores (entries, ..., queries, keys).

    In the rows of other tokens two neighboring columns change; the rows of the exchanged ones change whole.
    """
    if length < FEWEST or scores.dim() < 3 or scores.shape[0] % 2:
        return None, None
    seen = wide(scores)
    seen = torch.where(seen > HIDDEN, seen, 0.0)
    one, other = seen.chunk(2)
    changed = _changed((one - other).abs().flatten(0, -3).amax(0), seen)
    whole = changed.sum(-1) > 2
    return _start(whole, length), _start(changed[~whole].any(0), length)


def tokens_alone(value: Tensor, axis: int, start: int | None, length: int) -> Tensor | None:
    """The part of an axis that is the stream's tokens; None if there are others, and it is not known where."""
    if value.shape[axis] == length:
        return value
    known = start is not None and start + length <= value.shape[axis]
    return value.narrow(axis, start, length) if known else None  # type: ignore[arg-type]


def between_tokens(scores: Tensor, places: TokenPlaces, length: int, whole: int) -> Tensor | None:
    """The scores of the stream's queries and keys; None if they are not found among others.

    whole  tokens of the stream with those that the model has added behind the `length` given ones
    """
    if scores.dim() < 2 or tuple(scores.shape[-2:]) == (whole, whole):
        return scores
    rows = tokens_alone(scores, scores.dim() - 2, places.row, length)
    return None if rows is None else tokens_alone(rows, scores.dim() - 1, places.column, length)


def _changed(changes: Tensor, value: Tensor) -> Tensor:
    return changes > max(CHANGED * float(changes.max()), ROUNDING * float(wide(value).abs().max()))


def _start(changed: Tensor, length: int) -> int | None:
    """The first token from where the exchanged ones stand."""
    places = changed.nonzero().flatten().tolist()
    start = places[0] - (length - EXCHANGED[0]) if len(places) == 2 else -1
    return start if 0 <= start <= len(changed) - length and places[1] == places[0] + 1 else None


def operands(operation: Operation, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    """Queries and keys of a product."""
    values = [*args, *kwargs.values()]
    if operation.function == "baddbmm":
        return values[1], values[2]
    if operation.function == "einsum":
        tensors = values[1] if isinstance(values[1], (list, tuple)) else values[1:]
        return tensors[0], tensors[1]
    return values[0], values[1]


def axes_of(operation: Operation, args: Any, kwargs: Any) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The axes of tokens and of entries in queries and in keys; None where an einsum has other letters."""
    query, key = operands(operation, args, kwargs)
    if operation.function != "einsum":
        return (query.dim() - 2, 0), (key.dim() - (2 if operation.function in FUSED else 1), 0)
    letters = letters_of(equation_of(args, kwargs), query, key)
    if letters is None:
        return None
    first, second, scores = letters
    return (first.index(scores[-2]), first.index(scores[0])), (
        second.index(scores[-1]),
        second.index(scores[0]),
    )


def tokens_of(
    places: TokenPlaces, operation: Operation, args: Any, kwargs: Any, length: int
) -> tuple[Tensor, Tensor]:
    """Queries and keys of the stream's tokens alone; whole if it is not known what stands beside them."""
    query, key = operands(operation, args, kwargs)
    axes = axes_of(operation, args, kwargs)
    if axes is None:
        return query, key
    own_query = tokens_alone(query, axes[0][0], places.query, length)
    own_key = tokens_alone(key, axes[1][0], places.key, length)
    return query if own_query is None else own_query, key if own_key is None else own_key


def equation_of(args: Any, kwargs: Any) -> str:
    return str([*args, *kwargs.values()][0])


def letters_of(equation: str, query: Tensor, key: Tensor) -> tuple[str, str, str] | None:
    """The letters of queries, keys and scores; None if the equation is none of queries and keys.

    Axes that three dots stand for get capital letters: entries, and then heads; no third may be of size above one.
    """
    inputs, _, scores = equation.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    dots = "".join(chr(ord("A") + axis) for axis in range(query.dim() - len(first.replace("...", ""))))
    first, second, scores = (text.replace("...", dots) for text in (first, second, scores))
    if len(first) != query.dim() or len(second) != key.dim() or len(scores) < 3:
        return None
    if any(size > 1 for letter, size in zip(first, query.shape, strict=True) if letter in dots[2:]):
        return None
    own = [
        [s for s in scores if s in one and s not in other]
        for one, other in ((first, second), (second, first))
    ]
    if len(own[0]) == len(own[1]) == 1:  # in whichever order they are written
        scores = "".join(s for s in scores if s in first and s in second) + own[0][0] + own[1][0]
    fits = (
        len(scores) > 2
        and scores[0] in first
        and scores[0] in second
        and scores[-2] in first
        and scores[-1] in second
    )
    return (first, second, scores) if fits else None
