"""The norms of a block and what each is for: by the family's position, by the class's own flag, or by watching."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgewise.adapters import role_names as names
from edgewise.adapters import site_types as roles
from edgewise.adapters.site_types import NormSite

if TYPE_CHECKING:
    from torch import nn

ROLES = {
    "pre": (roles.BEFORE_ATTENTION, roles.BEFORE_CROSS, roles.BEFORE_MLP),
    "post": (roles.OUTSIDE_ATTENTION, roles.OUTSIDE_CROSS, roles.OUTSIDE_MLP),
    "branch": (roles.AFTER_ATTENTION, roles.AFTER_CROSS, roles.AFTER_MLP),
}
LATE = re.compile(r"mlp|ffn|feed_?forward|^ff|after|final|2$|3$|^output")


def find_norms(block: nn.Module) -> list[str]:
    """Paths of the norms of a block, those inside attention included.

    An Identity in a norm's place on the stream counts (ModernBERT's first); inside a branch it is a norm that
    was left out.
    """
    from torch import nn

    found = []
    for path, module in block.named_modules():
        leaf = path.rpartition(".")[2].lower()
        named = "norm" in type(module).__name__.lower() or (names.NORM.search(leaf) and _has_vector(module))
        stands_in = isinstance(module, nn.Identity) and names.NORM.search(leaf) and "." not in path
        if path and (named or stands_in) and not any(True for _ in module.children()):
            found.append(path)
    return found


def _has_vector(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and weight.ndim == 1


def inner_role(path: str) -> str | None:
    """The role of a norm inside attention, which its name says; None for the others."""
    leaf = path.rpartition(".")[2].lower()
    for pattern, role in (
        (names.LATENT_NORMS, roles.LATENT_NORM),
        (names.QUERY_NORMS, roles.QUERY_NORM),
        (names.KEY_NORMS, roles.KEY_NORM),
    ):
        if pattern.search(leaf):
            return role
    return None


def site(block: nn.Module, block_name: str, path: str, role: str) -> NormSite:
    module = block.get_submodule(path)
    weight = module._parameters.get("weight")
    return NormSite(f"{block_name}.{path}", role, norm_kind(module), None if weight is None else weight.numel())


def norm_kind(module: nn.Module) -> str:
    """layer or rms, measured: a LayerNorm forgets a constant added to its input, an RMSNorm does not."""
    import torch
    from torch import nn
    from torch.func import functional_call

    if isinstance(module, nn.Identity):
        return "identity"
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return "layer" if isinstance(module, nn.LayerNorm) else "rms"
    weight = module._parameters.get("weight")
    width = getattr(module, "normalized_shape", (8,)) if weight is None else weight.shape
    ones = {name: torch.ones(p.shape) for name, p in module.named_parameters()}  # a meta model has no values
    x = torch.randn(1, 3, int(tuple(width)[-1]), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain, shifted = (functional_call(module, ones, (z,)) for z in (x, x + 2.0))
    return "layer" if torch.allclose(plain, shifted, rtol=1e-3, atol=1e-3) else "rms"


def by_position(paths: Sequence[str], position: str, parallel: bool, cross: bool) -> dict[str, str] | None:
    """Roles of the norms of the stream when the position is known; None if their number does not fit."""
    ordered = _ordered(paths, position)
    if position == "none":
        return {} if not ordered else None
    if position == "sandwich":
        return _sandwich(ordered)
    expected: tuple[str, ...] = ROLES[position] if cross else ROLES[position][::2]
    if parallel and len(ordered) == 1:
        expected = expected[:1]
    return dict(zip(ordered, expected, strict=True)) if len(ordered) == len(expected) else None


def _sandwich(paths: Sequence[str]) -> dict[str, str] | None:
    """Four norms, in the order of definition or told apart by `pre` and `post`."""
    order = (roles.BEFORE_ATTENTION, roles.AFTER_ATTENTION, roles.BEFORE_MLP, roles.AFTER_MLP)
    return dict(zip(paths, order, strict=True)) if len(paths) == 4 else None


def _ordered(paths: Sequence[str], position: str) -> list[str]:
    """The norm of attention before that of the MLP, whatever the order of definition."""
    if position == "sandwich" or any(any(w.isdigit() for w in path.split(".")) for path in paths):
        return list(paths)
    return sorted(paths, key=lambda path: _is_late(path, position))


def _is_late(path: str, position: str) -> bool:
    words = path.lower().split(".")
    if "post_attention" in words[-1]:  # after attention is before the MLP, unless norms follow branches
        return position == "pre"
    return any(LATE.search(word) for word in words) and not any("att" in word for word in words)


def of_cross_attention(path: str, position: str) -> str | None:
    """The role of a norm that a run without an encoder does not reach; its name says whose it is."""
    if position not in ROLES or not names.any_word(names.CROSS, path):
        return None
    return ROLES[position][1]


def position_of(found: Sequence[str]) -> str:
    """The position that a set of roles amounts to; `mixed` for what the theory has no word for."""
    before = any(role.startswith("before") for role in found)
    after = any(role.startswith("after") for role in found)
    outside = any(role.startswith("outside") for role in found)
    table = {(1, 0, 0): "pre", (1, 1, 0): "sandwich", (0, 1, 0): "branch", (0, 0, 1): "post", (0, 0, 0): "none"}
    return table.get((before, after, outside), "mixed")
