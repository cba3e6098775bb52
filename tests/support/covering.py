"""Combinations of test parameters: by default as many as are needed to see every value, or every pair of values."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def slow(values: Iterable[Any], left: Container[Any]) -> list[Any]:
    """Return the values for `parametrize`; those that are left to the slow tests are marked."""
    return [pytest.param(value, marks=pytest.mark.slow if value in left else ()) for value in values]


def covering(*axes: Sequence[Any], strength: int = 1) -> list[Any]:
    """Return every combination, for `parametrize`; those that bring no new `strength`-tuple of values are slow."""
    places = list(product(*(range(len(axis)) for axis in axes)))
    longest = max(len(axis) for axis in axes)
    diagonal = {tuple(row % len(axis) for axis in axes) for row in range(longest)}
    seen: set[tuple[tuple[int, int], ...]] = set()
    default = set()
    for place in sorted(places, key=lambda place: place not in diagonal):
        tuples = set(combinations(enumerate(place), strength))
        if tuples - seen:
            default.add(place)
            seen |= tuples
    return [
        pytest.param(
            *(axis[number] for axis, number in zip(axes, place, strict=True)),
            marks=() if place in default else pytest.mark.slow,
        )
        for place in places
    ]
