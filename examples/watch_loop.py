"""A plain loop, watched: nothing in the loop knows of it.

python -m examples.watch_loop FOLDER [STEPS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import edgewise
from edgewise.monitor.watch import Watch
from examples.watch_failing import network, sequences


def train(folder: Path, steps: int = 60) -> Watch:
    """A rehearsal names the rate, and the training is held against its edge."""
    generator, criterion = torch.Generator().manual_seed(0), nn.CrossEntropyLoss()
    batches = [sequences(8, generator) for _ in range(24)]
    model = network()
    rate = edgewise.learning_rate(
        model,
        batches,
        lambda m, x: criterion(m(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()),
        optimizer=torch.optim.AdamW,
        steps=8,
        rates=4,
        progress=False,
    )
    optimizer = torch.optim.AdamW(model.parameters(), rate.best or 1e-3)
    with edgewise.watch(model, folder, criterion=criterion, rate=rate) as handle:
        for _ in range(steps):
            x = sequences(8, generator)
            optimizer.zero_grad()
            criterion(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
            optimizer.step()
    return handle


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(train(Path(sys.argv[1]), *map(int, sys.argv[2:3])).cost)
