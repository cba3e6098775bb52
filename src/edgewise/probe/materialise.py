"""A model on the meta device whose parts come to life one at a time, each with the initialization of its own class."""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.models.model_map import sites
from edgewise.models.names.record import ModelSites
from edgewise.probe.subjects import model_class


class Phantom:
    """The model of a config without its weights; `wake` draws a part's weights from (seed, name), `sleep` drops them.

    The same seed and name give the same weights, so that a block may be dropped and drawn again for the backward pass.
    """

    def __init__(self, config: Any, seed: int) -> None:
        self.seed = seed
        config.use_cache = False  # a block that runs again must not find its own keys in a cache
        with torch.device("meta"):
            self.model: nn.Module = model_class(config)(config).eval()
        self.owners = self._shared()

    def _shared(self) -> dict[int, list[tuple[str, str]]]:
        """Parameters that several modules hold (tied embeddings), as (module, attribute), the first one owns it."""
        held: dict[int, list[tuple[str, str]]] = {}
        for name, module in self.model.named_modules():
            for attribute, parameter in module._parameters.items():
                if parameter is not None:
                    held.setdefault(id(parameter), []).append((name, attribute))
        self._alive = list(self.model.parameters())  # ids stay unique while these live
        return {key: places for key, places in held.items() if len(places) > 1}

    def tied(self, name: str) -> bool:
        """True when this part shares a matrix with another: it must stay awake."""
        return any(name == module for places in self.owners.values() for module, _ in places)

    def outside(self, blocks: set[str]) -> list[str]:
        """Modules outside the blocks that hold parameters or buffers themselves."""
        inside = tuple(f"{block}." for block in blocks)
        return [
            name
            for name, module in self.model.named_modules()
            if name
            and name not in blocks
            and not name.startswith(inside)
            and (any(p is not None for p in module._parameters.values()) or module._buffers)
        ]

    def sites(self) -> ModelSites:
        """The places of the model; norms wake for it, because their kind is told by running them."""
        small = [
            name
            for name, module in self.model.named_modules()
            if module._parameters and all(p is None or p.ndim == 1 for p in module._parameters.values())
        ]
        for name in small:
            self.wake(name, recurse=False)
        result = sites(self.model)
        for name in small:
            self.sleep(name, recurse=False)
        return result

    def wake(self, name: str, recurse: bool) -> None:
        """Draw the part's weights; what its class leaves unset is refused by name."""
        part = self.model.get_submodule(name)
        if all(not tensor.is_meta for _, tensor in _tensors(part, recurse)):
            return
        torch.manual_seed(zlib.crc32(f"{self.seed}/{name}".encode()))
        part.to_empty(device="cpu", recurse=recurse)
        for _, tensor in _tensors(part, recurse):
            tensor.data.fill_(torch.nan if tensor.is_floating_point() else -1)
        order = list(part.modules())[::-1] if recurse else [part]
        with torch.no_grad():
            for module in order:
                self.model._init_weights(module)  # type: ignore[operator]
        self._refuse_unset(name, part, recurse)
        self._tie(name, part)

    def _refuse_unset(self, name: str, part: nn.Module, recurse: bool) -> None:
        for key, tensor in _tensors(part, recurse):
            unset = torch.isnan(tensor.sum()) if tensor.is_floating_point() else (tensor == -1).all()
            if tensor.numel() and bool(unset):
                raise BadInput(
                    f"{type(self.model).__name__} does not initialise {name}.{key} itself, so it cannot be streamed. "
                    "Measure it whole (stream=False), or pass a factory."
                )

    def _tie(self, name: str, part: nn.Module) -> None:
        for places in self.owners.values():
            owner, attribute = places[0]
            for module, held in places[1:]:
                if module == name:
                    self.wake(owner, recurse=False)
                    part._parameters[held] = self.model.get_submodule(owner)._parameters[attribute]

    def sleep(self, name: str, recurse: bool) -> None:
        """Give the part's memory back."""
        self.model.get_submodule(name).to_empty(device="meta", recurse=recurse)
        if recurse:
            return_free_pages()


def return_free_pages() -> None:
    """Ask glibc to hand freed pages to the system: matrices of a few MB otherwise pile up in its heap."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


def _tensors(part: nn.Module, recurse: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield from part.named_parameters(recurse=recurse)
    yield from part.named_buffers(recurse=recurse)
