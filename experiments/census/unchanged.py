"""Everything of a model that reading it must leave alone, as one comparable value."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def outputs(model: nn.Module, batch: Any) -> list[bytes]:
    """The bits of every tensor that the model returns, its loss among them, from one seed."""
    torch.manual_seed(0)
    with torch.no_grad():
        out = call(model, batch)
    return [_bits(tensor) for tensor in tensors(out)]


def call(model: nn.Module, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, dict) else model(*batch)


def state(model: nn.Module) -> dict[str, Any]:
    """Parameters, buffers, gradients, modes, hooks and random streams."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "parameters": [_bits(p) for p in model.parameters()],
        "buffers": [_bits(b) for b in model.buffers()],
        "gradients": [None if p.grad is None else _bits(p.grad) for p in model.parameters()],
        "frozen": [p.requires_grad for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "hooks": [len(getattr(m, name)) for m in model.modules() for name in hooks],
        "random": (_bits(torch.get_rng_state()), np.random.get_state()[1].tobytes(), str(random.getstate())),  # noqa: NPY002
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what is not as it was."""
    return [name for name in before if before[name] != after[name]]


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def _bits(tensor: Tensor) -> bytes:
    """A digest of the numbers, bit by bit."""
    plain = tensor.detach().contiguous().cpu()
    try:
        data = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    except (RuntimeError, TypeError):  # subclasses that hide their storage (nested, quantized)
        data = repr(plain).encode()
    return hashlib.blake2b(data, digest_size=8).digest()
