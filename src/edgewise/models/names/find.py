"""Where the blocks are, the outermost repeated module lists of any model, and what is around them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgewise.errors import BadInput
from edgewise.models.names.norm import find_norms

if TYPE_CHECKING:
    from torch import nn


def find_stacks(model: nn.Module) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The outermost lists of blocks of one class, as (name, names of the blocks), the encoder of two first.

    Other lists of blocks count when they hold at least a tenth of the parameters of the largest, so that a
    list of small heads is not a stack.
    """
    candidates = _candidates(model)
    if not candidates:
        raise BadInput(
            f"{type(model).__name__} has no list of blocks: no ModuleList or Sequential with modules of one "
            "class, each with matrices. Expected a transformer whose blocks are such a list."
        )
    largest = max(size for size, *_ in candidates)
    lists = [(name, blocks) for size, name, blocks in candidates if size >= largest / 10]
    return tuple(sorted(lists, key=lambda entry: "decoder" in entry[0] and len(lists) > 1))


def _candidates(model: nn.Module) -> list[tuple[int, str, tuple[str, ...]]]:
    """(parameters, name, blocks) of every outermost list; those of one block only if there is no longer one."""
    long, short = list(_lists(model, "", 2)), list(_lists(model, "", 1))
    return long or short


def _lists(module: nn.Module, name: str, least: int) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Walk down until a list of blocks is found; what is inside it is not looked at."""
    from torch import nn

    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        blocks = _blocks(module)
        if len(blocks) >= least:
            size = sum(p.numel() for _, block in blocks for p in block.parameters())
            yield size, name, tuple(f"{name}.{key}".lstrip(".") for key, _ in blocks)
            return
    for key, child in module.named_children():
        yield from _lists(child, f"{name}.{key}".lstrip("."), least)


def _blocks(container: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children of the class that is there most often, of those made of parts and holding two matrices."""
    inside = [(key, child) for key, child in container.named_children() if _is_composite(child)]
    if not inside:
        return []
    common, _ = Counter(type(child) for _, child in inside).most_common(1)[0]
    return [(key, child) for key, child in inside if type(child) is common]


def _is_composite(module: nn.Module) -> bool:
    matrices = sum(parameter.ndim >= 2 for parameter in module.parameters())
    return matrices >= 2 and any(True for _ in module.children())


EARLY = re.compile(r"embed|emb_|(^|_)pre(_|$)|input")
HEADS = re.compile(r"head|classif|output|decoder|score|predict|unembed|logits|readout")


def embeddings_of(model: nn.Module, blocks: Sequence[str], width: int) -> tuple[str, ...]:
    """Tables, patch projections and bare parameters (positions, class tokens) that make the first stream."""
    from torch import nn

    inside = tuple(f"{name}." for name in blocks)
    names: dict[int, str] = {}
    for name, module in model.named_modules():
        table = isinstance(module, nn.Embedding) and module.embedding_dim == width
        patches = isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module.out_channels == width
        if (table or patches) and not f"{name}.".startswith(inside):
            names.setdefault(id(module.weight), name)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        bare = any(True for _ in owner.children()) or not name.endswith(("weight", "bias"))
        if bare and parameter.ndim >= 2 and parameter.shape[-1] == width and not name.startswith(inside):
            names.setdefault(id(parameter), name)
    return tuple(names.values())


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
