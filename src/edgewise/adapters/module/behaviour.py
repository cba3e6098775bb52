"""The structure of a model whose class nobody has described: from shapes, attributes, and watching one block.

What a block of an unknown class does: its activation, whether it looks ahead, whether position matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgewise.activations import torch_activations
from edgewise.adapters.config.reader import ACTIVATIONS, DEPTH_KEYS
from edgewise.adapters.config.translate import config_of
from edgewise.adapters.module.watching import TOKENS, BlockRun, random_stream, run_block
from edgewise.adapters.roles import record as roles
from edgewise.adapters.roles.record import BlockSite, ModelSites
from edgewise.architecture import Architecture

if TYPE_CHECKING:
    from torch import Tensor, nn

MEASURED = ("initializer_range", "init_std", "initializer_factor", "initializer_cutoff_factor")


class Notes:
    """What had to be assumed and what the theory leaves out, begun with what the config's family says."""

    def __init__(self, model_sites: ModelSites, family: Architecture | None) -> None:
        inherited = () if family is None else family.assumed
        self.assumed = [line for line in inherited if not line.startswith(MEASURED)] + list(model_sites.assumed)
        self.unmodelled = [] if family is None else list(family.unmodelled)


@dataclass(frozen=True)
class Behaviour:
    """What was seen; None where it could not be."""

    activation: str | None
    causal: bool | None
    positions: bool | None  # attention itself tells positions apart (rotary, relative bias)
    reason: str = ""  # why not, if the block did not run


def behaviour_of(model: nn.Module, block: BlockSite, width: int) -> Behaviour:
    """Run the block on random streams with random weights and compare."""
    first, last = block.mlp.gate or block.mlp.input, block.mlp.output
    watched = {name for name in (first.module, block.mlp.input.module, last.module) if name}
    x = random_stream(model, width)
    run = run_block(model, block.name, x, watched)
    if isinstance(run, str):
        return Behaviour(None, None, None, run)
    activation, causal = _activation(run, block), _is_causal(model, block.name, x, run)
    if not run.alone:
        return Behaviour(activation, causal, None, "it ran only inside its model")
    return Behaviour(activation, causal, _tells_positions(model, block.name, x, run, causal))


def _activation(run: BlockRun, block: BlockSite) -> str | None:
    """The function between the two matrices: every candidate is tried on the numbers that went through."""
    import torch

    mlp = block.mlp
    before = run.outputs.get((mlp.gate or mlp.input).module)
    after = run.inputs.get(mlp.output.module)
    if before is None or after is None or mlp.output.experts:
        return None
    factor: Tensor | float = 1.0
    if mlp.gate is not None and mlp.gate.module != mlp.input.module:
        factor = run.outputs[mlp.input.module]
    elif mlp.gate is not None:  # fused: halves of one output
        before, factor = before.chunk(2, -1)
    for name, function in torch_activations().items():
        if torch.allclose(function(before) * factor, after, rtol=1e-4, atol=1e-5):
            return name
    return None


def _is_causal(model: nn.Module, block: str, x: Tensor, run: BlockRun) -> bool | None:
    """Whether the first token's result stays when the last token changes."""
    other = x.clone()
    other[:, -1] = other[:, -1].flip(-1)
    return _unmoved(model, block, other, run, 0, (*range(TOKENS - 1), 0))


def _tells_positions(model: nn.Module, block: str, x: Tensor, run: BlockRun, causal: bool | None) -> bool | None:
    """Whether swapping two earlier tokens changes what the last one gets; a mask alone does not."""
    if causal is None:
        return None
    order = (1, 0, *range(2, TOKENS))
    unmoved = _unmoved(model, block, x[:, order], run, TOKENS - 1, order)
    return None if unmoved is None else not unmoved


def _unmoved(
    model: nn.Module, block: str, x: Tensor, run: BlockRun, token: int, ids: tuple[int, ...]
) -> bool | None:
    """Whether the result at one token is the same for another stream (or other ids)."""
    import torch

    again = run_block(model, block, x, set(), ids)
    if isinstance(again, str) or again.outputs[block].ndim != 3:
        return None
    new, old = again.outputs[block][:, token], run.outputs[block][:, token]
    return torch.allclose(new, old, rtol=1e-4, atol=1e-5 * math.sqrt(x.shape[-1]))


