"""describe(model): an Architecture whose gains are those of the weights that are there.

Structure (mask, rotation, windows, activation) comes from the model's config when its family is known, and
from watching one block otherwise; what neither tells is assumed, and listed in `assumed`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgewise.adapters.config.translate import config_of, described_by_config
from edgewise.adapters.module.behaviour import Notes, structure_by_watching
from edgewise.adapters.module.first_stream import first_norm, table_norm
from edgewise.adapters.module.gains import measured_knobs, norm_gains
from edgewise.adapters.roles import record as roles
from edgewise.adapters.roles.model import sites
from edgewise.adapters.roles.record import ModelSites
from edgewise.adapters.unwrap import unwrap
from edgewise.architecture import Architecture, transformer
from edgewise.errors import BadInput

if TYPE_CHECKING:
    from torch import nn


def describe_module(
    model: nn.Module, *, depth: int | None = None, tokens: int | None = None, model_sites: ModelSites | None = None
) -> Architecture:
    """The description of a built model; nothing of it is changed."""
    bare = unwrap(model)
    if any(parameter.is_meta for parameter in bare.parameters()):
        raise BadInput("this model is on the meta device and has no weights to measure. Describe its config instead.")
    model_sites = sites(bare) if model_sites is None else model_sites
    _refuse_undescribable(model_sites, depth)
    family = described_by_config(bare, tokens)
    notes = Notes(model_sites, family)
    if family is not None:
        structure = _by_config(family, model_sites, notes)
    else:
        structure = structure_by_watching(bare, model_sites, tokens, notes)
    gains = measured_knobs(bare, model_sites.blocks, _logit_scale(bare, family, model_sites, notes))
    start = {"embedding_norm": _first_norm(bare, model_sites, family, notes)}
    _note_what_is_left(bare, model_sites, notes)
    return replace(
        transformer(**(structure | gains | start)), name=_name(bare), assumed=tuple(dict.fromkeys(notes.assumed)),
        unmodelled=tuple(dict.fromkeys(notes.unmodelled)),
    )  # fmt: skip


def _refuse_undescribable(model_sites: ModelSites, depth: int | None) -> None:
    if depth is not None and depth != model_sites.depth:
        raise BadInput(f"depth must be that of this model, {model_sites.depth}, got {depth}. Describe its config.")
    if model_sites.stacks[0].norm == "mixed":
        norms = ", ".join(f"{norm.name} ({norm.role})" for norm in model_sites.blocks[0].norms)
        raise BadInput(f"the norms {norms} stand in no position the theory knows: pre, post, sandwich, branch, none.")


def _by_config(family: Architecture, model_sites: ModelSites, notes: Notes) -> dict[str, Any]:
    """The family's structure; where the module disagrees with its config, the module is right, and it is said."""
    block = model_sites.blocks[0]
    own = {
        "depth": model_sites.depth, "width": model_sites.width, "heads": block.attention.heads or family.heads,
        "kv_heads": block.attention.kv_heads or family.kv_heads,
        "head_width": block.attention.head_width or family.head_width,
    }  # fmt: skip
    for name, value in own.items():
        if getattr(family, name) != value:
            notes.assumed.append(f"{name}: {value} as built; the config says {getattr(family, name)}")
    widths = {b.mlp.width for b in model_sites.blocks}
    own["mlp_width"] = family.mlp_width if family.mlp_width in widths else max(widths)
    return family.knobs() | own


def _logit_scale(model: nn.Module, family: Architecture | None, model_sites: ModelSites, notes: Notes) -> list[float]:
    """What multiplies q.k/sqrt(head width), per block: the family's score gain over that of its matrices."""
    if family is None or not config_of(model):  # not of a family: nothing is known to scale logits
        return [1.0] * model_sites.depth
    scores = family.score_gain if isinstance(family.score_gain, tuple) else (family.score_gain,) * model_sites.depth
    if family.qk_norm:
        return [float(score) for score in scores]
    keys = family.key_gain if isinstance(family.key_gain, tuple) else (family.key_gain,) * model_sites.depth
    query = _query_over_key(config_of(model), family, model_sites)
    if not all(keys):
        notes.assumed.append("logits are divided by sqrt(head width)")
        return [1.0] * model_sites.depth
    return [score / (float(key or 1.0) ** 2 * query) for score, key in zip(scores, keys, strict=True)]


def _query_over_key(config: dict[str, Any], family: Architecture, model_sites: ModelSites) -> float:
    """gain_Q/gain_K as the family draws them: 1, but for T5 (W_Q smaller by sqrt(d_kv)) and for latents."""
    if config["model_type"] == "t5":
        return 1 / math.sqrt(family.head_width)
    if model_sites.blocks[0].attention.extra:
        query = float(config["initializer_range"]) * math.sqrt(model_sites.blocks[0].attention.query.fan_in)
        return query / float(family.key_gain)  # type: ignore[arg-type]
    return 1.0


def _first_norm(model: nn.Module, model_sites: ModelSites, family: Architecture | None, notes: Notes) -> float:
    for measure in (first_norm, table_norm):
        value = measure(model, model_sites)
        if value:
            return value
    value = 1.0 if family is None else family.embedding_norm
    notes.assumed.append(f"embedding_norm: {value:g}, the module has no embedding that could be run")
    return value


def _note_what_is_left(model: nn.Module, model_sites: ModelSites, notes: Notes) -> None:
    if model_sites.unrecognised:
        names = ", ".join(model_sites.unrecognised[:3]) + (" ..." if len(model_sites.unrecognised) > 3 else "")
        notes.unmodelled.append(f"parameters of the blocks without a role here: {names}")
    if model_sites.blocks[-1].mlp.router is not None and not any("mixture" in line for line in notes.unmodelled):
        notes.unmodelled.append("mixture-of-experts routing: the experts stand as one, with weight 1")
    if len(model_sites.stacks) > 1 and not any("decoder" in line for line in notes.unmodelled):
        first, second = (stack.name for stack in model_sites.stacks[:2])
        notes.unmodelled.append(f"only the stack {first} is described, not {second}")
    inside = [n.name for n in model_sites.blocks[0].norms if n.role in (roles.INSIDE_ATTENTION, roles.INSIDE_MLP)]
    if inside:
        notes.unmodelled.append(f"norms inside the branches: {', '.join(inside)}")
    outside = [n for b in model_sites.blocks for n in b.norms if n.role in (roles.OUTSIDE_ATTENTION, roles.OUTSIDE_MLP)]
    if any(abs(float(norm_gains(model, norm.name).pow(2).mean()) - 1) > 1e-3 for norm in outside):
        notes.unmodelled.append("the norms on the sums have gains other than one")


def _name(model: nn.Module) -> str:
    config = getattr(model, "config", None)
    return str(getattr(config, "_name_or_path", "") or getattr(config, "model_type", "") or type(model).__name__)
