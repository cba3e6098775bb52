"""A second kind of device without hardware: tensors that claim to be on `fakegpu`, and count when the host waits.

Python's own PrivateUse1 backend of torch (2.13 has it). It renames a device for the whole process, so use it in one of
its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from edgewise.arrays import WITHOUT_DOUBLE

READS = ("_local_scalar_dense", "equal", "nonzero", "is_nonzero")  # whose result the host needs
SYNCS: list[str] = []  # every time that the host waited


class _Backend(_DummyBackendModule):  # type: ignore[misc]
    """One device, whose random stream stays where it is."""

    def get_rng_state(self, device: Any = None) -> Tensor:  # noqa: ARG002
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass


_setup_privateuseone_for_python_backend("fakegpu", _Backend())
WITHOUT: set[torch.dtype] = set()  # what the device cannot hold


def without_double() -> None:
    """From now on the device has no float64, as Apple's."""
    WITHOUT.add(torch.float64)
    WITHOUT_DOUBLE.add("fakegpu")


class Remote(Tensor):
    """A tensor on the device; its numbers are in `inner`."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: Any = "fakegpu:0") -> Remote:
        if inner.dtype in WITHOUT:
            raise TypeError(f"this device doesn't support {inner.dtype}")
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(device),
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Remote({self.inner})"

    def tolist(self) -> Any:
        SYNCS.append("tolist")
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        name = func.__name__.split(".")[0]
        if name in READS:
            SYNCS.append(name)
        goal = named.get("device")
        if goal is not None:
            named["device"] = torch.device("cpu")
        here = next(
            (x.device for x in torch.utils._pytree.tree_leaves((args, named)) if isinstance(x, Remote)), None
        )
        output = func(*tree_map(_inner, args), **tree_map(_inner, named))
        if goal is not None and torch.device(goal).type == "cpu":
            SYNCS.append(name)
            return output
        if name == "copy_" and not isinstance(args[0], Remote):
            waits = not (named.get("non_blocking") or (len(args) > 2 and args[2]))
            SYNCS.extend([name] * waits)
            return args[0]
        if name.endswith("_") and func._schema.is_mutable:
            return None if output is None else args[0]
        device = here if goal is None else torch.device(goal)
        return tree_map(lambda x: Remote(x, device) if type(x) is Tensor else x, output)


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Remote) else x


def _of_inner(name: str) -> None:
    original = getattr(Tensor, name)
    setattr(Tensor, name, lambda self: original(_inner(self)))


_of_inner("data_ptr")
_of_inner("untyped_storage")
_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl(
    "empty.memory_format",
    lambda size, *, dtype=None, device=None, **_: Remote(torch.empty(size, dtype=dtype), device),
    "PrivateUse1",
)
_LIBRARY.impl(
    "empty_strided",
    lambda size, stride, *, dtype=None, device=None, **_: Remote(
        torch.empty_strided(size, stride, dtype=dtype), device
    ),
    "PrivateUse1",
)


def _copy_from(source: Tensor, goal: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(goal, Remote) and not non_blocking:
        SYNCS.append("copy_")
    _inner(goal).copy_(_inner(source))
    return goal


_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")


def moved(model: nn.Module, device: str = "fakegpu:0") -> nn.Module:
    """Move a model to the device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(Remote(parameter.detach().clone(), device))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Remote(buffer, device)
    return model
