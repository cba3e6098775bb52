"""A recognized transformer: its description with the gains it has, every matrix by role, and changes to them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.models.model_map import ModelMap
from edgewise.models.module_description import describe_module
from edgewise.models.names.model_sites import AttentionSite, BlockSite, MLPSite, ModelSites, Projection
from edgewise.nouns.architecture import Architecture
from edgewise.repair.layers import Exclusions, LayerStack, copies_in_words, copies_of_first, zero_biases
from edgewise.repair.new_values import SCHEMES, MatrixSize, root_mean_square
from edgewise.repair.plan import Change

WRITERS = ("output", "mlp_out")


@dataclass(frozen=True)
class MatrixPlace:
    """One matrix: its role as the theory names it, its block, whether it belongs to the described stack."""

    role: str  # query key value output mlp_in mlp_linear mlp_out
    block: int
    matrix: Projection
    described: bool

    @property
    def writes(self) -> bool:
        return self.role in WRITERS


Pairs = list[tuple[MatrixPlace, Change]]


@dataclass(frozen=True)
class Recognized:
    """`weightless`: on the meta device or sharded, so that gains come from the config and nothing is measured."""

    model: nn.Module
    sites: ModelSites
    architecture: Architecture
    weightless: bool

    @property
    def layers(self) -> LayerStack:
        """The blocks that the description is of."""
        return LayerStack(tuple(block.name for block in self.sites.blocks), leaf=False)

    def places(self) -> Iterator[MatrixPlace]:
        for index, stack in enumerate(self.sites.stacks):
            for block in stack.blocks:
                yield from _of_block(block, index == 0)

    def old_std(self, place: MatrixPlace) -> float | None:
        """The root mean square of the matrix; for a model without weights that of its config, if it says one."""
        if not self.weightless:
            parts = [self.model.get_parameter(name) for name in place.matrix.parameters]
            return math.sqrt(sum(root_mean_square(part, place.matrix) ** 2 for part in parts) / len(parts))
        gain = self._config_gain(place.role, place.block)
        return None if gain is None or not place.described else gain / math.sqrt(place.matrix.fan_in)

    def _config_gain(self, role: str, block: int) -> float | None:
        def at(name: str) -> float | None:
            value = getattr(self.architecture, name)
            return (
                float(value[block]) if isinstance(value, tuple) else None if value is None else float(value)
            )

        score, value, key, output = at("score_gain"), at("value_gain"), at("key_gain"), at("output_gain")
        key = math.sqrt(score or 0.0) if key is None else key
        output = math.sqrt(value or 0.0) if output is None else output
        gains = {
            "query": key,
            "key": key,
            "value": (value or 0.0) / output if output else None,
            "output": output,
            "mlp_in": at("mlp_in_gain"),
            "mlp_linear": at("mlp_linear_gain"),
            "mlp_out": at("mlp_out_gain"),
        }
        return gains.get(role)


def recognize(model: nn.Module | ModelMap, tokens: int | None, batch: object = None) -> Recognized | str:
    """The recognized model, or why the theory does not describe it."""
    where = ModelMap.of(model)
    model = where.model
    weightless = any(p.is_meta or hasattr(p, "to_local") for p in model.parameters())
    try:
        architecture = where.described(tokens)
        places = where.sites(batch)
        if reason := _unusual(places.blocks):
            return reason
        if not weightless:
            architecture = describe_module(model, batch, tokens=tokens, where=where)
            stack = where.reading(batch).default
            if stack is not None and [b.module for b in stack.blocks] != [b.name for b in places.blocks]:
                first = places.stacks[0].name or "the model"
                return f"names give the blocks of {first}, and the stack that is measured is {stack.name}"
    except BadInput as error:  # a batch may be too short to be read on, and is measured all the same
        return str(error) if batch is None else recognize(model, tokens)
    if not isinstance(architecture, Architecture):
        return "it is on the meta device or sharded, and has no config of a family that edgewise knows"
    if places.stacks[0].norm not in ("pre", "post", "none"):
        return f"its branches end in norms ({places.stacks[0].norm or '?'}), which undo the gains of their matrices"
    return Recognized(model, places, _with_multipliers(model, architecture), weightless)


def _unusual(blocks: Sequence[BlockSite]) -> str:
    """Return why the theory's gains are not those of these matrices; empty if they are."""
    if any(block.calls > 1 or not block.whole for block in blocks):
        return "its layers are not modules of their own"
    if any(block.mlp is None for block in blocks):
        return "its blocks have no MLP"
    if any(p.derived or p.index is not None or p.split > 1 for block in blocks for p in block.projections):
        return "its matrices are not parameters by themselves"
    return ""


