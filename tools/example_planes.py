"""Compute the two planes that the landscape view shows where a reader has none: one network before and after training.

python tools/example_planes.py        writes src/edgewise/explorer/examples/*.npz (ten seconds)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from edgewise import landscape  # noqa: E402
from examples.watch_failing import network, sequences  # noqa: E402

FOLDER = ROOT / "src" / "edgewise" / "explorer" / "examples"
POINTS, STEPS, RATE = 25, 300, 3e-3


def loss(model: nn.Module, x: Any) -> Any:
    """Of the next token."""
    return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def main() -> None:
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
