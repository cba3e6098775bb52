"""What is around the blocks: embeddings, the last norm, the readout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgewise.adapters.norm_sites import find_norms

if TYPE_CHECKING:
    from torch import nn

EARLY = re.compile(r"embed|emb_|(^|_)pre(_|$)|input")
HEADS = re.compile(r"head|classif|output|decoder|score|predict|unembed|logits|readout")


def embeddings_of(model: nn.Module, blocks: Sequence[str], width: int) -> tuple[str, ...]:
    """Tables, patch projections and bare parameters (positions, class tokens) that make the first stream."""
    from torch import nn

    inside = tuple(f"{name}." for name in blocks)
    found: dict[int, str] = {}
    for name, module in model.named_modules():
        table = isinstance(module, nn.Embedding) and module.embedding_dim == width
        patches = isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module.out_channels == width
        if (table or patches) and not f"{name}.".startswith(inside):
            found.setdefault(id(module.weight), name)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        bare = any(True for _ in owner.children()) or not name.endswith(("weight", "bias"))
        if bare and parameter.ndim >= 2 and parameter.shape[-1] == width and not name.startswith(inside):
            found.setdefault(id(parameter), name)
    return tuple(found.values())


def final_norm_of(model: nn.Module, stack: str, blocks: Sequence[str]) -> str | None:
    """The nearest norm beside the stack, or beside what contains it, that is not of the embeddings."""
    parent = stack
    while parent:
        parent = parent.rpartition(".")[0]
        holder = model.get_submodule(parent)
        for path in find_norms(holder):
            name = f"{parent}.{path}".lstrip(".")
            if "." not in path and not EARLY.search(path.lower()) and not name.startswith(f"{stack}."):
                return name
    beside = [p for p in find_norms(model) if "." not in p and p not in blocks] if not stack else []
    return beside[-1] if beside else None


def head_of(model: nn.Module, blocks: Sequence[str], width: int) -> str | None:
    """The linear map that reads the last stream: the model's own answer, else the last one named like it."""
    from torch import nn

    inside = tuple(f"{name}." for name in blocks)
    ask = getattr(model, "get_output_embeddings", None)
    own = ask() if callable(ask) else None
    linear = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.in_features % width == 0 and not name.startswith(inside)
    ]
    if own is not None:
        return next((name for name, module in model.named_modules() if module is own), None)
    named = [name for name, _ in linear if HEADS.search(name.lower())]
    return (named or [name for name, _ in linear] or [None])[-1]
