"""Small tasks with one interface: batches to train on, a held-out batch, a network, and where the answer is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import edgewise
from edgewise.study.tasks import byte_text, digits

KEYS, VALUES, CONTEXT, QUESTIONS = 16, 16, 8, 8
WIDTH = 32
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    """What a network is built for: `network` are the arguments of nets.build besides the architecture.

    condition: of the covariance of what enters attention, by fixed scales behind its norm; None: learned gains, from 1.
    """

    stream: str
    tokens: int
    causal: bool
    network: dict[str, Any]
    answers: int | None  # read at this many last tokens; None: everywhere
    condition: float | None = None


_RETRIEVAL = Subject(
    "retrieval",
    CONTEXT + QUESTIONS,
    True,
    dict(inputs=KEYS + VALUES, outputs=VALUES, vectors=True),
    QUESTIONS,
)
SUBJECTS = {
    "retrieval": _RETRIEVAL,
    "scaled1e4": replace(_RETRIEVAL, condition=1e4),
    "scaled1e2": replace(_RETRIEVAL, condition=1e2),
    "scaled1": replace(_RETRIEVAL, condition=1.0),
    "digits": Subject("digits", 16, False, dict(inputs=4, outputs=10, vectors=True, pooled=True), None),
    "bytes": Subject("bytes", 32, True, dict(inputs=256, outputs=256), None),
}


def network(subject: Subject, qk_norm: bool) -> nn.Module:
    """Two blocks of width 32 with two heads; its weights from torch's global stream."""
    knobs = dict(
        depth=2, width=WIDTH, heads=2, mlp_width=64, tokens=subject.tokens, norm="pre", causal=subject.causal
    )
    model = edgewise.nets.build(edgewise.transformer(**knobs, qk_norm=qk_norm), **subject.network)
    if subject.condition is not None:
        scales = torch.logspace(0, -0.5, WIDTH, base=subject.condition)
        for attention_branch, _ in model.blocks:
            attention_branch.norm_before.requires_grad_(False)
            attention_branch.norm_before.weight.copy_(
                scales / scales.square().mean().sqrt()
            )  # of unit mean square
    return model


def batches(stream: str, size: int, seed: int) -> Iterator[Batch]:
    if stream != "retrieval":
        return (digits() if stream == "digits" else byte_text(32)).batches(size, seed)
    return _retrievals(size, torch.Generator().manual_seed(seed))


def held_out(stream: str) -> Batch:
    if stream == "retrieval":
        return next(batches(stream, 512, seed=10**6))
    return digits().held_out(360) if stream == "digits" else byte_text(32).held_out(128)


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
