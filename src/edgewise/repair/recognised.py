"""A model the theory describes: its places, its description with the gains it has, and every matrix by role.

Embeddings, when asked: tables rescaled so that the first stream has mean square one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from edgewise.adapters.config.translate import described_by_config
from edgewise.adapters.describe import describe
from edgewise.adapters.roles.model import sites
from edgewise.adapters.roles.record import AttentionSite, BlockSite, MLPSite, ModelSites, Projection
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.repair.draw import root_mean_square
from edgewise.repair.layers import Kept
from edgewise.repair.plan import Change

WRITERS = ("output", "mlp_out")


@dataclass(frozen=True)
class Place:
    """One matrix: its role as the theory names it, its block, whether it belongs to the described stack."""

    role: str  # query key value output mlp_in mlp_linear mlp_out
    block: int
    matrix: Projection
    described: bool

    @property
    def writes(self) -> bool:
        return self.role in WRITERS


@dataclass(frozen=True)
class Recognised:
    """`weightless`: on the meta device or sharded, so that gains come from the config and nothing is measured."""

    model: nn.Module
    sites: ModelSites
    architecture: Architecture
    weightless: bool

    def places(self) -> Iterator[Place]:
        for index, stack in enumerate(self.sites.stacks):
            for block in stack.blocks:
                yield from _of_block(block, index == 0)

    def old_std(self, place: Place) -> float | None:
        """The root mean square of the matrix; for a model without weights that of its config, where it says one."""
        if not self.weightless:
            parts = [self.model.get_parameter(name) for name in place.matrix.parameters]
            return math.sqrt(sum(root_mean_square(part, place.matrix) ** 2 for part in parts) / len(parts))
        gain = self._config_gain(place.role, place.block)
        return None if gain is None or not place.described else gain / math.sqrt(place.matrix.fan_in)

    def _config_gain(self, role: str, block: int) -> float | None:
        known = self.architecture

        def at(name: str) -> float | None:
            value = getattr(known, name)
            return float(value[block]) if isinstance(value, tuple) else None if value is None else float(value)

        score, value, key, output = at("score_gain"), at("value_gain"), at("key_gain"), at("output_gain")
        key = math.sqrt(score or 0.0) if key is None else key
        output = math.sqrt(value or 0.0) if output is None else output
        found = {
            "query": key, "key": key, "value": (value or 0.0) / output if output else None, "output": output,
            "mlp_in": at("mlp_in_gain"), "mlp_linear": at("mlp_linear_gain"), "mlp_out": at("mlp_out_gain"),
        }  # fmt: skip
        return found.get(role)


def recognise(model: nn.Module, tokens: int | None) -> Recognised | str:
    """The recognised model, or why the theory does not describe it."""
    weightless = any(p.is_meta or hasattr(p, "to_local") for p in model.parameters())
    try:
        found = sites(model)
        known = described_by_config(model, tokens) if weightless else describe(model, tokens=tokens)
    except BadInput as refusal:
        return str(refusal)
    if not isinstance(known, Architecture):
        return "it is on the meta device or sharded, and has no config of a known family"
    if found.stacks[0].norm not in ("pre", "post", "none"):
        return f"its branches end in norms ({found.stacks[0].norm}), which undo the gains of their matrices"
    return Recognised(model, found, _with_multipliers(model, known), weightless)


def _with_multipliers(model: nn.Module, known: Architecture) -> Architecture:
    """A network of `edgewise.nets` knows its own multipliers, which its modules do not show."""
    own = getattr(model, "architecture", None)
    if not isinstance(own, Architecture) or own.depth != known.depth:
        return known
    names = ("attention_skip", "attention_branch", "mlp_skip", "mlp_branch", "causal", "rope", "alibi", "activation")
    return known.replace(**{name: getattr(own, name) for name in names})


def _of_block(block: BlockSite, described: bool) -> Iterator[Place]:
    yield from _of_attention(block.attention, block.index, described)
    if block.cross_attention is not None:
        yield from _of_attention(block.cross_attention, block.index, False)
    yield from _of_mlp(block.mlp, block.index, described)


def _of_attention(site: AttentionSite, block: int, described: bool) -> Iterator[Place]:
    for role in ("query", "key", "value", "output"):
        yield Place(role, block, replace(getattr(site, role), role=role), described)


def _of_mlp(site: MLPSite, block: int, described: bool) -> Iterator[Place]:
    inside = [("mlp_in", site.input)] if site.gate is None else [("mlp_in", site.gate), ("mlp_linear", site.input)]
    for role, matrix in (*inside, ("mlp_out", site.output)):
        yield Place(role, block, replace(matrix, role=role), described)
    if site.shared is not None:
        yield from _of_mlp(site.shared, block, False)


_KNOBS = {
    "score_gain": ("query", "key"), "key_gain": ("key",), "value_gain": ("value", "output"), "output_gain": ("output",),
    "mlp_in_gain": ("mlp_in",), "mlp_linear_gain": ("mlp_linear",), "mlp_out_gain": ("mlp_out",),
}  # fmt: skip


def with_changes(found: Recognised, changed: Sequence[tuple[Place, Change]], biases_off: bool) -> Architecture:
    """The description after the changes: every gain times the ratio of its matrices' standard deviations."""
    known = found.architecture
    ratio: dict[tuple[str, int], float] = {}
    for place, change in changed:
        if place.described and change.old_std:
            ratio[place.role, place.block] = change.new_std / change.old_std
    knobs: dict[str, Any] = {"mlp_bias": 0.0} if biases_off else {}
    for name, roles in _KNOBS.items():
        present = getattr(known, name)
        if present is None or (known.qk_norm and name in ("score_gain", "key_gain")):
            continue
        gains = np.broadcast_to(np.asarray(present, float), (known.depth,))
        factor = [math.prod(ratio.get((role, block), 1.0) for role in roles) for block in range(known.depth)]
        knobs[name] = tuple(float(value) for value in gains * np.array(factor))
    return known.replace(**{name: _one(value) for name, value in knobs.items()})


