"""The norm of the stream that enters the first block: measured where the model says what it eats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgewise.adapters.module.watching import FAILURES, quiet
from edgewise.adapters.roles.record import ModelSites

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENS = 64


class _ArrivedError(Exception):
    """Stops the forward pass at the first block: the rest is not needed."""


def first_norm(model: nn.Module, sites: ModelSites) -> float | None:
    """Mean square per coordinate at the first block, for random tokens (or pixels of unit variance), or None."""
    for batch in _batches(model, sites):
        stream = _arriving(model, sites.blocks[0].name, batch)
        if stream is not None:
            return float(stream.double().pow(2).mean())
    return None


def table_norm(model: nn.Module, sites: ModelSites) -> float | None:
    """The sum of the mean squares of all tables: right where they are added, and nothing follows."""
    from torch import nn

    modules = dict(model.named_modules())
    tables = [modules[name] for name in sites.embeddings if isinstance(modules.get(name), nn.Embedding)]
    return sum(float(table.weight.detach().double().pow(2).mean()) for table in tables) if tables else None


def _batches(model: nn.Module, sites: ModelSites) -> Iterator[dict[str, Any]]:
    """Ids for the first table, as `input_ids` and as the first argument; else images of the config's size."""
    import torch
    from torch import nn

    generator, device = torch.Generator().manual_seed(0), next(model.parameters()).device
    modules = dict(model.named_modules())
    tables = [modules[name] for name in sites.embeddings if isinstance(modules.get(name), nn.Embedding)]
    if tables:
        count, length = tables[0].num_embeddings, min(TOKENS, min(table.num_embeddings for table in tables[:2]) // 2)
        ids = torch.randint(min(3, count - 1), count, (4, max(length, 2)), generator=generator).to(device)
        yield {"input_ids": ids}
        yield {"": ids}
    size = getattr(getattr(model, "config", None), "image_size", None)
    if size is not None:
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        pixels = torch.randn(8, getattr(model.config, "num_channels", 3), height, width, generator=generator)
        yield {"pixel_values": pixels.to(next(model.parameters()))}


def _arriving(model: nn.Module, block: str, batch: dict[str, Any]) -> Tensor | None:
    import torch

    caught: list[Tensor] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        argument = next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)), None)
        if argument is not None:
            caught.append(argument.detach())
        raise _ArrivedError

    handle = model.get_submodule(block).register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with quiet(model):
            model(*[v for k, v in batch.items() if not k], **{k: v for k, v in batch.items() if k})
    except (_ArrivedError, *FAILURES):
        pass
    finally:
        handle.remove()
    return caught[0] if caught else None
