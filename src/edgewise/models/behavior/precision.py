"""Half precision read in single precision: calls are widened as they pass, the model keeps its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

LOW = (torch.float16, torch.bfloat16)
CASTS = {"half": "float", "bfloat16": "float"}


class Precision:
    """How the calls of a pass are run: as they are, or with half-precision numbers widened to single precision."""

    def __init__(self, wide: bool, devices: frozenset[str]) -> None:
        self.wide, self._devices = wide, devices

    @classmethod
    def of(cls, model: nn.Module) -> Precision:
        everything = [*model.parameters(), *model.buffers()]
        low = any(tensor.dtype in LOW for tensor in everything)
        return cls(low, frozenset(tensor.device.type for tensor in everything) | {"cpu"})

    def run(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        cast = [kind for kind in self._devices if torch.is_autocast_enabled(kind)]
        if not cast and not self.wide:
            return func(*args, **kwargs)
        if cast:  # the model's own autocast would round; its structure is the same without
            with torch.autocast(cast[0], enabled=False):
                return func(*self._widened(args), **self._widened(kwargs))
        if name in CASTS and args[0].dtype in (*LOW, torch.float32):
            return args[0].float()
        if name.endswith("_") and (
            not name.startswith("__") or name == "__setitem__" or name.startswith("__i")
        ):
            return self._in_place(func, args, kwargs)
        return func(*self._widened(args), **self._widened(kwargs))

    def _in_place(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if args and isinstance(args[0], Tensor) and args[0].dtype in LOW:
            return func(*args, **kwargs)
        return func(*self._widened(args), **self._widened(kwargs))

    def _widened(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.float() if value.dtype in LOW else value
        if isinstance(value, torch.dtype):
            return torch.float32 if value in LOW else value
        if type(value) in (list, tuple):
            return type(value)(self._widened(item) for item in value)
        return {key: self._widened(item) for key, item in value.items()} if type(value) is dict else value
