"""Parameters spread over processes (DDP replicas, FSDP2 shards): gather, cut, sum over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from edgewise.models.twin import holding, twin
from edgewise.models.unwrap import unwrap

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor: gathered if it is a shard (DTensor), itself if it is not."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a shard (DTensor), the tensor itself if it is not one."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def like_shard(full: Tensor, parameter: Tensor) -> Tensor:
    """Return a full tensor, the same on all processes, cut as the parameter is."""
    if not hasattr(parameter, "full_tensor"):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    # src_data_rank=None: every process holds the same values, nothing is sent.
    return distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)


def processes_of(model: nn.Module, group: ProcessGroup | Literal[False] | None = None) -> ProcessGroup | None:
    """Return the group to average over: this one, that of DistributedDataParallel, the world; None if alone."""
    if group is False or not dist.is_available() or not dist.is_initialized():
        return None
    if group is not None:
        return group
    own = data_parallel_group(model)
    default = own if own is not None else dist.group.WORLD
    return default if dist.get_world_size(default) > 1 else None


def data_parallel_group(model: nn.Module) -> ProcessGroup | None:
    """Return the group of DistributedDataParallel, at whatever depth of wrappers it is; None without one."""
    layer: nn.Module | None = model
    while layer is not None and type(layer).__name__ != "DistributedDataParallel":
        layer = layer._modules.get("_orig_mod") or layer._modules.get("module")
    return None if layer is None else layer.process_group  # type: ignore[return-value]


def processes_in(group: ProcessGroup | None) -> int:
    """Return how many processes a group has; one if there is none."""
    return 1 if group is None else dist.get_world_size(group)


def summed(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the sum over the processes of a group."""
    if group is not None:
        dist.all_reduce(tensor, group=group)
    return tensor


def norm_function(model: nn.Module, name: str | None) -> Callable[[Tensor], Tensor] | None:
    """Return a norm of the model as a function of its input, with gathered gains."""
    if name is None:
        return None
    module = unwrap(model).get_submodule(name)
    gains = {key: whole(parameter) for key, parameter in module.named_parameters()}
    kinds = {g.dtype for g in gains.values()}
    kind = kinds.pop() if len(kinds) == 1 else torch.float32
    copy = twin(module)

    def norm(x: Tensor) -> Tensor:
        with holding(copy, gains):
            return copy(x.to(kind)).to(x.dtype)

    return norm


def by_name(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    """Return the parameters of these names in the bare model."""
    bare = unwrap(model)
    return {name: bare.get_parameter(name) for name in dict.fromkeys(names)}
