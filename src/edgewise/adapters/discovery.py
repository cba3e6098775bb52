"""Where the blocks are: the outermost repeated module lists of any model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgewise.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile and DistributedDataParallel, whose names are the ones used."""
    if "_orig_mod" in model._modules:
        return unwrap(model.get_submodule("_orig_mod"))
    if type(model).__name__ in WRAPPERS and "module" in model._modules:
        return unwrap(model.get_submodule("module"))
    return model


def find_stacks(model: nn.Module) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The outermost lists of blocks of one class, as (name, names of the blocks), the encoder of two first.

    Other lists of blocks count when they hold at least a tenth of the parameters of the largest, so that a
    list of small heads is no stack.
    """
    found = _candidates(model)
    if not found:
        raise BadInput(
            f"{type(model).__name__} has no list of blocks: no ModuleList or Sequential with modules of one "
            "class, each with matrices. Expected a transformer whose blocks are such a list."
        )
    largest = max(size for size, *_ in found)
    kept = [(name, blocks) for size, name, blocks in found if size >= largest / 10]
    return tuple(sorted(kept, key=lambda entry: "decoder" in entry[0] and len(kept) > 1))


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
