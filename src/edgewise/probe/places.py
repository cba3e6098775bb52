"""Which tensors of a forward pass are the sites of the theory, and the hooks that catch them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Operation
from edgewise.models.names.record import BlockSite, ModelSites
from edgewise.probe.block_call import BlockCall, stream_of


@dataclass(frozen=True)
class Place:
    """A site, and where the stream is there: the input or output of a module, or the result of an operation."""

    site: str
    module: str = ""
    end: str = ""  # "input" or "output" of the module
    block: int | None = None
    operation: Operation | None = None


def attends(site: str) -> bool:
    """Whether the branch before a site is, or has in it, attention; of a block read at its end only it is."""
    return bool({"attention", "output"} & set(site.split(".")[-1].split("+")))


def places(sites: ModelSites) -> tuple[Place, ...]:
    """`embed`, then for each block of the primary stack the stream between its branches and at its end.

    A block whose middle cannot be read (not parallel, and no module there) is read at its end only, as `.output`.
    """
    stack = sites.stacks[0]
    listed = [Place("embed", stack.blocks[0].name, "input")]
    for block in stack.blocks:
        listed += _of_block(block, stack.parallel)
    return tuple(listed)


def _of_block(block: BlockSite, parallel: bool) -> list[Place]:
    i = block.index
    if block.middle is None:
        name = "attention+mlp" if parallel else "output"
        return [Place(f"block.{i}.{name}", block.name, "output", i)]
    return [
        Place(f"block.{i}.attention", block.middle, "input", i),
        Place(f"block.{i}.mlp", block.name, "output", i),
    ]


@dataclass
class Catch:
    """The tensors of one forward pass by site, each (sequences, tokens, width), and their versions when caught."""

    listed: Sequence[Place]
    sequence_first: bool = True
    streams: dict[int, Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    on_first: Callable[[Tensor], None] | None = None  # given the first stream (sequences, tokens, width)

    def attach(self, model: nn.Module, stack: ExitStack, replace_first: Tensor | None = None) -> None:
        """Hooks that read; with `replace_first` the first one feeds that tensor to the first block instead."""
        for index, place in enumerate(self.listed):
            module = model.get_submodule(place.module)
            if place.end == "output":
                handle = module.register_forward_hook(self._output(index))
            else:
                swap = replace_first if index == 0 else None
                handle = module.register_forward_pre_hook(self._input(index, swap), with_kwargs=True)
            stack.callback(handle.remove)

    def _output(self, index: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
            self._store(index, stream_of(output))

        return hook

    def _input(self, index: int, swap: Tensor | None) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:  # noqa: ARG001
            block_call = BlockCall(self.listed[index].module, inputs, named)
            stream = block_call.stream
            if swap is None and (stream.requires_grad or index or not torch.is_grad_enabled()):
                return self._store(index, stream)
            # A model without an embedding takes its first stream as data: the same numbers, with a gradient.
            other = block_call.on(stream.detach().requires_grad_() if swap is None else swap)
            self._store(index, other.stream)
            return other.inputs, other.named

        return hook

    def _store(self, index: int, stream: Tensor) -> None:
        if index in self.streams:
            raise BadInput(
                f"{self.listed[index].module} ran twice in one forward pass, expected once. The layers of a shared "
                "block cannot be told apart: measure a model whose layers have modules of their own."
            )
        self.streams[index], self.versions[index] = stream, stream._version
        if index == 0 and self.on_first is not None:
            self.on_first(self.shaped(stream))

    def finished(self) -> list[Tensor]:
        """All streams in order; refused by name where one is missing or was overwritten in place."""
        missing = [place.site for i, place in enumerate(self.listed) if i not in self.streams]
        if missing:
            raise BadInput(
                f"the forward pass did not reach {', '.join(missing[:4])}: every site must be read."
            )
        changed = [p.site for i, p in enumerate(self.listed) if self.streams[i]._version != self.versions[i]]
        if changed:
            raise BadInput(
                f"the model overwrites its stream in place at {', '.join(changed[:4])}; it cannot be read."
            )
        return [self.streams[i] for i in range(len(self.listed))]

    def shaped(self, stream: Tensor) -> Tensor:
        """(sequences, tokens, width), whichever order the model uses; OPT flattens its middle to (tokens, width)."""
        first = self.streams.get(0, stream)
        if stream.ndim == 2 and first.ndim == 3:
            return self.shaped(stream.reshape(*first.shape[:2], -1))
        if stream.ndim == 2:
            return stream[None]
        if stream.ndim != 3:
            raise BadInput(f"a stream has shape {tuple(stream.shape)}; expected (sequences, tokens, width).")
        return stream if self.sequence_first else stream.transpose(0, 1)
