"""Where a rehearsal happens: on a true copy of the model, or, where none can be made, in place with a snapshot.

A copy is drawn anew for every rate, so that each starts from the same weights, buffers and Python state, and only one
exists at a time. FSDP2 cannot be copied: its shards are trained in place and put back from a snapshot, bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from edgewise.errors import BadInput
from edgewise.models.state import back_in_shards, is_sharded, preserved
from edgewise.models.unwrap import unwrap
from edgewise.optim.wrapper import OptimizerWrapper
from edgewise.rehearsal.optimizers import copied, factory_of, refuse_optimizer, trainable

DDP_SETTINGS = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")


class Stage:
    """Gives (model, optimizer) for one rehearsal at a time; afterwards all is as it was."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self.model, self.bare = model, unwrap(model)
        trainable(self.bare)
        back_in_shards(self.bare)
        self.sharded = any(is_sharded(module) for module in self.bare.modules())
        self.instance = optimizer if isinstance(optimizer, Optimizer) else None
        if self.instance is not None:
            refuse_optimizer(self.instance, self.bare)
            self.factory = None
        else:
            self.factory = factory_of(optimizer)
        if self.sharded and isinstance(optimizer, OptimizerWrapper):
            raise BadInput(
                f"a {type(optimizer).__name__} of a model in shards (FSDP2) cannot be copied. Give a function of the "
                "model that makes it."
            )
        self.group = _processes(model, self.sharded)

    @contextmanager
    def open(self) -> Iterator[tuple[nn.Module, Optimizer]]:
        """A model at its start in training mode, as it is called in training, and its optimizer without any state."""
        with self._in_place() if self.sharded else self._copy() as (model, optimizer):
            if not self.model.training:  # as from_pretrained leaves a model
                model.train()
            refuse_optimizer(optimizer, unwrap(model))
            optimizer.zero_grad(set_to_none=True)
            yield model, optimizer

    @contextmanager
    def _copy(self) -> Iterator[tuple[nn.Module, Optimizer]]:
        memo = _tensors_of_graphs(self.bare)
        bare = copy.deepcopy(self.bare, memo)
        for parameter in bare.parameters():
            parameter.grad = None
        model = _wrapped_again(self.model, bare)
        yield model, self._optimizer(model, memo)

    @contextmanager
    def _in_place(self) -> Iterator[tuple[nn.Module, Optimizer]]:
        gathered: list[Any] = [module for module in self.bare.modules() if is_sharded(module)]
        for module in (
            gathered
        ):  # after a pass without a backward one, whole weights stand in the place of their shards
            module.reshard()
        parameters = list(self.bare.parameters())
        snapshot = [_local(p).detach().clone() for p in parameters]
        with preserved(self.bare):
            for parameter in parameters:
                parameter.grad = None
            try:
                yield self.model, self._optimizer(self.model, {id(p): p for p in parameters})
            finally:
                for module in gathered:
                    module.reshard()
                with torch.no_grad():
                    for parameter, value in zip(parameters, snapshot, strict=True):
                        _local(parameter).copy_(value)

    def _optimizer(self, model: nn.Module, memo: dict[int, Any]) -> Optimizer:
        """The user's own settings for the parameters that `memo` names, or a new one from the function."""
        if self.instance is not None:
            return copied(self.instance, memo)
        assert self.factory is not None
        return self.factory(model)


def _local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.data


def _tensors_of_graphs(model: nn.Module) -> dict[int, Any]:
    """Tensors kept as attributes may have a graph, which torch does not copy: the copy finds their values instead."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        values = [v for v in vars(module).values() if isinstance(v, Tensor) and not v.is_leaf]
        memo |= {id(value): value.detach().clone() for value in values}
    return memo


def _wrapped_again(model: nn.Module, bare: nn.Module) -> nn.Module:
    """The copy inside what the model is inside: torch.compile with its settings, DistributedDataParallel."""
    if "_orig_mod" in model._modules:
        from torch._dynamo.eval_frame import OptimizedModule

        inner = _wrapped_again(model.get_submodule("_orig_mod"), bare)
        return OptimizedModule(inner, model.dynamo_ctx)  # type: ignore[arg-type]
    if "module" in model._modules and unwrap(model) is not model:
        inner = _wrapped_again(model.get_submodule("module"), bare)
        if type(model).__name__ != "DistributedDataParallel":
            raise BadInput(
                f"a model inside {type(model).__name__} is not rehearsed: use DistributedDataParallel or fully_shard "
                "(FSDP2), or give the model itself."
            )
        settings = {name: getattr(model, name) for name in DDP_SETTINGS if hasattr(model, name)}
        return nn.parallel.DistributedDataParallel(inner, process_group=model.process_group, **settings)
    return bare


def _processes(model: nn.Module, sharded: bool) -> Any:
    """The processes that train this model together; None where it is trained alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    layer: nn.Module | None = model
    while layer is not None:
        if type(layer).__name__ == "DistributedDataParallel":
            return layer.process_group
        layer = layer._modules.get("_orig_mod") or layer._modules.get("module")
    return dist.group.WORLD if sharded else None
