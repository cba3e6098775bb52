"""The input of a reading: one entry of a batch, cut to a few tokens, in as many copies as a pass asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.inputs import TOKENS, Call, as_call, change, is_ids, tensors


@dataclass(frozen=True)
class Feed:
    """Arguments of the model's forward pass, and which of their tensors have a batch axis."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    repeated: frozenset[int]  # places of the tensors that are copied for every entry
    axis: int = 0
    text: str = ""
    end_to_end: bool = (
        False  # entries follow each other along the axis of tokens, and attention may run for each
    )

    def entries(self, number: int) -> Call:
        """The arguments with every batched tensor repeated so many times, copy after copy."""

        def repeat(place: int, value: Tensor) -> Tensor:
            return torch.cat([value] * number, dim=self.axis) if place in self.repeated else value

        return change(self.args, self.kwargs, repeat)

    def tensors(self, number: int) -> list[Tensor]:
        return list(tensors(self.entries(number)))

    @property
    def tokens(self) -> int | None:
        """The number of token ids, if the input has ids."""
        ids = [value for value in tensors((self.args, self.kwargs)) if is_ids(value, self.axis)]
        return ids[0].shape[1 - self.axis] if ids else None

    def shorter(self, tokens: int) -> Feed:
        """The same cut to so many tokens."""
        args, kwargs = _cut(self.args, self.kwargs, tokens)
        return replace(self, args=args, kwargs=kwargs, text=_text((args, kwargs)))

    def equal_tokens(self) -> Feed:
        """The same with one token in the second half of the ids; images and streams are equal everywhere."""

        def same(_: int, value: Tensor) -> Tensor:
            if is_ids(value, self.axis) and int(value.max()) > 1:
                axis = 1 - self.axis
                steps, after = value.diff(dim=axis), value.narrow(axis, 1, value.shape[axis] - 1)
                if value.dtype != torch.bool and bool(((steps == 1) | (after == 0)).all()):
                    return value  # the positions of the tokens, of each document from zero
                half = value.shape[axis] // 2
                first, rest = value.split((half, value.shape[axis] - half), axis)
                return torch.cat([first, rest.narrow(axis, 0, 1).expand_as(rest)], axis)
            if value.is_floating_point() and value.dim() >= 2:
                return torch.ones_like(value)
            return value

        args, kwargs = change(self.args, self.kwargs, same)
        return replace(self, args=args, kwargs=kwargs)

    def most_ids(self) -> int:
        """The length of the longest input of ids; 0 without one."""
        lengths = [0]

        def look(_: int, value: Tensor) -> Tensor:
            if is_ids(value, self.axis) and int(value.max()) > 1:
                lengths.append(value.shape[1 - self.axis])
            return value

        change(self.args, self.kwargs, look)
        return max(lengths)


def without_padding_mask(model: nn.Module, batch: Any) -> Any:
    """The batch with torch's padding masks (True is padding) left at None: what a model is does not depend on them.

    They are not masks of ones, by which an entry without padding is chosen, and their first axis is always the batch.
    """
    forward = inspect.signature(model.forward)
    args, kwargs = as_call(batch, model)
    names = [
        name
        for name, p in forward.parameters.items()
        if name.endswith("key_padding_mask") and p.default is None
    ]
    places = [place for place, name in enumerate(forward.parameters) if name in names and place < len(args)]
    if args and places:
        return tuple(None if place in places else value for place, value in enumerate(args))
    given = {name: None for name in names if name in kwargs}
    return kwargs | given if given else batch


