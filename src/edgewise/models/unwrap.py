"""The model inside its wrappers, and modules whose matrices are integers; imports nothing of torch."""

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


SHORT = ("torch.int8", "torch.uint8", "torch.int16", "torch.int32")  # indices are int64


def is_quantized(module: nn.Module) -> bool:
    """A module without parts whose matrix is of short integers; tables that ids are looked up in are none."""
    if any(part is not None for part in module._modules.values()) or hasattr(module, "num_embeddings"):
        return (
            False  # looked up without torch's iterators, which cost more than all else here: every pass asks
        )
    matrices = [value for value in module._parameters.values() if value is not None and value.dim() >= 2]
    stored = [
        *matrices,
        *(value for value in module._buffers.values() if value is not None and value.dim() >= 2),
    ]
    real = any(value.is_floating_point() for value in matrices)
    return not real and any(str(value.dtype) in SHORT for value in stored)