ACTIVATION_KEYS = ("hidden_act", "activation_function", "hidden_activation", "activation")


def structure_by_watching(
    model: nn.Module, model_sites: ModelSites, tokens: int | None, notes: Notes
) -> dict[str, Any]:
    """All knobs but the gains; what could not be seen is assumed and noted."""
    stack, block = model_sites.stacks[0], model_sites.blocks[0]
    behaviour = behaviour_of(model, block, model_sites.width)
    heads = _heads(model_sites, notes)
    knobs = {
        "depth": model_sites.depth, "width": model_sites.width, **heads, "norm": stack.norm,
        "parallel": stack.parallel, "mlp_width": block.mlp.width, "gated": block.mlp.gate is not None,
        "norm_kind": _norm_kind(model_sites), "qk_norm": block.norm(roles.QUERY_NORM) is not None,
        "tokens": tokens or 256, "causal": bool(behaviour.causal), **_activation_knob(model, behaviour, notes),
    }  # fmt: skip
    why = behaviour.reason or "the block was given no mask"
    assumptions = {
        "tokens: 256, the module does not say": tokens is None,
        f"causal: false, {why}": not behaviour.causal,
        "logits are divided by sqrt(head width)": True,
    }
    notes.assumed += [line for line, holds in assumptions.items() if holds]
    return knobs | _positions(model, behaviour, heads["head_width"], notes) | _shared_depth(model, model_sites, notes)


def _activation_knob(model: nn.Module, behaviour: Behaviour, notes: Notes) -> dict[str, Any]:
    """As seen; else as a config names it; else assumed."""
    if behaviour.activation is not None:
        return {"activation": behaviour.activation}
    config = config_of(model)
    named = next((config[key] for key in ACTIVATION_KEYS if config.get(key) in ACTIVATIONS), None)
    if named is not None:
        return {"activation": ACTIVATIONS[named]}
    notes.assumed.append(f"activation: gelu, {behaviour.reason or 'no known function fits what was seen'}")
    return {"activation": "gelu"}


def _positions(model: nn.Module, behaviour: Behaviour, head_width: int, notes: Notes) -> dict[str, Any]:
    """Rotation as its table of frequencies tells, base^(-i/n) for n pairs of coordinates; else said."""
    tables = [b.detach().double() for name, b in model.named_buffers() if name.endswith("inv_freq") and b.numel() > 1]
    if tables:
        n, ratio = tables[0].numel(), float(tables[0][0] / tables[0][1])
        return {"rope": min(2 * n / head_width, 1.0), "rope_base": max(ratio**n, 1.0)}
    if behaviour.positions:
        notes.unmodelled.append("attention tells positions apart (rotary or a bias), which the module does not name")
    if behaviour.positions is None:
        notes.assumed.append("no positions inside attention; whether there are could not be seen")
    return {}


def _shared_depth(model: nn.Module, model_sites: ModelSites, notes: Notes) -> dict[str, Any]:
    """A config that counts more layers than there are blocks: they are used several times (ALBERT)."""
    config = config_of(model)
    config_depth = next((config[key] for key in DEPTH_KEYS if isinstance(config.get(key), int)), model_sites.depth)
    if config_depth == model_sites.depth:
        return {}
    notes.unmodelled.append(f"{model_sites.depth} blocks for a depth of {config_depth}: layers share their weights")
    return {"depth": config_depth} if model_sites.depth == 1 else {}


def _heads(model_sites: ModelSites, notes: Notes) -> dict[str, Any]:
    attention = model_sites.blocks[0].attention
    if attention.heads is not None:
        return {"heads": attention.heads, "kv_heads": attention.kv_heads, "head_width": attention.head_width}
    inner = attention.query.fan_out
    heads = max(inner // 64, 1)
    notes.assumed.append(f"heads: {heads}, no attribute of {attention.name} says; one per 64 rows of the queries")
    kv_heads = max(attention.key.fan_out * heads // inner, 1)
    return {"heads": heads, "kv_heads": kv_heads, "head_width": inner // heads}


def _norm_kind(model_sites: ModelSites) -> str:
    kinds = {n.kind for n in model_sites.blocks[0].norms if n.kind != "identity" and not n.role.endswith("_norm")}
    return "rms" if kinds == {"rms"} else "layer"
