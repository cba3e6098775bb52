"""describe(model): an Architecture whose gains are those of the weights that are there.

Structure (mask, rotation, windows, activation) comes from the model's config when its family is known, and
from watching one block otherwise; what neither tells is assumed and said.
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
    found = sites(bare) if model_sites is None else model_sites
    _refuse_undescribable(found, depth)
    known = described_by_config(bare, tokens)
    notes = Notes(found, known)
    if known is not None:
        structure = _by_config(known, found, notes)
    else:
        structure = structure_by_watching(bare, found, tokens, notes)
    gains = measured_knobs(bare, found.blocks, _logit_scale(bare, known, found, notes))
    start = {"embedding_norm": _first_norm(bare, found, known, notes)}
    _note_what_is_left(bare, found, notes)
    return replace(
        transformer(**(structure | gains | start)), name=_name(bare), assumed=tuple(dict.fromkeys(notes.assumed)),
        unmodelled=tuple(dict.fromkeys(notes.unmodelled)),
    )  # fmt: skip


def _refuse_undescribable(found: ModelSites, depth: int | None) -> None:
    if depth is not None and depth != found.depth:
        raise BadInput(f"this model has {found.depth} blocks, so depth = {depth} is not possible. Describe its config.")
    if found.stacks[0].norm == "mixed":
        norms = ", ".join(f"{norm.name} ({norm.role})" for norm in found.blocks[0].norms)
        raise BadInput(f"the norms {norms} stand in no position the theory knows: pre, post, sandwich, branch, none.")


def _by_config(known: Architecture, found: ModelSites, notes: Notes) -> dict[str, Any]:
    """The family's structure; where the module disagrees with its config, the module is right, and it is said."""
    block = found.blocks[0]
    own = {
        "depth": found.depth, "width": found.width, "heads": block.attention.heads or known.heads,
        "kv_heads": block.attention.kv_heads or known.kv_heads,
        "head_width": block.attention.head_width or known.head_width,
    }  # fmt: skip
    for name, value in own.items():
        if getattr(known, name) != value:
            notes.assumed.append(f"{name}: {value} as built; the config says {getattr(known, name)}")
    widths = {b.mlp.width for b in found.blocks}
    own["mlp_width"] = known.mlp_width if known.mlp_width in widths else max(widths)
    return known.knobs() | own


def _logit_scale(model: nn.Module, known: Architecture | None, found: ModelSites, notes: Notes) -> list[float]:
    """What multiplies q.k/sqrt(head width), per block: the family's score gain over that of its matrices."""
    if known is None or not config_of(model):  # not of a family: nothing is known to scale logits
        return [1.0] * found.depth
    scores = known.score_gain if isinstance(known.score_gain, tuple) else (known.score_gain,) * found.depth
    if known.qk_norm:
        return [float(score) for score in scores]
    keys = known.key_gain if isinstance(known.key_gain, tuple) else (known.key_gain,) * found.depth
    query = _query_over_key(config_of(model), known, found)
    if not all(keys):
        notes.assumed.append("logits are divided by sqrt(head width)")
        return [1.0] * found.depth
    return [score / (float(key or 1.0) ** 2 * query) for score, key in zip(scores, keys, strict=True)]


def _query_over_key(config: dict[str, Any], known: Architecture, found: ModelSites) -> float:
    """gain_Q/gain_K as the family draws them: 1, but for T5 (W_Q smaller by sqrt(d_kv)) and for latents."""
    if config["model_type"] == "t5":
        return 1 / math.sqrt(known.head_width)
    if found.blocks[0].attention.extra:
        query = float(config["initializer_range"]) * math.sqrt(found.blocks[0].attention.query.fan_in)
        return query / float(known.key_gain)  # type: ignore[arg-type]
    return 1.0


def _first_norm(model: nn.Module, found: ModelSites, known: Architecture | None, notes: Notes) -> float:
    for measure in (first_norm, table_norm):
        value = measure(model, found)
        if value:
            return value
    value = 1.0 if known is None else known.embedding_norm
    notes.assumed.append(f"embedding_norm: {value:g}, the module has no embedding that could be run")
    return value


def _note_what_is_left(model: nn.Module, found: ModelSites, notes: Notes) -> None:
    if found.unrecognised:
        names = ", ".join(found.unrecognised[:3]) + (" ..." if len(found.unrecognised) > 3 else "")
        notes.unmodelled.append(f"parameters of the blocks without a role here: {names}")
    if found.blocks[-1].mlp.router is not None and not any("mixture" in line for line in notes.unmodelled):
        notes.unmodelled.append("mixture-of-experts routing: the experts stand as one, with weight 1")
    if len(found.stacks) > 1 and not any("decoder" in line for line in notes.unmodelled):
        notes.unmodelled.append(f"only the stack {found.stacks[0].name} is described, not {found.stacks[1].name}")
    inside = [n.name for n in found.blocks[0].norms if n.role in (roles.INSIDE_ATTENTION, roles.INSIDE_MLP)]
    if inside:
        notes.unmodelled.append(f"norms inside the branches: {', '.join(inside)}")
    outside = [n for b in found.blocks for n in b.norms if n.role in (roles.OUTSIDE_ATTENTION, roles.OUTSIDE_MLP)]
    if any(abs(float(norm_gains(model, norm.name).pow(2).mean()) - 1) > 1e-3 for norm in outside):
        notes.unmodelled.append("the norms on the sums have gains other than one")


def _name(model: nn.Module) -> str:
    config = getattr(model, "config", None)
    return str(getattr(config, "_name_or_path", "") or getattr(config, "model_type", "") or type(model).__name__)
