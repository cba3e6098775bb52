"""The default input, random token ids or pixels shaped by the config, and which tokens of an input count.

Padding does not count: what the model computes there is read by nothing, and a padding row of zeros has no direction.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.behavior.batch import as_call, images_end_to_end, is_ids
from edgewise.probe.isolation import tensors

TOKENS = 64
HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")


def default_batch(
    model: nn.Module,
    generator: torch.Generator,
    tokens: int | None = None,
    device: torch.device | None = None,
) -> Any:
    """One sequence of distinct random ids (with labels where the model has a head for them), or one random image."""
    config = getattr(model, "config", None)
    first = next(model.parameters(), None)
    if first is None:
        raise BadInput(
            f"{type(model).__name__} has no parameters, so it has no default input, and nothing to change."
        )
    device = first.device if device is None else device
    if config is not None and hasattr(config, "image_size") and _accepts(model, "pixel_values"):
        return _to(_pixels(model, config, generator), device)
    text = config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config
    if text is not None and getattr(text, "vocab_size", None):
        return _to(_ids(model, text, generator, tokens), device)
    return _without_config(model, generator, tokens, device)


def _ids(model: nn.Module, config: Any, generator: torch.Generator, tokens: int | None) -> dict[str, Tensor]:
    longest = getattr(config, "max_position_embeddings", None) or tokens or TOKENS
    ids = random_ids(config.vocab_size, _length(model, tokens, longest), generator, _special(config))
    batch = {"input_ids": ids}
    if _accepts(model, "labels") and any(head in type(model).__name__ for head in HEADS):
        batch["labels"] = ids.clone()
    elif getattr(model.config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = ids.clone()
    return batch


def _length(model: nn.Module, tokens: int | None, longest: int) -> int:
    """The requested length, refused where the model has no positions for it; else the default, cut to them."""
    if tokens is not None and tokens > longest:
        raise BadInput(
            f"tokens must be at most {longest}, the positions of this {type(model).__name__}, got {tokens}."
        )
    return min(tokens or TOKENS, longest)


def random_ids(vocabulary: int, tokens: int, generator: torch.Generator, special: set[int]) -> Tensor:
    """(1, tokens) ids, distinct while the vocabulary lasts: a repeated token would be a pair of overlap one."""
    allowed = torch.tensor([i for i in range(vocabulary) if i not in special] or list(range(vocabulary)))
    order = torch.randperm(len(allowed), generator=generator)
    copies = -(-tokens // len(allowed))
    return allowed[order.repeat(copies)[:tokens]][None]


def _special(config: Any) -> set[int]:
    """Ids that mean something else than themselves: padding has a zero embedding, ends may be masked."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")
    values = [getattr(config, name, None) for name in names]
    flat = [i for value in values for i in (value if isinstance(value, (list, tuple)) else [value])]
    return {i for i in flat if isinstance(i, int) and i >= 0}


def _pixels(model: nn.Module, config: Any, generator: torch.Generator) -> dict[str, Tensor]:
    size = config.image_size if isinstance(config.image_size, (tuple, list)) else (config.image_size,) * 2
    pixels = torch.randn(1, getattr(config, "num_channels", 3), *size, generator=generator)
    dtype = next(p for p in model.parameters() if p.is_floating_point()).dtype
    batch = {"pixel_values": pixels.to(dtype)}
    if "Classification" in type(model).__name__ and _accepts(model, "labels"):
        batch["labels"] = torch.zeros(1, dtype=torch.long)
    return batch


def _without_config(
    model: nn.Module, generator: torch.Generator, tokens: int | None, device: torch.device
) -> Any:
    """A stream for torch's own encoder, ids for a module with an embedding; nothing else has a default."""
    if isinstance(model, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
        layer = next(m for m in model.modules() if isinstance(m, nn.MultiheadAttention))
        shape = (1, tokens or TOKENS) if layer.batch_first else (tokens or TOKENS, 1)
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        return torch.randn(*shape, layer.embed_dim, generator=generator).to(device, dtype)
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    if not tables:
        raise BadInput(
            f"{type(model).__name__} has no config and no embedding, so there is no default input. "
            "Give a batch: a dict of keyword arguments, a tuple, or a tensor."
        )
    rows = [table.num_embeddings for table in tables]
    length = _length(model, tokens, min(rows))
    vocabulary = rows[0] if rows[0] >= length else max(rows)  # the largest may be of positions
    special = {table.padding_idx for table in tables if table.padding_idx is not None}
    return random_ids(vocabulary, length, generator, special).to(device)


def _accepts(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _to(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in batch.items()}


@dataclass(frozen=True, eq=False)
class Counted:
    """Which tokens (sequences, tokens) are measured; `mask` is None when all are, `left_out` says why some are not."""

    mask: Tensor | None = None
    left_out: str = ""

    def tokens(self, length: int) -> int:
        """Per sequence, on average."""
        return length if self.mask is None else round(float(self.mask.sum(-1).double().mean()))


def counted(model: nn.Module, batch: Any, first: Tensor, stack: str = "") -> Counted:
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


def token_mask(model: nn.Module, batch: Any, shape: tuple[int, int], stack: str = "") -> Tensor | None:
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


def _hidden(model: nn.Module, named: dict[str, Any], target: bool) -> Iterator[Tensor]:
    """Every mask that the batch has of these tokens, True where one is padding."""
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


def arguments(model: nn.Module, batch: Any) -> dict[str, Any]:
    """The batch by the names of the model's arguments; what has none is numbered."""
    args, kwargs = as_call(batch)
    names = [
        p.name
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names += [str(place) for place in range(len(names), len(args))]
    return dict(zip(names, args, strict=False)) | kwargs


def _padding_id(model: nn.Module) -> int | None:
    """By the config, else by the embeddings where they agree."""
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


def sequences_of(batch: Any) -> int:
    """How many sequences a batch holds: the length of the first axis of its first tensor with more than one.

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
