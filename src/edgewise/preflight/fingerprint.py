"""Tensors inside calls: names of modules, arguments, fingerprints of tokens, scores of fused attention."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def clean(name: str) -> str:
    """The name without what wrappers add."""
    return re.sub(
        r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)", "", name
    ).lstrip(".")


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Return every tensor in nested dictionaries, lists, tuples and model outputs."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict) or (hasattr(value, "keys") and hasattr(value, "values")):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def first_tensor(value: Any) -> Tensor | None:
    """Return the first floating tensor."""
    return next((t for t in tensors_in(value) if t.is_floating_point() and not t.is_meta), None)


def fingerprint(tensor: Tensor) -> Tensor:
    """Return two random projections of everything beyond the first two axes: shape (a, b, 2)."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.dim() < 2 or tensor.is_sparse or tensor.is_quantized:
        return tensor.reshape(-1, 1)[:, :1].float()
    if not tensor.numel():  # an expert without tokens
        return tensor.new_zeros(tensor.shape[0], 1, dtype=torch.float32)
    flat = tensor.reshape(*tensor.shape[:2], -1)
    return flat.float() @ _directions(flat.shape[-1]).to(flat.device)


_DIRECTIONS: dict[int, Tensor] = {}


def _directions(width: int) -> Tensor:
    if width not in _DIRECTIONS:
        if len(_DIRECTIONS) > 64:
            _DIRECTIONS.clear()
        generator = torch.Generator().manual_seed(width)
        _DIRECTIONS[width] = torch.randn(width, 2, generator=generator) / math.sqrt(width)
    return _DIRECTIONS[width]


def fused_scores(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the scores and weights of the first two samples inside a fused attention call."""
    query, key = (
        args[i].detach() if len(args) > i else kwargs[n].detach() for i, n in ((0, "query"), (1, "key"))
    )
    mask = argument(args, kwargs, 3, "attn_mask", None)
    causal = argument(args, kwargs, 5, "is_causal", False)
    if query.dim() == 4 and query.shape[1] != key.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    if mask is not None and mask.dim() == 4 and mask.shape[0] > 2:
        mask = mask[:2]
    if query.dim() == 4:
        query, key = query[:2], key[:2]
    scores = query.float() @ key.float().transpose(-1, -2)
    scores = scores * (kwargs.get("scale") or query.shape[-1] ** -0.5)
    if causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~ones.tril(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.float()
    return scores, scores.softmax(-1)
