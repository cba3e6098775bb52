"""The Trainer of transformers, watched by a callback (needs transformers and accelerate).

python -m examples.watch_trainer FOLDER [STEPS]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

import edgewise
from examples.watch_failing import sequences


class Sequences(Dataset):  # type: ignore[type-arg]
    """Examples for a causal language model, which predicts its own input."""

    def __init__(self, count: int) -> None:
        self.x = sequences(count, torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.x[i], "labels": self.x[i]}


def trainer(folder: Path, steps: int = 30) -> Any:
    """A small GPT-2 with the monitor among its callbacks; rows go to FOLDER/edgewise."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=32, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        report_to=[],
        save_strategy="no",
        logging_steps=steps,
        disable_tqdm=True,
        use_cpu=True,
    )
    made = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Sequences(8 * steps))
    # Every step of a model as small as this one; without `everything` the budget is kept, and few steps are sampled.
    made.add_callback(edgewise.HuggingFaceCallback(everything=True, stop=True))
    return made


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    trainer(Path(sys.argv[1]), *map(int, sys.argv[2:3])).train()
    print(edgewise.read(Path(sys.argv[1]) / "edgewise"))