def _with_multipliers(model: nn.Module, architecture: Architecture) -> Architecture:
    """A network of `edgewise.nets` knows its own multipliers, which its modules do not show."""
    own = getattr(model, "architecture", None)
    if not isinstance(own, Architecture) or own.depth != architecture.depth:
        return architecture
    names = (
        "attention_skip",
        "attention_branch",
        "mlp_skip",
        "mlp_branch",
        "causal",
        "rope",
        "alibi",
        "position_bias",
        "activation",
    )
    return architecture.replace(**{name: getattr(own, name) for name in names})


def _of_block(block: BlockSite, described: bool) -> Iterator[MatrixPlace]:
    yield from _of_attention(block.attention, block.index, described)
    if block.cross_attention is not None:
        yield from _of_attention(block.cross_attention, block.index, False)
    yield from _of_mlp(block.feed_forward, block.index, described)


def _of_attention(site: AttentionSite, block: int, described: bool) -> Iterator[MatrixPlace]:
    for role in ("query", "key", "value", "output"):
        yield MatrixPlace(role, block, replace(getattr(site, role), role=role), described)


def _of_mlp(site: MLPSite, block: int, described: bool) -> Iterator[MatrixPlace]:
    inside = (
        [("mlp_in", site.input)] if site.gate is None else [("mlp_in", site.gate), ("mlp_linear", site.input)]
    )
    for role, matrix in (*inside, ("mlp_out", site.output)):
        yield MatrixPlace(role, block, replace(matrix, role=role), described)
    if site.shared is not None:
        yield from _of_mlp(site.shared, block, False)


_KNOBS = {
    "score_gain": ("query", "key"),
    "key_gain": ("key",),
    "value_gain": ("value", "output"),
    "output_gain": ("output",),
    "mlp_in_gain": ("mlp_in",),
    "mlp_linear_gain": ("mlp_linear",),
    "mlp_out_gain": ("mlp_out",),
}


def with_changes(recognized: Recognized, pairs: Pairs, biases_off: bool) -> Architecture:
    """The description after the changes: every gain times the ratio of its matrices' standard deviations."""
    architecture = recognized.architecture
    ratio: dict[tuple[str, int], float] = {}
    for place, change in pairs:
        if place.described and change.old_std:
            ratio[place.role, place.block] = change.new_std / change.old_std
    knobs: dict[str, float | tuple[float, ...]] = {"mlp_bias": 0.0} if biases_off else {}
    for name, roles in _KNOBS.items():
        present = getattr(architecture, name)
        if present is None or (architecture.qk_norm and name in ("score_gain", "key_gain")):
            continue
        gains = np.broadcast_to(np.asarray(present, float), (architecture.depth,))
        factor = [
            math.prod(ratio.get((role, block), 1.0) for role in roles) for block in range(architecture.depth)
        ]
        knobs[name] = tuple(float(value) for value in gains * np.array(factor))
    return architecture.replace(**{name: _one(value) for name, value in knobs.items()})


def _one(values: float | tuple[float, ...]) -> float | tuple[float, ...]:
    """One value if the blocks agree to a per cent: the theory is faster, and the difference is sampling."""
    if isinstance(values, tuple) and max(values) - min(values) <= 0.01 * max(values):
        return float(np.mean(values))
    return values