def feeds(batch: Any, *, cut: bool = True, model: nn.Module | None = None) -> Iterator[Feed]:
    """Ways to make one small entry of a batch, smallest first; the model decides which of them it takes."""
    args, kwargs = as_call(batch, model)
    values = list(tensors((args, kwargs)))
    if not values:
        raise BadInput("the batch holds no tensor: expected the arguments of the model's forward pass.")
    if all(value.numel() == 0 for value in values) or any(value.is_meta for value in values):
        what = "is on the meta device" if values[0].numel() else "is empty"
        raise BadInput(f"the batch {what} ({_text((args, kwargs))}): expected numbers in it.")
    if (sizes := images_end_to_end(values)) is not None:
        call = change(args, kwargs, lambda _, v: v[: sizes[0]] if v.shape[:1] == (sum(sizes),) else v[:1])
        yield Feed(*call, frozenset(range(len(values))), text=_text(call), end_to_end=True)
    size = next(
        (value.shape[0] for value in values if value.dim() >= 2), values[0].shape[0] if values[0].dim() else 1
    )
    batched = frozenset(i for i, v in enumerate(values) if v.dim() and v.shape[0] == size)
    entry = _one_entry(args, kwargs, batched, values)
    if cut:
        yield Feed(*_cut(*entry), batched, text=_text(entry))
    yield Feed(*entry, batched, text=_text(entry))
    yield Feed(
        args, kwargs, frozenset(i for i, v in enumerate(values) if v.dim()), text=_text((args, kwargs))
    )


def images_end_to_end(values: Sequence[Tensor]) -> list[int] | None:
    """Patches of each image where images are laid end to end, beside a table (images, 3) of their grids; else None."""
    grids = [
        v for v in values if v.dim() == 2 and v.shape[1] == 3 and v.numel() and not v.is_floating_point()
    ]
    sizes = grids[0].prod(1).tolist() if grids else []
    if not sizes or min(sizes) < 2:  # ids and masks of three tokens have that shape, too
        return None
    others = {v.shape[0] for v in values if v.dim() and v is not grids[0]}
    return sizes if sum(sizes) in others and others <= {sum(sizes), len(sizes)} else None


def sequence_first(batch: Any, model: nn.Module | None = None) -> Feed | None:
    """One entry of a batch whose second axis is the batch: ids (tokens, batch), a stream (tokens, batch, features)."""
    args, kwargs = as_call(batch, model)
    values = list(tensors((args, kwargs)))
    main = [v for v in values if is_ids(v, 1) or (v.dim() == 3 and v.is_floating_point())]
    if not main:
        return None
    length, size = main[0].shape[:2]
    batched = frozenset(i for i, v in enumerate(values) if v.dim() >= 2 and v.shape[1] == size)

    def one(place: int, value: Tensor) -> Tensor:
        if place not in batched:
            return value
        cut = value[:TOKENS] if value.shape[0] == length else value
        return cut[:, :1].contiguous()

    call = change(args, kwargs, one)
    return Feed(*call, batched, axis=1, text=_text(call))


def _one_entry(args: Any, kwargs: Any, batched: frozenset[int], values: list[Tensor]) -> Call:
    """The entry with the most tokens that are not padding."""
    masks = [
        v
        for i, v in enumerate(values)
        if i in batched and is_ids(v) and int(v.max()) <= 1 and int(v.min()) == 0
    ]
    best = int(masks[0].sum(1).argmax()) if masks else 0
    call = change(args, kwargs, lambda i, v: v[best : best + 1] if i in batched else v)
    if not masks:
        return call
    tokens = masks[0][best].nonzero().flatten()
    shape = masks[0].shape
    return change(*call, lambda i, v: v[:, tokens] if i in batched and values[i].shape[:2] == shape else v)


def _cut(args: Any, kwargs: Any, limit: int = TOKENS) -> Call:
    """Lengths of token ids, and whatever else has that length, cut to so many tokens."""
    lengths = {
        v.shape[1] for v in tensors((args, kwargs)) if is_ids(v) or (v.dim() == 3 and v.is_floating_point())
    }

    def shorten(_: int, value: Tensor) -> Tensor:
        for axis in range(1, value.dim()):
            last = axis == value.dim() - 1 and value.is_floating_point() and value.dim() == 3
            if value.shape[axis] in lengths and value.shape[axis] > limit and not last:
                value = value.narrow(axis, 0, limit)
        return value.contiguous()

    return change(args, kwargs, shorten)


def _text(call: Call) -> str:
    args, kwargs = call
    named = [(f"argument {i}", v) for i, v in enumerate(args)] + list(kwargs.items())
    shapes = [f"{name} {tuple(v.shape)}" for name, v in named if isinstance(v, Tensor)]
    return ", ".join(shapes) or "nested arguments"
