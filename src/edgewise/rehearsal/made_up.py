"""Batches for a model without data: sequences of a random Markov chain, or noisy copies of a few random images.

They have the shapes of real ones and something to learn. A rate rehearsed on them is a first guess: the best rate
depends on the data, above all on how much of the loss the frequencies of labels explain.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.probe.batches import HEADS, default_batch

NEXT = 4  # symbols that may follow another
MOST = 512  # symbols in use
NOTE = (
    "rehearsed on made-up batches (a random Markov chain or noisy random images), so this is a first guess: give your "
    "own batches for a rate to train with"
)


def made_up_batches(
    model: nn.Module, count: int, size: int = 16, tokens: int | None = None, seed: int = 0
) -> list[Any]:
    """Keyword arguments with labels, for a Hugging Face model; refused where a model has no loss of its own."""
    generator = torch.Generator().manual_seed(seed)
    accepted = inspect.signature(model.forward).parameters
    if "labels" not in accepted or getattr(model, "config", None) is None:
        raise BadInput(
            f"{type(model).__name__} is not a Hugging Face model with a loss of its own, so it cannot be rehearsed "
            "without data. Give batches and a loss; in the shell --data file.py:name and --loss file.py:name."
        )
    example = default_batch(model, generator, tokens)
    if "pixel_values" in example:
        return _images(model, example["pixel_values"], count, size, generator)
    if not any(head in type(model).__name__ for head in HEADS):
        raise BadInput(f"there are no made-up batches for {type(model).__name__}. Give your own, and a loss.")
    return _texts(example["input_ids"], count, size, generator)


def _texts(example: Tensor, count: int, size: int, generator: torch.Generator) -> list[dict[str, Tensor]]:
    symbols = example.unique()[:MOST]
    follows = torch.randint(len(symbols), (len(symbols), NEXT), generator=generator)
    length = example.shape[1]
    batches = []
    for _ in range(count):
        rows = torch.empty(size, length, dtype=torch.long)
        rows[:, 0] = torch.randint(len(symbols), (size,), generator=generator)
        for t in range(1, length):
            choice = torch.randint(NEXT, (size,), generator=generator)
            rows[:, t] = follows[rows[:, t - 1], choice]
        ids = symbols[rows].to(example)
        batches.append({"input_ids": ids, "labels": ids.clone()})
    return batches


def _images(
    model: Any, example: Tensor, count: int, size: int, generator: torch.Generator
) -> list[dict[str, Tensor]]:
    kinds = min(int(getattr(model.config, "num_labels", 10)), 10)
    patterns = torch.randn(kinds, *example.shape[1:], generator=generator)
    batches = []
    for _ in range(count):
        labels = torch.randint(kinds, (size,), generator=generator)
        noise = torch.randn(size, *example.shape[1:], generator=generator)
        batches.append(
            {"pixel_values": (patterns[labels] + noise).to(example), "labels": labels.to(example.device)}
        )
    return batches
