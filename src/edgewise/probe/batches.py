"""Which tokens of an input count.

Padding does not count: what the model computes there is read by nothing, and a padding row of zeros has no direction.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.models.behavior.batch import images_end_to_end
from edgewise.models.inputs import as_call, is_ids, tensors


@dataclass(frozen=True, eq=False)
class Counted:
    """Which tokens (sequences, tokens) are measured; `mask` is None when all are, `left_out` says why some are not."""

    mask: Tensor | None = None
    left_out: str = ""

    def tokens(self, length: int) -> int:
        """Per sequence, on average."""
        return length if self.mask is None else round(float(in_double(self.mask.sum(-1)).mean()))


def counted(model: nn.Module, batch: object, first: Tensor, stack: str = "") -> Counted:
    """All tokens but padding and those whose stream (sequences, tokens, width) is exactly zero where it starts.

    stack: the name of the stack that `first` is of. Zeros count where all streams are zero, and where tokens are not
    places of the input: a class token may start at zero, and is read.
    """
    shape = (first.shape[0], first.shape[1])
    given = token_mask(model, batch, shape, stack)
    real = (
        torch.ones(shape, dtype=torch.bool, device=first.device) if given is None else given.to(first.device)
    )
    zero = real & (first.detach() == 0).all(-1)
    if bool((zero == real).all()) or not any(
        tuple(v.shape[:2]) in (shape, shape[::-1]) for v in tensors(batch)
    ):
        zero = torch.zeros_like(zero)
    mask = real & ~zero
    if bool(mask.all()):
        return Counted()
    padding, zeros, total = int((~real).sum()), int(zero.sum()), mask.numel()
    reasons = [f"{padding} padding", f"{zeros} with a stream of zeros at the start"]
    listed = [reason for reason, number in zip(reasons, (padding, zeros), strict=True) if number]
    why = ", ".join(listed) if len(listed) > 1 else listed[0].partition(" ")[2]
    sentence = f"{padding + zeros} of {total} tokens left out: {why}"
    fewest = int(mask.sum(-1).min())
    if fewest < 2:
        raise BadInput(
            f"{sentence}; a sequence has {fewest} left, and an overlap needs two. Give sequences of at least two "
            "tokens that are not padding."
        )
    return Counted(mask, sentence)


MASKS = (
    "attention_mask",
    "src_key_padding_mask",
    "key_padding_mask",
    "padding_mask",
)  # of the only stack, an encoder
TARGET_MASKS = ("decoder_attention_mask", "tgt_key_padding_mask")  # of a decoder beside an encoder
NOT_IDS = ("labels", "position_ids", "token_type_ids")


def token_mask(model: nn.Module, batch: object, shape: tuple[int, int], stack: str = "") -> Tensor | None:
    """(sequences, tokens), True where a token is not padding by the masks and ids of a batch; None when none is."""
    named = arguments(model, batch)
    config = getattr(model, "config", None)
    both = bool(getattr(config, "is_encoder_decoder", False)) or "tgt" in named
    target = both and ("decoder" in stack or ("tgt" in named and "src" not in named))
    real = [~hidden for hidden in _hidden(model, named, target) if tuple(hidden.shape) == shape]
    if not real:
        return None
    mask = torch.stack(real).all(0)
    return None if bool(mask.all()) else mask


def _hidden(model: nn.Module, named: Mapping[str, object], target: bool) -> Iterator[Tensor]:
    """Every mask that the batch has of these tokens, True if one is padding."""
    for name in TARGET_MASKS if target else MASKS:
        value = named.get(name)
        if isinstance(value, Tensor):
            if value.is_floating_point() and bool((value < 0).any()):  # added to the scores
                yield value <= torch.finfo(value.dtype).min / 2
            else:
                yield (value == 0) if name.endswith("attention_mask") else (value != 0)
    padding = _padding_id(model)
    ids = named.get("decoder_input_ids" if target else "input_ids")
    if ids is None and not target:
        others = {*MASKS, *TARGET_MASKS, *NOT_IDS}
        whole = (v for k, v in named.items() if k not in others and isinstance(v, Tensor) and is_ids(v))
        ids = next((v for v in whole if v.dtype != torch.bool), None)
    if padding is not None and isinstance(ids, Tensor):
        hidden = ids == padding
        if target and getattr(getattr(model, "config", None), "decoder_start_token_id", None) == padding:
            hidden[:, :1] = False  # the sequence begins with it
        yield hidden


def arguments(model: nn.Module, batch: object) -> dict[str, object]:
    """The batch by the names of the model's arguments; what has none is numbered."""
    args, kwargs = as_call(batch, model)
    names = [
        p.name
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names += [str(place) for place in range(len(names), len(args))]
    return dict(zip(names, args, strict=False)) | kwargs


def _padding_id(model: nn.Module) -> int | None:
    """By the config, else by the embeddings if they agree."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    padding = getattr(text, "pad_token_id", None)
    if padding is None:
        found = {
            m.padding_idx
            for m in model.modules()
            if isinstance(m, nn.Embedding) and m.padding_idx is not None
        }
        padding = found.pop() if len(found) == 1 else None
    return padding if isinstance(padding, int) and padding >= 0 else None


def sequences_of(batch: object) -> int:
    """Count the sequences of a batch: the length of the first axis of its first tensor with more than one.

    Images that are laid end to end are as many as the table of their grids has rows.
    """
    values = list(tensors(batch))
    sizes = images_end_to_end(values)
    if sizes is None:
        return next((t.shape[0] for t in values if t.ndim > 1), 1)
    if len(set(sizes)) > 1:
        listed = ", ".join(map(str, sizes[:4]))
        raise BadInput(
            f"images of {listed} patches are laid end to end: expected as many in each. Give one image."
        )
    return len(sizes)