def allowed(place: MatrixPlace, exclusions: Exclusions) -> bool:
    """Return whether a plan may write this matrix, under the name that it is listed by."""
    allowed = [exclusions.allows(name) for name in place.matrix.parameters]
    return all(allowed) and all(exclusions.first(name) for name in place.matrix.parameters)


def scheme_changes(recognized: Recognized, exclusions: Exclusions, goal: str) -> Pairs:
    """Every matrix at the standard deviation of a published scheme."""
    scheme, depth = SCHEMES[goal], recognized.architecture.depth
    pairs: Pairs = []
    for place in recognized.places():
        if allowed(place, exclusions):
            m = place.matrix
            std = scheme.std(
                MatrixSize(m.fan_in, m.fan_out, depth, place.writes, place.role in ("query", "key"))
            )
            pairs.append((place, Change(m, recognized.old_std(place), std, scheme.draw, scheme.reason)))
    return pairs


def redraws_of_copies(recognized: Recognized, exclusions: Exclusions, notes: list[str]) -> Pairs:
    """Every matrix at its own standard deviation, if the layers are copies of one another."""
    if recognized.weightless:
        return []
    first = recognized.model.get_submodule(recognized.layers.names[0])
    paths = [path for path, p in first.named_parameters() if p.ndim > 1]
    copies = copies_of_first(recognized.model, recognized.layers, paths)
    if not copies:
        return []
    notes.append(copies_in_words(copies, exclusions))
    reason = "its own values: the layers were copies of one another"
    return [
        (place, Change(place.matrix, old, old, "normal", reason))
        for place in recognized.places()
        if allowed(place, exclusions) and (old := recognized.old_std(place))
    ]


def bias_changes(recognized: Recognized, exclusions: Exclusions) -> tuple[Change, ...]:
    """Biases of the blocks' matrices that are not zero become zero."""
    if recognized.weightless:
        return ()
    names = dict.fromkeys(name for place in recognized.places() for name in place.matrix.biases)
    changes: list[Change] = []
    for name in names:
        owner, _, path = name.rpartition(".")
        changes += zero_biases(recognized.model, LayerStack((owner,), leaf=False), (path,), exclusions)
    return tuple(changes)


def embedding_changes(
    recognized: Recognized, start: tuple[float, float] | None, exclusions: Exclusions, notes: list[str]
) -> list[Change]:
    """Every table redrawn with its standard deviation over sqrt(q_0); where one is tied, all stay, with a note."""
    q = start[0] if start else recognized.architecture.embedding_norm
    if abs(math.log(q)) < 0.1:
        return []
    embeddings = recognized.sites.embeddings
    names = [f"{n}.weight" if _is_module(recognized.model, n) else n for n in embeddings]
    tied = [name for name in names if name in exclusions.ties]
    if tied:
        notes.append(
            f"{tied[0]} is also the readout: all embeddings stay as they are, and so does the logits' size."
        )
        return []
    return [_embedding_change(recognized, name, q) for name in names if exclusions.allows(name)]


def _is_module(model: nn.Module, name: str) -> bool:
    """False for a bare parameter."""
    return name in dict(model.named_modules())


def _embedding_change(recognized: Recognized, name: str, q: float) -> Change:
    parameter = recognized.model.get_parameter(name)
    fan_in = math.prod(parameter.shape[1:])
    place = Projection("embedding", (name,), fan_in, parameter.shape[0])
    if recognized.weightless:
        old = math.sqrt(recognized.architecture.embedding_norm / max(len(recognized.sites.embeddings), 1))
    else:
        old = float(in_double(parameter.detach()).square().mean().sqrt())
    owner = recognized.model.get_submodule(name.rpartition(".")[0])
    padding = getattr(owner, "padding_idx", None)
    reason = f"the first stream has mean square {q:.3g}; with this it has one"
    return Change(place, old, old / math.sqrt(q), "normal", reason, zero_row=padding)
