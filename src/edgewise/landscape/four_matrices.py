"""Logits of the first moved attention from four matrices.

With queries that move along one direction and keys along another,

    (q_0 + a q_1)(k_0 + b k_1)^T = S_00 + a S_10 + b S_01 + a b S_11 :

four products once, then one scaled sum per point (the part that depends on b alone is kept for a row of the grid).
Whether queries and keys are affine in the directions is known from `dataflow`, through any rotation or reshaping.
Shapes: query (B, heads, L, d), key and value (B, heads or fewer, S, d), logits (B, heads, L, S).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from edgewise.landscape.dataflow import Dataflow, Mark

if TYPE_CHECKING:
    from edgewise.landscape.replay import Replay

LARGEST = 2**28  # bytes of all matrices together; beyond, fused attention is the better bargain
PARTS = ("query", "key", "value")
NAMES = (*PARTS, "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
DEFAULTS: dict[str, Any] = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


@dataclass(frozen=True)
class Site:
    """One call of fused attention: inside which module, with what, and what that depends on."""

    module: nn.Module
    arguments: dict[str, Any]
    moving: Mark  # queries, keys and values together: they may be slices of one tensor
    mask: Mark

    @property
    def usable(self) -> bool:
        """Affine, a mask that stays, no dropout, and small enough."""
        query, key = self.arguments["query"], self.arguments["key"]
        size = 4 * query[..., 0].numel() * key.shape[-2] * query.element_size()
        return self.moving.affine and not self.mask.directions and not self.arguments["dropout_p"] and size <= LARGEST


class SeenAttention(TorchFunctionMode):
    """Notes every call of scaled_dot_product_attention during the traced pass."""

    def __init__(self, flow: Dataflow) -> None:
        super().__init__()
        self.flow, self.stack, self.sites = flow, list[nn.Module](), list[Site]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and self.stack:
            given = arguments_of(args, kwargs)
            moving = self.flow.of([given[name] for name in PARTS])
            self.sites.append(Site(self.stack[-1], given, moving, self.flow.of(given["attn_mask"])))
        return func(*args, **kwargs)

    def usable(self) -> Site | None:
        """The first attention that moves, if it can be read from matrices and is the only one in its module."""
        moving = [site for site in self.sites if site.moving.directions]
        alone = [site for site in moving[:1] if [s.module for s in self.sites].count(site.module) == 1]
        return alone[0] if alone and alone[0].usable and not self.flow.decided else None


class FourMatrices(TorchFunctionMode):
    """Stands in for one fused call, in its own module alone.

    `terms` is empty where values move or one direction moves queries and keys at once: then the fused call stays.
    """

    def __init__(self, site: Site, replay: Replay) -> None:
        super().__init__()
        self.replay, self.captured = replay, dict[str, Any]()
        self.terms: dict[frozenset[int], Tensor] = {}
        self._row: tuple[Any, Tensor, Tensor | None] | None = None
        inner = site.module.forward
        self._around(site.module)
        queries, keys, values = self._parts(site)
        if len(values) > 1 or (queries.keys() & keys.keys()) - {None}:
            site.module.forward = inner
            return
        self.value, keys = _spread(site.arguments, keys)
        self.terms = _products(site.arguments, queries, keys)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        if self.terms:
            return torch.softmax(self.logits(), -1) @ self.value
        self.captured = arguments_of(args, kwargs)
        return func(*args, **kwargs)

    def logits(self) -> Tensor:
        """At the replay's point; what does not depend on its first coordinate is kept while the others stay."""
        first, *others = self.replay.point
        if self._row is None or self._row[0] != others:
            still = _sum({t: m for t, m in self.terms.items() if 0 not in t}, self.replay.point)
            moving = _sum({t - {0}: m for t, m in self.terms.items() if 0 in t}, self.replay.point)
            assert still is not None
            self._row = (others, still, moving)
        _, still, moving = self._row
        return still if moving is None else torch.add(still, moving, alpha=first)

    def _around(self, module: nn.Module) -> None:
        """The mode is active inside this module of the copy and nowhere else."""
        inner: Callable[..., Any] = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self:
                return inner(*args, **kwargs)

        module.forward = forward

    def _parts(self, site: Site) -> list[dict[int | None, Tensor]]:
        """Queries, keys, values at the centre (None) and their change per unit of each direction that changes them."""
        parts: list[dict[int | None, Tensor]] = [{None: site.arguments[name]} for name in PARTS]
        for number in sorted(site.moving.directions):
            far = [0.0] * len(self.replay.point)
            far[number] = self.replay.reach
            self.replay.at(far)
            for name, found in zip(PARTS, parts, strict=True):
                change = (self.captured[name] - site.arguments[name]) / self.replay.reach
                if bool(change.any()):
                    found[number] = change
        self.captured.clear()
        return parts


def arguments_of(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    return DEFAULTS | dict(zip(NAMES, args, strict=False)) | kwargs


def _spread(given: dict[str, Any], keys: dict[int | None, Tensor]) -> tuple[Tensor, dict[int | None, Tensor]]:
    """Value and keys repeated for the query heads that share them."""
    if not given["enable_gqa"]:
        return given["value"], keys
    share = given["query"].shape[-3] // given["key"].shape[-3]
    return given["value"].repeat_interleave(share, -3), {n: k.repeat_interleave(share, -3) for n, k in keys.items()}


def _products(
    given: dict[str, Any], queries: dict[int | None, Tensor], keys: dict[int | None, Tensor]
) -> dict[frozenset[int], Tensor]:
    """The matrices by the set of directions that multiply them; the mask is in the one that nothing multiplies."""
    scale = given["query"].shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
    terms = {
        frozenset(n for n in (i, j) if n is not None): (q * scale) @ k.mT
        for (i, q), (j, k) in product(queries.items(), keys.items())
    }  # fmt: skip
    mask, base = given["attn_mask"], terms[frozenset()]
    if given["is_causal"]:
        mask = torch.ones(base.shape[-2:], dtype=torch.bool, device=base.device).tril()
    if mask is not None:
        base = base.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else base + mask
    return terms | {frozenset(): base}


def _sum(terms: dict[frozenset[int], Tensor], point: Any) -> Tensor | None:
    total: Tensor | None = None
    for directions, matrix in terms.items():
        factor = 1.0
        for number in directions:
            factor *= point[number]
        if total is None:
            total = matrix * factor
        else:
            total = torch.add(total, matrix, alpha=factor)
    return total
