"""The structure of a model whose class nobody has described: from shapes, attributes, and watching one block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgewise.adapters import site_types as roles
from edgewise.adapters.block_behaviour import Behaviour, behaviour_of
from edgewise.adapters.config_of_model import config_of
from edgewise.adapters.config_reader import ACTIVATIONS, DEPTH_KEYS
from edgewise.adapters.description_notes import Notes
from edgewise.adapters.site_types import ModelSites

if TYPE_CHECKING:
    from torch import nn

ACTIVATION_KEYS = ("hidden_act", "activation_function", "hidden_activation", "activation")


def structure_by_watching(
    model: nn.Module, found: ModelSites, tokens: int | None, notes: Notes
) -> dict[str, Any]:
    """All knobs but the gains; what could not be seen is assumed and noted."""
    stack, block = found.stacks[0], found.blocks[0]
    seen = behaviour_of(model, block, found.width)
    heads = _heads(found, notes)
    knobs = {
        "depth": found.depth, "width": found.width, **heads, "norm": stack.norm,
        "parallel": stack.parallel, "mlp_width": block.mlp.width, "gated": block.mlp.gate is not None,
        "norm_kind": _norm_kind(found), "qk_norm": block.norm(roles.QUERY_NORM) is not None,
        "tokens": tokens or 256, "causal": bool(seen.causal), **_activation(model, seen, notes),
    }  # fmt: skip
    why = seen.reason or "the block was given no mask"
    said = {
        "tokens: 256, the module does not say": tokens is None,
        f"causal: false, {why}": not seen.causal,
        "logits are divided by sqrt(head width)": True,
    }
    notes.assumed += [line for line, holds in said.items() if holds]
    return knobs | _positions(model, seen, heads["head_width"], notes) | _shared_depth(model, found, notes)


def _activation(model: nn.Module, seen: Behaviour, notes: Notes) -> dict[str, Any]:
    """As seen; else as a config names it; else assumed."""
    if seen.activation is not None:
        return {"activation": seen.activation}
    config = config_of(model)
    named = next((config[key] for key in ACTIVATION_KEYS if config.get(key) in ACTIVATIONS), None)
    if named is not None:
        return {"activation": ACTIVATIONS[named]}
    notes.assumed.append(f"activation: gelu, {seen.reason or 'no known function fits what was seen'}")
    return {"activation": "gelu"}


def _positions(model: nn.Module, seen: Behaviour, head_width: int, notes: Notes) -> dict[str, Any]:
    """Rotation as its table of frequencies tells, base^(-i/n) for n pairs of coordinates; else said."""
    tables = [b.detach().double() for name, b in model.named_buffers() if name.endswith("inv_freq") and b.numel() > 1]
    if tables:
        n, ratio = tables[0].numel(), float(tables[0][0] / tables[0][1])
        return {"rope": min(2 * n / head_width, 1.0), "rope_base": max(ratio**n, 1.0)}
    if seen.positions:
        notes.unmodelled.append("attention tells positions apart (rotary or a bias), which the module does not name")
    if seen.positions is None:
        notes.assumed.append("no positions inside attention; whether there are could not be seen")
    return {}


def _shared_depth(model: nn.Module, found: ModelSites, notes: Notes) -> dict[str, Any]:
    """A config that counts more layers than there are blocks: they are used several times (ALBERT)."""
    config = config_of(model)
    said = next((config[key] for key in DEPTH_KEYS if isinstance(config.get(key), int)), found.depth)
    if said == found.depth:
        return {}
    notes.unmodelled.append(f"{found.depth} blocks for a depth of {said}: layers share their weights")
    return {"depth": said} if found.depth == 1 else {}


def _heads(found: ModelSites, notes: Notes) -> dict[str, Any]:
    attention = found.blocks[0].attention
    if attention.heads is not None:
        return {"heads": attention.heads, "kv_heads": attention.kv_heads, "head_width": attention.head_width}
    inner = attention.query.fan_out
    heads = max(inner // 64, 1)
    notes.assumed.append(f"heads: {heads}, no attribute of {attention.name} says; one per 64 rows of the queries")
    kv_heads = max(attention.key.fan_out * heads // inner, 1)
    return {"heads": heads, "kv_heads": kv_heads, "head_width": inner // heads}


def _norm_kind(found: ModelSites) -> str:
    kinds = {n.kind for n in found.blocks[0].norms if n.kind != "identity" and not n.role.endswith("_norm")}
    return "rms" if kinds == {"rms"} else "layer"
