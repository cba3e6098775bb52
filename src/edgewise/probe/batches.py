"""The default input: random token ids or pixels shaped by the config, from a generator of their own."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.adapters.reading.batch import images_end_to_end
from edgewise.errors import BadInput
from edgewise.probe.isolation import tensors

TOKENS = 64
HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")


def default_batch(
    model: nn.Module, generator: torch.Generator, tokens: int | None = None, device: torch.device | None = None
) -> Any:
    """One sequence of distinct random ids (with labels where the model has a head for them), or one random image."""
    config = getattr(model, "config", None)
    first = next(model.parameters(), None)
    if first is None:
        raise BadInput(f"{type(model).__name__} has no parameters, so it has no default input, and nothing to change.")
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
        raise BadInput(f"tokens must be at most {longest}, the positions of this {type(model).__name__}, got {tokens}.")
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


def _without_config(model: nn.Module, generator: torch.Generator, tokens: int | None, device: torch.device) -> Any:
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
    return random_ids(vocabulary, length, generator, set()).to(device)


def _accepts(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _to(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in batch.items()}


def token_mask(batch: Any, shape: tuple[int, int]) -> Tensor | None:
    """The padding mask of a batch (sequences, tokens), True where a token counts; None when all do."""
    mask = batch.get("attention_mask") if hasattr(batch, "get") else None
    if not isinstance(mask, Tensor) or tuple(mask.shape) != shape or bool((mask != 0).all()):
        return None
    return mask != 0


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
        raise BadInput(f"images of {listed} patches are laid end to end: expected as many in each. Give one image.")
    return len(sizes)
