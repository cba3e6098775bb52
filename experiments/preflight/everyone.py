"""Every family of transformers that trains on tokens or images, small, fresh and after 60 steps: all are healthy.

`PART=tune` (a third of the families, by the hash of their name) is what facts were tuned on; `PART=once` are the
others, looked at once. `python -m experiments.preflight.run experiments/preflight/everyone.py` runs the part that the
environment names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from experiments.census import shrink as sizes
from experiments.census.huggingface import SETTINGS
from experiments.preflight.families import own_loss
from experiments.preflight.healthy import trained

VOCABULARY, SAMPLES, TOKENS, CLASSES = 512, 6, 24, 5
TASKS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "next",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "masked",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "translation",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "classes",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "tags",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "image",
}


def build(kind: str, name: str, task: str) -> nn.Module | None:
    """The class at small sizes, or None if it cannot be built from its config alone."""
    import transformers
    from transformers import CONFIG_MAPPING

    kept = sizes.WIDTH, sizes.HEAD_WIDTH
    sizes.WIDTH, sizes.HEAD_WIDTH = 64, 16
    try:
        for caution in (0, 1):
            try:
                config = sizes.shrink(CONFIG_MAPPING[kind], caution, SETTINGS.get(kind))
                config.num_labels = CLASSES
                config.is_decoder = task == "next"  # else some encoders see the future as language models
                if getattr(config, "pad_token_id", 0) is None:
                    config.pad_token_id = 0
                torch.manual_seed(0)
                model: nn.Module = getattr(transformers, name)(config)
            except Exception:  # noqa: BLE001  many configs need more than small sizes: the next, or left out
                continue
            if sum(p.numel() for p in model.parameters()) < 6_000_000:
                return model.train()
    finally:
        sizes.WIDTH, sizes.HEAD_WIDTH = kept
    return None


def batches(model: nn.Module, task: str) -> list[dict[str, Tensor]]:
    """A task that can be learned: each token follows from the last two, classes from the tokens."""
    draw = torch.Generator().manual_seed(0)
    vocabulary = min(VOCABULARY, int(getattr(model.config, "vocab_size", VOCABULARY)))
    out = []
    for _ in range(4):
        if task == "image":
            size, channels = getattr(model.config, "image_size", 32), getattr(model.config, "num_channels", 3)
            size = size if isinstance(size, int) else size[0]
            labels = torch.randint(0, CLASSES, (SAMPLES,), generator=draw)
            images = (
                torch.randn(SAMPLES, channels, size, size, generator=draw) + labels[:, None, None, None] / 2
            )
            out.append({"pixel_values": images, "labels": labels})
            continue
        ids = torch.randint(5, vocabulary, (SAMPLES, TOKENS), generator=draw)
        for t in range(2, TOKENS):
            keep = torch.rand(SAMPLES, generator=draw) < 0.3
            ids[:, t] = torch.where(
                keep, ids[:, t], (3 * ids[:, t - 1] + ids[:, t - 2]) % (vocabulary - 5) + 5
            )
        if task == "next":
            out.append({"input_ids": ids, "labels": ids.clone()})
        elif task == "masked":
            hidden = torch.rand(ids.shape, generator=draw) < 0.2
            out.append({"input_ids": ids.masked_fill(hidden, 4), "labels": ids.masked_fill(~hidden, -100)})
        elif task == "translation":
            out.append({"input_ids": ids, "labels": (ids[:, :-4] + 7) % (vocabulary - 5) + 5})
        elif task == "tags":
            out.append({"input_ids": ids, "labels": ids % CLASSES})
        else:
            out.append({"input_ids": ids, "labels": ids[:, 3] % CLASSES})
    return out


def next_token(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of the next token; some families do not shift the labels inside."""
    outputs = model(input_ids=batch["input_ids"]).logits[:, :-1]
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["labels"][:, 1:].flatten())


def made(kind: str, name: str, task: str, steps: int) -> dict[str, Any] | None:
    """A training of this family, or None if it does not run on a plain batch of its task."""
    model = build(kind, name, task)
    if model is None:
        return None
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loss = next_token if task == "next" else own_loss
    setup = {"model": model, "batches": batches(model, task), "loss": loss, "optimizer": optimizer}
    try:
        if not torch.is_tensor(loss(model, setup["batches"][0])):
            return None
        return trained(setup, steps) if steps else setup
    except Exception:  # noqa: BLE001  it needs other inputs than these
        return None


def more() -> Iterator[tuple[str, str, Callable[[], dict[str, Any] | None]]]:
    """Families of one part; a class is taken for its first task, and again as a classifier."""
    from transformers.models.auto import modeling_auto

    once = os.environ.get("PART", "tune") == "once"
    for mapping, task in TASKS.items():
        for kind, name in getattr(modeling_auto, mapping).items():
            name = name if isinstance(name, str) else name[0]
            if (crc32(kind.encode()) % 3 == 0) == once:
                continue
            for words, steps in (("fresh", 0), ("trained", 60)):
                yield (
                    f"{name}, {words}",
                    "control",
                    lambda k=kind, n=name, t=task, s=steps: made(k, n, t, s),
                )
