"""A private copy of a model: it shares the parameters, never writes them, and owns everything else.

What is tried on a model (other weights, a pass in which a batch norm counts) is tried on its twin. Modules that are
registered twice and parameters that are tied stay so, which torch.func.functional_call does not undo.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn

CONTAINERS = (list, tuple, set, dict)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
COMPILED = "_compiled_call_impl"  # of module.compile(): it calls the module that was compiled, not the copy
COPIED_BY_TORCH = ("torch.nn.utils.parametrize", "torch.distributed")  # whose __deepcopy__ is not needed here


def twin(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode with the model's own parameters, and with buffers and attributes of its own.

    An attribute that cannot be copied (a lock, a process group) is shared. Shards (FSDP2) stay shards, without the
    hooks that gather them.
    """
    other, _ = _copy(model, {id(parameter): parameter for parameter in model.parameters()})
    for module in other.modules():
        module.training = False
    return other


def independent_copy(model: nn.Module) -> tuple[nn.Module, dict[int, Any]]:
    """Return a copy to train, with its own parameters and in the modes of the model, and the memo of the copying.

    `copy.deepcopy(optimizer, memo)` then copies an optimizer of the model to one of the copy.
    """
    import torch

    return _copy(
        model,
        {id(p): torch.nn.Parameter(p.detach().clone(), p.requires_grad) for p in model.parameters()},
    )


def _copy(model: nn.Module, memo: dict[int, Any]) -> tuple[nn.Module, dict[int, Any]]:
    """The copy with the parameters that `memo` names, and the memo with everything that was copied."""
    memo |= {id(buffer): buffer.detach().clone() for buffer in model.buffers()}
    for module in model.modules():
        hooks = [hook for name in HOOKS for hook in getattr(module, name).values()]
        memo |= {id(hook): _nothing for hook in hooks if _gathers(hook)}
    return _own(model, memo), memo


@contextmanager
def holding(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """A twin with these parameters and buffers, by name, in place of its own, under all of their names."""
    named = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    exchanged = {id(named[name]): value for name, value in values.items()}
    places: list[tuple[dict[str, Any], str, Tensor]] = [
        (tensors, key, tensor)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for key, tensor in tensors.items()
        if tensor is not None and id(tensor) in exchanged
    ]
    try:
        for tensors, key, tensor in places:
            tensors[key] = exchanged[id(tensor)]
        yield
    finally:
        for tensors, key, tensor in places:
            tensors[key] = tensor


def _own(value: Any, memo: dict[int, Any]) -> Any:
    """A copy that shares what cannot be copied; tensors lose their graph, which torch does not copy."""
    import torch

    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, torch.nn.Module):
        return _module(value, memo)
    if isinstance(value, torch.Tensor):
        memo[id(value)] = value.detach().clone()
    elif isinstance(value, CONTAINERS) and type(value).__module__ in ("builtins", "collections"):
        return _container(value, memo)
    else:
        try:
            memo[id(value)] = copy.deepcopy(value, memo)
        except Exception:  # noqa: BLE001  a stranger's object: whatever its copying raises, it is shared
            memo[id(value)] = value
    return memo[id(value)]


def _module(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    if not _by_attributes(module):
        for child in module.children():
            _own(child, memo)
        try:
            memo[id(module)] = copy.deepcopy(module, memo)
        except Exception as error:
            raise BadInput(
                f"a module of the model cannot be copied, and nothing is tried on the model itself: "
                f"{type(module).__name__} raised {type(error).__name__}: {error}. Give its class a __deepcopy__."
            ) from error
        return memo[id(module)]
    other: nn.Module = object.__new__(_class(module))
    memo[id(module)] = other
    for name, value in vars(module).items():
        if name != COMPILED:
            other.__dict__[name] = _own(value, memo)
    return other


def _by_attributes(module: nn.Module) -> bool:
    """Whether its attributes are all there is to it; what is compiled, traced or scripted knows how it is copied."""
    own: Callable[..., Any] | None = getattr(type(module), "__deepcopy__", None)
    return "_orig_mod" not in module._modules and (own is None or own.__module__.startswith(COPIED_BY_TORCH))


def _class(module: nn.Module) -> type[nn.Module]:
    """Of a module in shards (FSDP2): the class it had before."""
    sharding = sys.modules.get("torch.distributed.fsdp")
    kinds = [k for k in type(module).__mro__ if sharding is None or not issubclass(k, sharding.FSDPModule)]
    return kinds[0]


def _container(value: Any, memo: dict[int, Any]) -> Any:
    other: Any
    if isinstance(value, dict):
        other = memo[id(value)] = copy.copy(value)  # keeps the default of a defaultdict
        for key, item in value.items():
            other[key] = _own(item, memo)
    elif isinstance(value, list):
        other = memo[id(value)] = []
        other += [_own(item, memo) for item in value]
    else:
        other = memo[id(value)] = type(value)(_own(item, memo) for item in value)
    return other


def _gathers(hook: Any) -> bool:
    """Return whether it is a hook of FSDP2, which gathers the parameters of the module it was made for."""
    return type(getattr(hook, "__self__", None)).__module__.startswith("torch.distributed.")


def _nothing(*_: Any, **__: Any) -> None: ...
