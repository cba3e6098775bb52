"""Compute what the page shows to a reader without files: two planes of one network, and a watched run that fails.

python tools/page_examples.py [planes | run]        writes src/edgewise/explorer/examples/ (ten seconds each)
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from edgewise import landscape  # noqa: E402
from examples.watch_failing import network, sequences, train  # noqa: E402

FOLDER = ROOT / "src" / "edgewise" / "explorer" / "examples"
POINTS, STEPS, RATE = 25, 300, 3e-3


def loss(model: nn.Module, x: Any) -> Any:
    """Of the next token."""
    return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def main() -> None:
    wanted = sys.argv[1:] or ["planes", "run"]
    if "planes" in wanted:
        planes()
    if "run" in wanted:
        run()


def run() -> None:
    """A rate that grows until the network breaks; the dossiers, which hold weights, stay behind."""
    name = "a rate that grows"
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)  # events name the folder as it was given
        train(network(), Path(name), 3e-3)
        os.chdir(ROOT)
        shutil.rmtree(FOLDER / "runs", ignore_errors=True)
        left_out = shutil.ignore_patterns("dossiers", "*.lock")
        shutil.copytree(Path(place) / name, FOLDER / "runs" / name, ignore=left_out)


def planes() -> None:
    """Queries against keys of all blocks, the same directions and batch for both."""
    torch.manual_seed(0)
    model, drawn = network(), torch.Generator().manual_seed(1)
    held = sequences(16, drawn)
    FOLDER.mkdir(exist_ok=True)
    store(model, held, "before_training")
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model, sequences(16, drawn)).backward()
        optimizer.step()
    store(model, held, "after_training")


def store(model: nn.Module, batch: Any, name: str) -> None:
    plane = landscape.plane(model, loss, batch, ("queries", "keys"), points=POINTS)
    plane.save(FOLDER / f"{name}.npz")
    print(f"{name}: {plane.roughness}")


if __name__ == "__main__":
    main()
