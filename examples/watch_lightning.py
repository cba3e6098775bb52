"""Lightning, watched by a callback (needs lightning).

python -m examples.watch_lightning FOLDER [STEPS]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import edgewise
from examples.watch_failing import network, sequences


def fit(folder: Path, steps: int = 30) -> Any:
    """Train a small encoder; returns the callback, whose handle knows the cost and the alarms."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, x: Tensor, index: int) -> Tensor:  # noqa: ARG002
            return nn.functional.cross_entropy(self.net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 3e-3)

    # Every step of a model as small as this one; without `everything` the budget is kept, and few steps are sampled.
    callback = edgewise.LightningCallback(to=folder, everything=True, stop=True)
    trainer = lightning.Trainer(
        max_steps=steps,
        callbacks=[callback],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(Module(), DataLoader(sequences(8 * steps, torch.Generator().manual_seed(0)), batch_size=8))  # type: ignore[arg-type]
    return callback


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(fit(Path(sys.argv[1]), *map(int, sys.argv[2:3])).handle.cost)
