"""Queries and keys of a product, and along which of their axes tokens stand."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from edgewise.models.behavior.graph import FUSED
from edgewise.models.behavior.places import Places, tokens_alone
from edgewise.models.behavior.record import Operation


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
    places: Places, operation: Operation, args: Any, kwargs: Any, length: int
) -> tuple[Tensor, Tensor]:
    """Queries and keys of the stream's tokens alone; whole where it is not known what stands beside them."""
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
    """The letters of queries, keys and scores; None where the equation is none of queries and keys.

    Axes that three dots stand for get capital letters, the first for entries; there must be no other of size above one.
    """
    inputs, _, scores = equation.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    dots = "".join(chr(ord("A") + axis) for axis in range(query.dim() - len(first.replace("...", ""))))
    first, second, scores = (text.replace("...", dots) for text in (first, second, scores))
    if len(first) != query.dim() or len(second) != key.dim() or len(scores) < 3:
        return None
    if any(size > 1 for letter, size in zip(first, query.shape, strict=True) if letter in dots[1:]):
        return None
    fits = scores[0] in first and scores[0] in second and scores[-2] in first and scores[-1] in second
    return (first, second, scores) if fits else None
