"""A grid on disk: losses, how many rows of them are finished, and what they are of.

It is written whole each time, continued after a kill, and refused for another grid or for something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import LARGEST_ARRAYS, open_regular, read_arrays, whole_file

CLOSE = 1e-5  # relative: losses at the centre on two machines
TEXTS, SWITCHES, COUNTS = ("normalization", "method"), ("rebalanced",), ("seed",)


class GridFile:
    """losses (rows, ...) with NaN where not done, the number of finished rows, and what they are of."""

    def __init__(self, path: str | Path, facts: Mapping[str, Any]) -> None:
        self.path, self.facts = Path(path), dict(facts)
        if self.path.suffix != ".npz" or not self.path.parent.is_dir():
            raise BadInput(f"file must be a name ending in .npz in a folder that exists, got {str(path)!r}.")

    def read(self) -> tuple[Array, int] | None:
        """What is finished, or None; a file of something else is refused, saying what differs."""
        if not self.path.exists():
            return None
        losses, rows, facts = read_grid(self.path)
        for name, value in self.facts.items():
            if not _same(facts.get(name), value):
                raise BadInput(
                    f"{self.path} holds the grid of another {name}: {_short(facts.get(name))} there, {_short(value)} "
                    "here. Give another file, or remove it."
                )
        return losses, rows

    def write(self, losses: Array, rows: int) -> None:
        with whole_file(self.path) as file:
            np.savez(file, losses=losses, rows=rows, facts=json.dumps(self.facts))


def read_grid(path: str | Path) -> tuple[Array, int, dict[str, Any]]:
    """Losses, finished rows and facts of a file; anything but a landscape is refused."""
    try:
        with open_regular(path, LARGEST_ARRAYS) as file:
            arrays = read_arrays(file, ("losses", "rows", "facts"))
        losses, rows, facts = arrays["losses"], int(arrays["rows"]), json.loads(str(arrays["facts"]))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read as a landscape: {error}") from error
    if losses.dtype.kind != "f" or losses.ndim not in (1, 2) or not isinstance(facts, dict):
        raise BadInput(
            f"{path} cannot be read as a landscape: its losses are {losses.dtype} of shape {losses.shape}."
        )
    return losses, rows, facts


def checked_axes(
    file: str | Path, losses: Array, facts: Mapping[str, Any]
) -> tuple[tuple[Array, ...], tuple[str, ...], Array | None]:
    """Axes, names and path of a file that others may have written, or a refusal by the name of the fact."""
    axes = tuple(_numbers(file, "grid", axis, 1) for axis in _items(file, "grid", facts))
    if tuple(map(len, axes)) != losses.shape[::-1]:
        raise _refusal(
            file, "grid", f"{[len(axis) for axis in axes]} points for losses of shape {losses.shape}"
        )
    names = tuple(_items(file, "names", facts))
    if len(names) != len(axes) or not all(isinstance(name, str) for name in names):
        raise _refusal(file, "names", _short(list(names)))
    for kind, keys in ((str, TEXTS), (bool, SWITCHES), (int, COUNTS)):
        for key in keys:
            if not isinstance(facts.get(key), kind):
                raise _refusal(file, key, _short(facts.get(key)))
    path = None if facts.get("path") is None else _numbers(file, "path", facts["path"], 2)
    if path is not None and path.shape[1] != len(axes):
        raise _refusal(file, "path", f"points with {path.shape[1]} coordinates on {len(axes)} axes")
    return axes, names, path


def _items(file: str | Path, key: str, facts: Mapping[str, Any]) -> list[Any]:
    items = facts.get(key)
    if not isinstance(items, list) or not 1 <= len(items) <= 2:
        raise _refusal(file, key, _short(items))
    return items


def _numbers(file: str | Path, key: str, values: Any, dimensions: int) -> Array:
    try:
        numbers = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise _refusal(file, key, _short(values)) from None
    if numbers.ndim != dimensions or not np.isfinite(numbers).all():
        raise _refusal(file, key, _short(values))
    return numbers


def _refusal(file: str | Path, key: str, value: str) -> BadInput:
    return BadInput(
        f"{file} cannot be read as a landscape: its {key} is {value}. Compute it again, or save it anew."
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-12)
    return bool(one == other)


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) < 60 else text[:57] + "..."
