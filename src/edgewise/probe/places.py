"""Which tensors of a forward pass are the sites of the theory, and the hooks that catch them.

Geometry of a stream x of shape (sequences, tokens, width): its mean square and how far apart its tokens are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.adapters.roles.record import BlockSite, ModelSites
from edgewise.errors import BadInput
from edgewise.probe.block_call import BlockCall, stream_of


def mean_square(x: Tensor, kept: Tensor | None = None) -> float:
    """q: the mean of x^2 over coordinates and tokens; kept (sequences, tokens) leaves padding out."""
    square = x.detach().double().square().mean(-1)
    return float(square.mean() if kept is None else square[kept].mean())


def separation(x: Tensor, kept: Tensor | None = None) -> float:
    """Mean of 1 - cosine over pairs of different tokens, mean over sequences, in O(n d).

    With unit vectors u and their mean m, the mean over pairs is sum_a |u_a - m|^2 / (n - 1): a sum of squares,
    so that nearly identical tokens lose no digits (1 - cosine itself would), and the n x n matrix is never made.
    A token that is zero (DeiT's class token) has no direction: its cosine with every other counts as zero.
    """
    wide = x.detach().double()
    length = torch.linalg.vector_norm(wide, dim=-1)  # (sequences, tokens)
    weight = torch.ones_like(length) if kept is None else kept.to(length.dtype)
    count = weight.sum(-1)
    if bool((count < 2).any()):
        raise BadInput("a sequence has fewer than two tokens: an overlap needs two. Give longer sequences.")
    unit = wide / length.clamp_min(1e-300)[..., None]
    mean = (weight[:, None] @ unit) / count[:, None, None]
    apart = torch.linalg.vector_norm(unit - mean, dim=-1).square() * weight
    zero = ((length == 0) * weight).sum(-1) / count  # the sum of squares gives such a pair a half, not one
    return float((apart.sum(-1) / (count - 1) + zero).mean())


def pair_separation(x: Tensor, y: Tensor, kept: Tensor | None = None) -> float:
    """Mean over tokens of 1 - cos(x_a, y_a) = |u_a - w_a|^2 / 2 for the same token in two nearby runs."""
    first, second = (torch.nn.functional.normalize(t.detach().double(), dim=-1, eps=1e-300) for t in (x, y))
    half = 0.5 * (first - second).square().sum(-1)
    return float(half.mean() if kept is None else half[kept].mean())


@dataclass(frozen=True)
class Place:
    """A site, and the module whose input or output is the stream there."""

    site: str
    module: str
    end: str  # "input" or "output"
    block: int | None = None


def places(found: ModelSites) -> tuple[Place, ...]:
    """`embed`, then for each block of the primary stack the stream between its branches and at its end.

    A block whose middle cannot be read (not parallel, and no module there) is read at its end only, as `.output`.
    """
    stack = found.stacks[0]
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


def unread(listed: Sequence[Place]) -> list[int]:
    """Blocks whose middle was not readable."""
    return [place.block for place in listed if place.site.endswith(".output") and place.block is not None]


@dataclass
class Catch:
    """The tensors of one forward pass by site, each (sequences, tokens, width), and their versions when caught."""

    listed: Sequence[Place]
    sequence_first: bool = True
    streams: dict[int, Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    counted: Callable[[int, int], None] | None = None  # told (sequences, tokens) when the first stream arrives

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
            self._keep(index, stream_of(output))

        return hook

    def _input(self, index: int, swap: Tensor | None) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:  # noqa: ARG001
            given = BlockCall(self.listed[index].module, inputs, named)
            stream = given.stream
            if swap is None and (stream.requires_grad or index or not torch.is_grad_enabled()):
                return self._keep(index, stream)
            # A model without an embedding is given its first stream as data: the same numbers, with a gradient.
            other = given.on(stream.detach().requires_grad_() if swap is None else swap)
            self._keep(index, other.stream)
            return other.inputs, other.named

        return hook

    def _keep(self, index: int, stream: Tensor) -> None:
        if index in self.streams:
            raise BadInput(
                f"{self.listed[index].module} ran twice in one forward pass; expected once. A block shared between "
                "layers cannot be told apart: measure a model whose layers have their own modules."
            )
        self.streams[index], self.versions[index] = stream, stream._version
        if index == 0 and self.counted is not None:
            B, n, _ = self.shaped(stream).shape
            self.counted(B, n)

    def finished(self) -> list[Tensor]:
        """All streams in order; refused by name where one was not seen or was overwritten in place."""
        missing = [place.site for i, place in enumerate(self.listed) if i not in self.streams]
        if missing:
            raise BadInput(f"the forward pass did not come through {', '.join(missing[:4])}; every site must be read.")
        changed = [p.site for i, p in enumerate(self.listed) if self.streams[i]._version != self.versions[i]]
        if changed:
            raise BadInput(f"the model overwrites its stream in place at {', '.join(changed[:4])}; it cannot be read.")
        return [self.streams[i] for i in range(len(self.listed))]

    def shaped(self, stream: Tensor) -> Tensor:
        """(sequences, tokens, width), whichever way the model keeps it; OPT flattens its middle to (tokens, width)."""
        first = self.streams.get(0, stream)
        if stream.ndim == 2 and first.ndim == 3:
            return self.shaped(stream.reshape(*first.shape[:2], -1))
        if stream.ndim == 2:
            return stream[None]
        if stream.ndim != 3:
            raise BadInput(f"a stream has shape {tuple(stream.shape)}; expected (sequences, tokens, width).")
        return stream if self.sequence_first else stream.transpose(0, 1)


def sequence_first(model: nn.Module) -> bool:
    """False for torch's own encoder and decoder layers built with batch_first=False: (tokens, sequences, width)."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            return bool(module.batch_first)
    return True
