"""describe(model) and structure(model): what a built model does, with the gains of the weights that are there.

Structure is read from behavior. Names add what behavior cannot say (the base of a rotation) or says with a sampling
error (gains of matrices whose role is certain); where a name contradicts behavior, behavior stands and it is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Reading, Stack
from edgewise.models.behavior.structure import Structure, structure_of
from edgewise.models.behavior.to_architecture import describe_reading, outside
from edgewise.models.model_map import ModelMap
from edgewise.models.names import model_sites as roles
from edgewise.models.names.model_sites import BlockSite
from edgewise.models.names.weight_gains import measured_knobs, norm_gains
from edgewise.models.readable import refuse_infinite
from edgewise.models.state import is_sharded
from edgewise.nouns.architecture import Architecture

if TYPE_CHECKING:
    from torch import nn


COMPARED = (
    "depth",
    "norm",
    "norm_kind",
    "causal",
    "parallel",
    "gated",
    "activation",
    "qk_norm",
    "alibi",
    "window",
)
GAINS = (
    "score_gain",
    "value_gain",
    "mlp_in_gain",
    "mlp_linear_gain",
    "mlp_out_gain",
    "attention_branch",
    "mlp_branch",
)
CLOSE = 0.25  # relative: gains by behavior scatter by a few hundredths, wrong roles are off by factors
DISTANCES = re.compile(r"(relative|position|pos)\w*bias")
SHARDED = "gains: as the model behaves; its matrices lie in shards (FSDP2)"
DRAWN = (
    "initializer_range",
    "init_std",
    "initializer_factor",
    "initializer_cutoff_factor",
)  # the weights say it


def describe_module(
    model: nn.Module,
    batch: Any = None,
    *,
    depth: int | None = None,
    tokens: int | None = None,
    stack: str | None = None,
    where: ModelMap | None = None,
) -> Architecture:
    """The description of a built model; nothing of it is changed."""
    where = where or ModelMap(model)
    if any(parameter.is_meta for parameter in where.model.parameters()):
        raise BadInput(
            "this model is on the meta device and has no weights to measure. Describe its config instead."
        )
    refuse_infinite(where.model, batch)
    return describe_read_module(
        where.model, where.reading(batch, stack), depth=depth, tokens=tokens, where=where
    )


def describe_read_module(
    model: nn.Module,
    reading: Reading,
    *,
    depth: int | None = None,
    tokens: int | None = None,
    where: ModelMap | None = None,
) -> Architecture:
    """The description of a model that has been read."""
    where = where or ModelMap(model)
    stack = reading.default
    if depth is not None and stack is not None and depth != stack.depth:
        raise BadInput(
            f"depth must be that of this model, {stack.depth}, got {depth}. Describe its config instead."
        )
    hint = None if stack is None else where.described(tokens)
    own = hint if hint is not None and stack is not None and hint.width == stack.width else None
    description = describe_reading(reading, tokens=tokens, name=_name(model), hint=own)
    assert stack is not None
    description = (
        _with_config(description, where.config) if own is None else _with_hint(description, own, tokens)
    )
    if any(is_sharded(module) for module in model.modules()):
        return replace(description, assumed=(*description.assumed, SHARDED))
    blocks, _ = where.roles(stack)
    description = replace(description, assumed=(*description.assumed, *where.notes))
    return _with_weights(model, where.config, description, stack, blocks) if blocks else description


def _with_config(description: Architecture, config: dict[str, Any]) -> Architecture:
    """The base of the rotation, if the config of a family without a translation has it."""
    parameters = config.get("rope_parameters") or {}
    base = config.get("rope_theta") or (
        parameters.get("rope_theta") if isinstance(parameters, dict) else None
    )
    if not _rotates(description) or not isinstance(base, (int, float)):
        return description
    assumed = tuple(line for line in description.assumed if not line.startswith("rope_base"))
    return replace(description.replace(rope_base=float(base)), assumed=assumed)


def _with_hint(description: Architecture, hint: Architecture, tokens: int | None) -> Architecture:
    """The base and fraction of a rotation, the usual length, and what the family cannot say; contradictions said."""
    assumed = [line for line in hint.assumed if not line.startswith(DRAWN)]
    contradicted = []
    for knob in COMPARED:
        behavior, config = getattr(description, knob), getattr(hint, knob)
        if behavior != config:
            contradicted.append(
                f"{knob}: {_text(behavior)} as the model behaves; the config says {_text(config)}"
            )
    changes: dict[str, Any] = {} if tokens is not None else {"tokens": hint.tokens}
    if (
        any("mixture-of-experts" in line for line in description.unmodelled)
        and hint.depth == description.depth
    ):
        changes["mlp_branch"] = hint.mlp_branch  # the family's mean weight of an expert
    if _rotates(description) and _rotates(hint) and hint.depth == description.depth:
        changes |= {"rope": hint.rope, "rope_base": hint.rope_base}
        assumed += [line for line in description.assumed if not line.startswith("rope_base")]
    else:
        assumed += description.assumed
    return replace(
        description.replace(**changes),
        assumed=tuple(dict.fromkeys([*assumed, *contradicted])),
        unmodelled=tuple(dict.fromkeys([*hint.unmodelled, *description.unmodelled])),
    )


def _rotates(description: Architecture) -> bool:
    rope = description.rope
    return any(rope) if isinstance(rope, tuple) else bool(rope)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _with_weights(
    model: nn.Module,
    config: dict[str, Any],
    description: Architecture,
    stack: Stack,
    blocks: tuple[BlockSite, ...],
) -> Architecture:
    """Gains from the matrices themselves if they agree with behavior: the same numbers, without its scatter."""
    knobs = measured_knobs(model, blocks, lambda plain: _logit_scale(config, stack, plain, len(blocks)))
    experts = any(branch.experts for branch in stack.mlps)
    certain = {k: v for k, v in knobs.items() if k in GAINS and _agree(v, getattr(description, k))}
    certain |= {
        k: knobs[k] for k in ("mlp_out_gain",) if experts
    }  # of one expert; the routing is in `unmodelled`
    if all(k in certain for k in ("score_gain", "value_gain")):
        certain |= {k: knobs[k] for k in ("key_gain", "output_gain") if k in knobs}
    certain |= {k: knobs[k] for k in ("mlp_bias",) if k in knobs}
    notes = tuple(
        f"{k}: {_mean(getattr(description, k)):.3g} as the model behaves; its matrices say {_mean(knobs[k]):.3g}"
        for k in GAINS
        if k in knobs and k not in certain
    )
    left = tuple(_left_out(model, blocks, described=_mean(description.position_bias) > 0))
    return replace(
        description.replace(**certain),
        assumed=description.assumed + notes,
        unmodelled=description.unmodelled + left,
    )


def _left_out(model: nn.Module, blocks: tuple[BlockSite, ...], described: bool) -> Iterator[str]:
    """Parameters that the theory does not have: without a role, norms inside branches, gains of norms on the sums.

    described  whether a bias of the logits by distance is, so that its table counts as read
    """
    names = [name for block in blocks for name in block.unrecognized]
    names = [name for name in names if not (described and DISTANCES.search(name))]
    if names:
        yield f"parameters of the blocks without a role here: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
    inside = [n.name for n in blocks[0].norms if n.role in (roles.INSIDE_ATTENTION, roles.INSIDE_MLP)]
    if inside:
        yield f"norms inside the branches: {', '.join(inside)}"
    outside = [n for b in blocks for n in b.norms if n.role in (roles.OUTSIDE_ATTENTION, roles.OUTSIDE_MLP)]
    if any(abs(float(norm_gains(model, norm.name).pow(2).mean()) - 1) > 1e-3 for norm in outside):
        yield "the norms on the sums have gains other than one"


def _agree(one: Any, other: Any) -> bool:
    first, second = _mean(one), _mean(other)
    return abs(first - second) <= CLOSE * max(abs(first), abs(second), 1e-12)


def _mean(value: Any) -> float:
    values = value if isinstance(value, tuple) else (value,)
    return math.sqrt(sum(v * v for v in values) / len(values))


def _logit_scale(
    config: dict[str, Any], stack: Stack, plain: float | tuple[float, ...], depth: int
) -> list[float]:
    """What multiplies q.k/sqrt(head width), per block: as scores show it, exactly if the config has the number."""
    products = plain if isinstance(plain, tuple) else (plain,) * depth
    shown = [branch.gains.score if branch.gains else None for branch in stack.attentions]
    if len(shown) != depth or None in shown or not all(products):
        return [1.0] * depth
    ratios = tuple(
        float(score or 0.0) / float(product) for score, product in zip(shown, products, strict=True)
    )
    for scale in _usual_scales(config, stack.attentions[0].head_width or 1):
        if all(_agree(ratio, scale) for ratio in ratios):
            return [scale] * depth
    pooled = _mean(ratios)
    return [pooled] * depth if all(_agree(ratio, pooled) for ratio in ratios) else list(ratios)


def _usual_scales(config: dict[str, Any], width: int) -> list[float]:
    """Scores over sqrt(head width), not scaled at all, and by the numbers that configs have for it."""
    scalar, multiplier = config.get("query_pre_attn_scalar"), config.get("attention_multiplier")
    own = [math.sqrt(width / scalar)] if isinstance(scalar, (int, float)) and scalar > 0 else []
    own += [multiplier * math.sqrt(width)] if isinstance(multiplier, float) and multiplier > 0 else []
    return [*own, 1.0, math.sqrt(width)]


def _name(model: nn.Module) -> str:
    config = getattr(model, "config", None)
    return str(
        getattr(config, "_name_or_path", "") or getattr(config, "model_type", "") or type(model).__name__
    )


def structure(model: nn.Module, batch: Any = None, *, stack: str | None = None) -> Structure:
    """Read the structure of a stack, block by block: branches, what they see, norms, multipliers, positions.

    model  a built model; nothing of it is changed
    batch  as in `describe`: whatever the model accepts; default: made from its own signature
    stack  which stack of a model with several (`edgewise.models.stacks` lists them); default: the language stack

    Every fact is certain, or None with its reason in `absent`. `outside` says why the theory does not cover the stack;
    if it is empty, `describe` gives the description that `predict` takes.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> found = structure(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    >>> found.depth, [branch.kind for branch in found.blocks[0]], found.blocks[0][0].norm
    (3, ['attention', 'MLP'], 'post')
    """
    where = ModelMap(model)
    return structure_of_read(where.model, where.reading(batch, stack, closely=True), where)


def structure_of_read(model: nn.Module, reading: Reading, where: ModelMap | None = None) -> Structure:
    """Of the default stack of a model that has been read."""
    stack = reading.default
    if stack is None:
        raise BadInput(
            f"{reading.model} has no stack whose structure can be read: "
            f"{'; '.join(reading.not_read) or 'none was found'}."
        )
    try:
        description = describe_read_module(model, reading, where=where)
    except BadInput as error:
        return structure_of(reading, stack, tuple(outside(stack)) or (str(error),))
    return structure_of(reading, stack, left_out=description.unmodelled)
