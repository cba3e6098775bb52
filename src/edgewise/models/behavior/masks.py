"""Which keys attention lets in, seen in its scores: a strong bias hides keys that no mask does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.models.behavior.graph import FLEX, MULTIHEAD
from edgewise.models.behavior.interventions import Experiment, Site
from edgewise.models.behavior.places import HIDDEN
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.traits import Rows, Traits


def watch_masks(experiment: Experiment) -> dict[Operation, Callable[..., None]]:
    """Looks at the scores, or at the mask of a fused kernel, of every attention over the tokens of its own stream."""
    watched: dict[Operation, Callable[..., None]] = {}
    for site in experiment.sites:
        stream = experiment.streams.get(site.source)
        site.traits.open = None
        for score in site.part.scores if stream is not None else ():
            if score.product.function not in (MULTIHEAD, FLEX):
                fused = score.softmax == score.product
                watched[score.softmax] = _look(site, stream.length, fused)  # type: ignore[union-attr]
    return watched


def _look(site: Site, length: int, fused: bool) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:
        keys = open_keys(args, kwargs, length, fused)
        before = site.traits.open
        site.traits.open = keys if before is None or keys is None else before | keys

    return look


def open_keys(args: Any, kwargs: Any, length: int, fused: bool) -> Tensor | None:
    """(query, key) from the arguments of a softmax, or of a fused kernel; None where these are not so many tokens."""
    return (
        _mask(args, kwargs, length) if fused else _open_scores(args[0] if args else kwargs["input"], length)
    )


def _open_scores(scores: Tensor, length: int) -> Tensor | None:
    """(query, key): whether any head of any entry lets it in."""
    if scores.dim() < 2 or scores.shape[-1] != length or scores.shape[-2] != length:
        return None
    return (scores.detach() > HIDDEN).reshape(-1, length, length).any(0).cpu()


def _mask(args: Any, kwargs: Any, length: int) -> Tensor | None:
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    key = args[1] if len(args) > 1 else kwargs.get("key")
    if key is None or key.shape[-2] != length:
        return None
    if mask is None:
        whole = torch.ones(length, length, dtype=torch.bool)
        return whole.tril() if (args[5] if len(args) > 5 else kwargs.get("is_causal", False)) else whole
    scores = mask if mask.is_floating_point() else torch.where(mask, 0.0, 10 * HIDDEN)
    return _open_scores(scores.expand(*scores.shape[:-2], length, scores.shape[-1]), length)


def columns_of_mask(traits: Traits) -> Rows | None:
    """What changing a token moves by the mask alone; None unless gradients agree with the mask in every row that was
    asked, and no changed token moves one that the mask keeps apart."""
    keys = traits.open
    if (
        keys is None
        or not traits.rows
        or traits.columns is None
        or max(q for q, _ in traits.rows) >= len(keys)
    ):
        return None
    if any(seen != set(keys[query].nonzero().flatten().tolist()) for query, seen in traits.rows):
        return None
    whole = [
        (position, set(keys[:, position].nonzero().flatten().tolist())) for position, _ in traits.columns
    ]
    fits = all(moved <= seen for (_, moved), (_, seen) in zip(traits.columns, whole, strict=True))
    return whole if fits else None
