"""Three small tasks with one interface: batches to train on, a held-out batch, and where the answer is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgewise.study.tasks import byte_text, digits

KEYS, VALUES, CONTEXT, QUESTIONS = 16, 16, 8, 8
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    """What a network is built for: `network` are the arguments of nets.transformer besides the architecture."""

    tokens: int
    causal: bool
    network: dict[str, Any]
    answers: int | None  # read at this many last tokens; None: everywhere


def subject(name: str) -> Subject:
    if name == "retrieval":
        return Subject(CONTEXT + QUESTIONS, True, dict(inputs=KEYS + VALUES, outputs=VALUES, vectors=True), QUESTIONS)
    if name == "digits":
        return Subject(16, False, dict(inputs=4, outputs=10, vectors=True, pooled=True), None)
    return Subject(32, True, dict(inputs=256, outputs=256), None)


def batches(name: str, size: int, seed: int) -> Iterator[Batch]:
    if name != "retrieval":
        return (digits() if name == "digits" else byte_text(32)).batches(size, seed)
    return _retrievals(size, torch.Generator().manual_seed(seed))


def held_out(name: str) -> Batch:
    if name == "retrieval":
        return next(batches(name, 512, seed=10**6))
    return digits().held_out(360) if name == "digits" else byte_text(32).held_out(128)


def _retrievals(size: int, generator: torch.Generator) -> Iterator[Batch]:
    while True:
        yield retrieval(size, generator)


def retrieval(size: int, generator: torch.Generator) -> Batch:
    """8 distinct keys of 16, key r with weight 1/r, each with a random value of 16; then 8 questions: which value?

    A token is its key and its value as unit vectors, a question its key alone; all of unit mean square.
    """
    weights = 1 / torch.arange(1.0, KEYS + 1)
    keys = torch.multinomial(weights.expand(size, -1), CONTEXT, generator=generator)
    values = torch.randint(VALUES, (size, CONTEXT), generator=generator)
    asked = torch.randint(CONTEXT, (size, QUESTIONS), generator=generator)
    x = torch.zeros(size, CONTEXT + QUESTIONS, KEYS + VALUES)
    side = (KEYS + VALUES) ** 0.5
    x[:, :CONTEXT].scatter_(2, keys[:, :, None], side / 2**0.5)
    x[:, :CONTEXT].scatter_(2, KEYS + values[:, :, None], side / 2**0.5)
    x[:, CONTEXT:].scatter_(2, keys.gather(1, asked)[:, :, None], side)
    return x, values.gather(1, asked)
