"""Queries and keys at the product that makes scores of them: how many heads, of what width, and whether a norm acts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.models.behavior.compare import exponent, size
from edgewise.models.behavior.dependence import real_tokens
from edgewise.models.behavior.experiment import Experiment, Site
from edgewise.models.behavior.graph import FUSED, MULTIHEAD
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.residuals import Score
from edgewise.models.behavior.score_operands import (
    axes_of,
    equation_of,
    first_pair,
    first_token,
    letters_of,
    operands,
    tokens_of,
)
from edgewise.models.behavior.token_order import logits, mixing_sites

ENTRIES = 2  # in the pass that shows queries and keys
SAMPLED = 4096  # numbers of a head that are compared with those of others
STRONG = 64.0


class Scores:
    """Queries and keys before and after the weights that make them are scaled: behind a norm they stay."""

    def __init__(self, experiment: Experiment) -> None:
        self._products: dict[Operation, Site] = {}
        self._softmaxes: dict[Operation, Site] = {}
        self._experiment = experiment
        self._widths = {place: stream.base.shape[-1] for place, stream in experiment.streams.items()}
        self._scores: dict[Operation, Score] = {}
        for site in mixing_sites(experiment):
            score = next((s for s in site.part.scores if s.query_weights or s.key_weights), None)
            if score is not None and score.product.function != MULTIHEAD:
                self._products[score.product], self._scores[score.product] = site, score
                if score.softmax != score.product:
                    self._softmaxes[score.softmax] = site
        self._sizes: dict[Operation, list[tuple[float, float]]] = {}

    def plain(self) -> dict[str, Any]:
        """For a pass in which two tokens of the second entry are exchanged."""
        looks = {operation: self._look(operation, heads=True) for operation in self._products}
        return {"calls": looks | {softmax: self._place_scores(softmax) for softmax in self._softmaxes}}

    def strong(self) -> dict[str, Any]:
        weights = [op for site in self._products.values() for op in site.part.score_weights]
        calls = {operation: self._look(operation, heads=False) for operation in self._products}
        return {"calls": calls, "first_outputs": dict.fromkeys(weights, lambda value: STRONG * value)}

    def _look(self, operation: Operation, heads: bool) -> Callable[..., None]:
        def look(args: Any, kwargs: Any) -> None:
            both = operands(operation, args, kwargs)
            sizes = tuple(size(value) / value.numel() ** 0.5 for value in both)
            self._sizes.setdefault(operation, []).append(sizes)
            if not heads:
                return
            site = self._products[operation]
            self._place(site, operation, args, kwargs)
            site.traits.axes[operation] = _axes(operation, args, kwargs)
            if operation.function in FUSED:
                given = kwargs.get("scale")
                site.traits.scales[operation] = float(both[0].shape[-1] ** -0.5 if given is None else given)
            own = tokens_of(site.traits.places, operation, args, kwargs, site.traits.length)
            if operation.function == "einsum":
                _heads_by_letters(site, equation_of(args, kwargs), *own, self._widths[site.source])
            else:
                _heads(site, operation, *_beside_windows(*own, self._widths[site.source]))

        return look

    def _place(self, site: Site, operation: Operation, args: Any, kwargs: Any) -> None:
        """Return where the stream's tokens stand among queries and keys; in a fused kernel, in its mask too."""
        axes = axes_of(operation, args, kwargs)
        if axes is None:
            return
        length, places = self._length(site), site.traits.places
        query, key = operands(operation, args, kwargs)
        places.query, places.key = first_token(query, *axes[0], length), first_token(key, *axes[1], length)
        if operation.function in FUSED:
            places.row, places.column = places.query, places.key

    def _place_scores(self, softmax: Operation) -> Callable[..., None]:
        def look(args: Any, kwargs: Any) -> None:
            site = self._softmaxes[softmax]
            site.traits.places.row, site.traits.places.column = first_pair(
                logits(args, kwargs), self._length(site)
            )

        return look

    def _length(self, site: Site) -> int:
        return real_tokens(self._experiment, self._experiment.streams[site.source])

    def conclude(self) -> None:
        for operation, sizes in self._sizes.items():
            if len(sizes) == 2:
                traits = self._products[operation].traits
                (query, key), (strong_query, strong_key) = sizes
                if self._scores[operation].query_weights:  # without, nothing could have grown
                    traits.query_growth = exponent(strong_query, query, STRONG)
                if self._scores[operation].key_weights:
                    traits.key_growth = exponent(strong_key, key, STRONG)


