"""CIFAR-10 from the six files of its binary version; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from edgewise.errors import BadInput
from edgewise.study.tasks import Task

FOLDER = Path("cifar-10-batches-bin")  # what its archive unpacks to
PIXELS = 3 * 32 * 32
_FILES = (*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin")


def cifar10(folder: str | Path | None = None) -> Task:
    """CIFAR-10 [Krizhevsky 2009]: colour images of 32x32 in 64 patches of 4x4x3, 50,000 to train, 10,000 held out."""
    home = FOLDER if folder is None else Path(folder)
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

    def pair(x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = (_patches(x).astype(np.float32) - mean) / std
        return torch.from_numpy(scaled.astype(np.float32)), torch.from_numpy(y.astype(np.int64))

    return Task("cifar10", 48, 10, True, True, pair(images, labels), pair(*parts[-1]))


def read_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) and labels (N,) as bytes: a record is one label and three colour planes."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    if data.size == 0 or data.size % (1 + PIXELS):
        raise BadInput(f"{path} has {data.size} bytes: expected records of {1 + PIXELS}. Fetch it again.")
    records = data.reshape(-1, 1 + PIXELS)
    if records[:, 0].max() > 9:
        raise BadInput(
            f"{path} holds the label {records[:, 0].max()}: expected 0 to 9. Is it the binary version?"
        )
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _patches(images: np.ndarray) -> np.ndarray:
    """(N, 3, 32, 32) to (N, 64, 48): patches of 4x4 row by row, each with its colours."""
    split = images.reshape(len(images), 3, 8, 4, 8, 4)
    return split.transpose(0, 2, 4, 1, 3, 5).reshape(len(images), 64, 48)
