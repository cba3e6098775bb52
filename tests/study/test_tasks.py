"""Small real tasks: their splits, their tokens, and what happens where the data is not there."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from edgewise.errors import BadInput
from edgewise.study import tasks


def test_digits_are_the_pixels_in_patches() -> None:
    task = tasks.task("digits")
    assert (task.tokens, task.inputs, task.outputs) == (16, 4, 10)
    assert (len(task.train[0]), len(task.validation[0])) == (1437, 360)
    assert task.chance == pytest.approx(math.log(10))
    pixels = torch.cat([task.train[0], task.validation[0]])
    assert float(task.train[0].mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(task.train[0].std()) == pytest.approx(1.0, abs=1e-4)
    # Every image is there once: the pixels of all images, put back together and sorted, are those of the package.
    images = pixels.reshape(-1, 4, 4, 2, 2).permute(0, 1, 3, 2, 4).reshape(-1, 64).numpy()
    whole, _ = load_digits(return_X_y=True)
    scaled = (whole - whole.mean()) / whole.std()
    np.testing.assert_allclose(np.sort(images.sum(1)), np.sort(scaled.sum(1)), atol=0.8)
    first = images[0] - images[0].min()
    distances = np.abs(whole - first * 16 / first.max() * whole.max(1).mean() / 16).sum(1)
    assert distances.min() < 0.02 * whole.sum(1).mean()


def test_bytes_predict_the_next_one_and_parts_do_not_overlap() -> None:
    task = tasks.task("bytes")
    inputs, labels = task.train
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    assert not task.pooled
    seen = {bytes(row.tolist()) for row in inputs[:20000]}
    assert sum(bytes(row.tolist()) in seen for row in task.validation[0][:500]) < 5
    text = bytes(inputs[0].tolist()).decode("utf-8", "replace")
    assert sum(letter.isascii() for letter in text) >= 30
    entropy = -float((task.prior.exp() * task.prior).sum())
    assert 2.9 < entropy < 3.3  # English text: about 4.5 bits per byte


def test_batches_follow_their_seed() -> None:
    task = tasks.task("digits")
    first, again, other = (next(task.batches(8, seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert task.held_out(5)[0].shape == (5, 16, 4)


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def test_fashion_is_read_from_idx_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part, count in (("train", 6), ("t10k", 3)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", generator.integers(0, 256, (count, 28, 28)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.arange(count))
    task = tasks.task("fashion", folder=str(tmp_path))
    assert (task.tokens, task.inputs, len(task.train[0]), len(task.validation[0])) == (49, 16, 6, 3)
    assert task.train[1].tolist() == [0, 1, 2, 3, 4, 5]
    raw = tasks.read_idx(tmp_path / "train-images-idx3-ubyte.gz").astype(float)
    expected = (raw[0, 4:8, 8:12] - raw.mean()) / raw.std()  # second row of patches, third column
    np.testing.assert_allclose(task.train[0][0, 7 + 2].numpy(), expected.ravel(), atol=1e-5)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"dataset-fashion-mnist"):
        tasks.fashion(tmp_path)
    with pytest.raises(BadInput, match="there are digits, fashion"):
        tasks.task("letters")
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"\1\2\3\4"))
    with pytest.raises(BadInput, match="not an IDX file"):
        tasks.read_idx(tmp_path / "x.gz")
    for content in (b"\0\0\x08\1\x7f\0\0\0" + bytes(300), b"\0\0\x08\3\0\0"):
        (tmp_path / "x.gz").write_bytes(gzip.compress(content))
        with pytest.raises(BadInput, match="claims the shape"):
            tasks.read_idx(tmp_path / "x.gz")