def _axes(operation: Operation, args: Any, kwargs: Any) -> tuple[str | None, str | None]:
    """Return what the axes of queries and of keys are, as text; None for those of an unusual number."""
    query, key = operands(operation, args, kwargs)
    if operation.function == "einsum":
        letters = letters_of(equation_of(args, kwargs), query, key)
        if letters is None or len(letters[2]) not in (3, 4):
            return None, None
        first, second, scores = letters
        head = {scores[1]: "head"} if len(scores) == 4 else {}
        entry = "batch" if head or query.shape[first.index(scores[0])] == ENTRIES else "batch*head"
        names = {scores[0]: entry, scores[-2]: "token", scores[-1]: "token"} | head
        return tuple(" ".join(names.get(letter, "width") for letter in side) for side in (first, second))  # type: ignore[return-value]
    ends = ("token width", "token width" if operation.function in FUSED else "width token")
    entry = "batch" if query.dim() == 4 or query.shape[0] == ENTRIES else "batch*head"
    starts = {3: entry, 4: "batch head"}
    return tuple(  # type: ignore[return-value]
        f"{starts[value.dim()]} {end}" if value.dim() in starts else None
        for value, end in zip((query, key), ends, strict=True)
    )


def _beside_windows(query: Tensor, key: Tensor, stream_width: int) -> tuple[Tensor, Tensor]:
    """Queries and keys (entries, heads, ...) of the first window, if it is the heads that fill the stream's width."""
    if query.dim() != 5 or key.dim() != 5 or query.shape[:3] != key.shape[:3]:
        return query, key
    fills = [axis for axis in (1, 2) if query.shape[axis] * query.shape[-1] == stream_width]
    if not fills:
        return query, key
    # of as many windows as heads: heads may share their keys, windows differ
    windows = 3 - min(fills, key=lambda axis: _distinct(key[0].movedim(axis - 1, 0).flatten(1)))
    return query.select(windows, 0), key.select(windows, 0)


def _heads(site: Site, operation: Operation, query: Tensor, key: Tensor) -> None:
    """Heads and their width from the shape of the queries; key heads that are equal numbers are one."""
    if (
        query.dim() == key.dim() == 5 and query.shape[2] == key.shape[2] == 1
    ):  # windows of an image that has one
        query, key = query.squeeze(2), key.squeeze(2)
    if query.dim() not in (3, 4):
        return
    width = query.shape[-1]
    heads = query.shape[1] if query.dim() == 4 else query.shape[0] // ENTRIES
    site.traits.heads, site.traits.head_width = heads, width
    turned = key if operation.function in FUSED else key.transpose(-1, -2)
    if key.dim() == 4 and turned.shape[-1] == width:
        site.traits.kv_heads = _distinct(turned[0].flatten(1))
    elif query.dim() == 3 and turned.shape[-1] == width and heads:
        site.traits.kv_heads = _distinct(turned[:heads].flatten(1))


def _distinct(rows: Tensor) -> int:
    """Return how many rows are different, by numbers from all along them: a model may pad the first keys with zeros."""
    return len(torch.unique(rows[:, :: max(rows.shape[1] // SAMPLED, 1)], dim=0))


def _heads_by_letters(site: Site, equation: str, query: Tensor, key: Tensor, stream_width: int) -> None:
    """The same from the letters of an einsum, as in "bhid,bhjd->bhij": entry, heads, query token, key token last.

    The first letter of the scores may stand for entries, or for entries and heads together ("bid,bjd->bij").
    """
    letters = letters_of(equation, query, key)
    if letters is None:
        return
    first, second, scores = letters
    sizes = dict(zip(first, query.shape, strict=True)) | dict(zip(second, key.shape, strict=True))
    entry, heads, width = scores[0], scores[1:-2], [letter for letter in first if letter not in scores]
    folded = sizes[entry] // ENTRIES
    site.traits.head_width = math.prod(sizes[letter] for letter in width)
    axes = [sizes[letter] for letter in heads]
    if "..." in equation and folded == 1 and math.prod(axes) * site.traits.head_width != stream_width:
        return  # what the dots stand for may be windows
    site.traits.heads = _heads_beside(site, folded, math.prod(axes), stream_width)
    if (
        folded == 1 < len(axes) and math.prod(axes) * site.traits.head_width != stream_width
    ):  # windows beside heads
        fills = {size for size in axes if size * site.traits.head_width == stream_width}
        site.traits.heads = fills.pop() if len(fills) == 1 else None
        return
    if sizes[entry] % ENTRIES or (folded > 1 and heads):
        site.traits.kv_heads = None
        return
    own, rest = key.movedim(second.index(entry), 0), second.replace(entry, "")
    order = [rest.index(letter) for letter in rest if letter in heads]
    rows = (
        own[0]
        .movedim(order, list(range(len(order))))
        .reshape(math.prod(own.shape[1 + axis] for axis in order), -1)
    )
    rows = own[:folded].flatten(1) if folded > 1 else rows
    site.traits.kv_heads = _distinct(rows)


def _heads_beside(site: Site, folded: int, named: int, width: int) -> int | None:
    """Heads from an axis of their own, or folded into the entries; where both are there, what fills the width.

    Frames or windows may be folded into the entries beside an axis of heads, and heads beside one of windows.
    """
    if folded == 1 or named == 1:
        return folded * named
    fills = {number for number in (named, folded) if number * (site.traits.head_width or 0) == width}
    return fills.pop() if len(fills) == 1 else None
