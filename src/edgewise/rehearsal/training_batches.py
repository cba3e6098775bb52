"""Batches of a rehearsal: some to train on, some held back; synthetic ones for a model without data.

Whatever hands the batches over is left as it was: a loader's own random generators are put back, and a list or any
other re-iterable object can be read again. Only an iterator cannot be rewound; it is read once, and a note says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from edgewise.errors import BadInput
from edgewise.landscape.evaluation import Batch
from edgewise.models.inputs import HEADS, default_batch

FRESH = 6  # batches held back; their mean loss is what rates are compared by
NEXT = 4  # symbols that may follow another
MOST = 512  # symbols in use
NOTE = (
    "rehearsed on synthetic batches (a random Markov chain or noisy random images), so this is a first guess: give "
    "your own batches for a rate to train with"
)


@dataclass(frozen=True)
class BatchSplit:
    """Batches in memory: `train` in the order in which they are used, `fresh` held back."""

    train: tuple[Batch, ...]
    fresh: tuple[Batch, ...]
    notes: tuple[str, ...] = ()

    def at(self, step: int, accumulate: int) -> list[Batch]:
        """Return the batches of one optimizer step, in turn where there are fewer than the rehearsal takes."""
        return [self.train[(step * accumulate + part) % len(self.train)] for part in range(accumulate)]


def first_batches(batches: Iterable[Batch], count: int) -> list[Batch]:
    """Return the first batches of whatever the user has, those to be held back included.

    Refused where too few or empty.
    """
    rows = _read(batches, count + FRESH)
    if len(rows) < 2:
        raise BadInput(
            f"{len(rows)} batch{'es' * (len(rows) != 1)} came, and at least 2 are needed: one to train on and one to "
            "tell learning from memorising. Give a list of batches, or a DataLoader."
        )
    for number, batch in enumerate(rows):
        tensors = [
            leaf
            for leaf in tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)
            if isinstance(leaf, Tensor)
        ]
        if any(tensor.numel() == 0 for tensor in tensors):
            raise BadInput(
                f"batch {number} is empty (a tensor without entries): there is nothing to learn from."
            )
    return rows


def split_batches(batches: Iterable[Batch], rows: list[Batch], steps: int, accumulate: int) -> BatchSplit:
    """Return those of the first batches that some steps take; fresh ones come after those that are trained on."""
    needed, read = steps * accumulate, len(rows)
    rows = rows[: needed + FRESH]
    held = max(1, min(FRESH, len(rows) // 4))
    train, fresh = rows[:-held][:needed], rows[-held:]
    notes = []
    if len(train) < needed:
        notes.append(
            f"{len(rows)} batches came for {needed} steps of training: they were used in turn, and memorising them "
            "looks like learning"
        )
    if isinstance(batches, Iterator):
        notes.append(
            f"the iterator was read: its first {read} batches are gone; a list or loader is not used up"
        )
    return BatchSplit(tuple(train), tuple(fresh), tuple(notes))


def _read(batches: Iterable[Batch], count: int) -> list[Batch]:
    if isinstance(batches, (Tensor, Mapping, str, bytes)) or not isinstance(batches, Iterable):
        raise BadInput(
            f"batches must be a list, a DataLoader or another iterable of batches, got a {type(batches).__name__}. "
            "A single batch is not enough: give at least two in a list."
        )
    with _Generators(batches):
        return list(islice(iter(batches), count))


class _Generators:
    """The random generators that a DataLoader and its samplers own, as they were afterwards."""

    def __init__(self, loader: object) -> None:
        self._states: list[tuple[torch.Generator, Tensor]] = []
        self._todo = [loader]

    def __enter__(self) -> None:
        seen: set[int] = set()
        while self._todo:
            owner = self._todo.pop()
            if id(owner) in seen or not hasattr(owner, "__dict__"):
                continue
            seen.add(id(owner))
            for name, value in vars(owner).items():
                if isinstance(value, torch.Generator):
                    self._states.append((value, value.get_state()))
                elif "sampler" in name or name == "dataset":
                    self._todo.append(value)

    def __exit__(self, *_: object) -> None:
        for generator, state in self._states:
            generator.set_state(state)


def synthetic_batches(
    model: nn.Module, count: int, size: int = 16, tokens: int | None = None, seed: int = 0
) -> list[Batch]:
    """Return keyword arguments with labels, for a Hugging Face model; raise if a model has no loss of its own."""
    generator = torch.Generator().manual_seed(seed)
    accepted = inspect.signature(model.forward).parameters
    if "labels" not in accepted or getattr(model, "config", None) is None:
        raise BadInput(
            f"{type(model).__name__} is not a Hugging Face model with a loss of its own, so it cannot be rehearsed "
            "without data. Give batches and a loss; in the shell --batch file.py:name and --loss file.py:name."
        )
    example = default_batch(model, generator, tokens)
    if "pixel_values" in example:
        return _images(model, example["pixel_values"], count, size, generator)
    if not any(head in type(model).__name__ for head in HEADS):
        raise BadInput(
            f"there are no synthetic batches for {type(model).__name__}. Give your own, and a loss."
        )
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
    model: nn.Module, example: Tensor, count: int, size: int, generator: torch.Generator
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
