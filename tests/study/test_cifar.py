"""CIFAR-10 is read from the files of its binary version, or refused with a way out; nothing is downloaded."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.errors import BadInput
from edgewise.study.tasks import task


def write(folder, name, count, seed):
    """Records as the archive has them: one label, then the red, green and blue plane."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count, dtype=np.uint8)
    images = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    rows = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
    (folder / name).write_bytes(rows.tobytes())
    return images, labels


def test_records_become_patches_with_their_colours(tmp_path):
    parts = [write(tmp_path, f"data_batch_{k}.bin", 4, seed=k) for k in range(1, 6)]
    test_images, test_labels = write(tmp_path, "test_batch.bin", 3, seed=9)
    found = task("cifar10", folder=tmp_path)
    images = np.concatenate([part[0] for part in parts]).astype(float)
    inputs, labels = found.train
    assert inputs.shape == (20, 64, 48)
    assert labels.tolist() == np.concatenate([part[1] for part in parts]).tolist()
    assert float(inputs.mean()) == pytest.approx(0, abs=1e-5)
    assert float(inputs.square().mean()) == pytest.approx(1, rel=1e-5)
    second = test_images[1, :, 4:8, 8:12]  # the patch in row 1, column 2
    expected = (second - images.mean()) / images.std()
    np.testing.assert_allclose(found.validation[0][1, 8 + 2], expected.ravel(), rtol=1e-5, atol=1e-6)
    assert found.validation[1].tolist() == test_labels.tolist()


def test_what_is_missing_or_torn_is_said(tmp_path):
    with pytest.raises(BadInput, match=r"data_batch_1.bin is missing.*use the digits"):
        task("cifar10", folder=tmp_path)
    for k in range(1, 6):
        write(tmp_path, f"data_batch_{k}.bin", 2, seed=k)
    (tmp_path / "test_batch.bin").write_bytes(b"\1" * 100)
    with pytest.raises(BadInput, match="expected records of 3073"):
        task("cifar10", folder=tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"\x20" * 3073)
    with pytest.raises(BadInput, match="holds the label 32"):
        task("cifar10", folder=tmp_path)
