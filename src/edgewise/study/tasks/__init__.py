"""Small real tasks with fixed splits, by name: images and text as tokens, without a download."""

from __future__ import annotations

from collections.abc import Callable

from edgewise.errors import BadInput
from edgewise.study.tasks.base import Pair, Task
from edgewise.study.tasks.images import cifar10, digits, fashion, read_idx
from edgewise.study.tasks.imdb import byte_text

__all__ = ["Pair", "TASKS", "Task", "byte_text", "cifar10", "digits", "fashion", "read_idx", "task"]

TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "fashion": fashion,
    "cifar10": cifar10,
    "bytes": byte_text,
}


def task(name: str, **options: object) -> Task:
    """Return digits, fashion (folder=...), cifar10 (folder=...) or bytes (tokens=...)."""
    if name not in TASKS:
        raise BadInput(f"{name!r} is not a task; there are {', '.join(TASKS)}.")
    return TASKS[name](**options)