def _one(values: Any) -> Any:
    """One value where the blocks agree to a per cent: the theory is faster, and the difference is sampling."""
    if isinstance(values, tuple) and max(values) - min(values) <= 0.01 * max(values):
        return float(np.mean(values))
    return values


def embedding_changes(
    found: Recognised, start: tuple[float, float] | None, kept: Kept, notes: list[str]
) -> list[Change]:
    """Every table drawn anew with its standard deviation over sqrt(q_0); tied ones are left, and it is said."""
    q = start[0] if start else found.architecture.embedding_norm
    if abs(math.log(q)) < 0.1:
        return []
    names = [f"{n}.weight" if _module(found.model, n) is not None else n for n in found.sites.embeddings]
    tied = [name for name in names if name in kept.tied]
    if tied:
        notes.append(f"{tied[0]} is also the readout: all embeddings are left alone: the logits keep their size.")
        return []
    return [_change(found, name, q) for name in names if kept.allows(name)]


def _module(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:  # a bare parameter
        return None


def _change(found: Recognised, name: str, q: float) -> Change:
    parameter = found.model.get_parameter(name)
    fan_in = math.prod(parameter.shape[1:])
    place = Projection("embedding", (name,), fan_in, parameter.shape[0])
    if found.weightless:
        old = math.sqrt(found.architecture.embedding_norm / max(len(found.sites.embeddings), 1))
    else:
        old = float(parameter.detach().double().square().mean().sqrt())
    owner = found.model.get_submodule(name.rpartition(".")[0])
    padding = getattr(owner, "padding_idx", None)
    reason = f"the first stream has mean square {q:.3g}; with this it has one"
    return Change(place, old, old / math.sqrt(q), "normal", reason, zero_row=padding)
