"""The model inside torch.compile and DistributedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def unwrap(model: nn.Module) -> nn.Module:
    """The model without its wrappers, whose names are not the ones that a user knows."""
    if "_orig_mod" in model._modules:
        return unwrap(model.get_submodule("_orig_mod"))
    if type(model).__name__ in WRAPPERS and "module" in model._modules:
        return unwrap(model.get_submodule("module"))
    return model
