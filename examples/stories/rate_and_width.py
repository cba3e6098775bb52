"""The learning rate at four times the width, rehearsed in seconds.

python -m examples.stories.rate_and_width FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import torch

import edgewise
from edgewise.present import Curve, Panel, Sheet
from examples.rate import SYMBOLS, TOKENS, batches, loss

WIDTHS = (32, 64, 128)


def main(folder: Path) -> None:
    rates = []
    for width in WIDTHS:
        torch.manual_seed(0)
        network = edgewise.transformer(depth=3, width=width, heads=2, tokens=TOKENS, causal=True)
        model = edgewise.nets.build(network, inputs=SYMBOLS, outputs=SYMBOLS)
        rates.append(edgewise.learning_rate(model, batches(), loss, optimizer=torch.optim.AdamW))
        print(f"width {width}: {edgewise.rehearsal.outlook(rates[-1]).sentence}")
    best = Curve("named rate", np.array(WIDTHS), np.array([rate.best for rate in rates]))
    panel = Panel("AdamW, 3 blocks", "width", "learning rate", (best,), log_x=True, log_y=True)
    folder.mkdir(parents=True, exist_ok=True)
    Sheet("The rate that each width takes", (panel,)).save(folder / "rate_and_width.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
