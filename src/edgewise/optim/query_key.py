"""Queries and keys of one attention: their matrices, norms, scale and rotary positions, as the logits use them.

Shapes: x (rows, positions, d); matrices with their bias as last column (heads, d_h, d + 1).
Rotary frequencies come from the model's own table; pairs are laid out as its family does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.files import Document
from edgewise.models.config.translate import config_of
from edgewise.models.model_map import ModelMap
from edgewise.models.names.model_sites import (
    KEY_NORM,
    QUERY_NORM,
    AttentionSite,
    BlockSite,
    ModelSites,
    NormSite,
    Projection,
)

# Families whose pairs are neighbors (2j, 2j + 1); in all others j turns with j + r/2.
NEIGHBORS = frozenset(
    {
        "codegen",
        "cohere",
        "cohere2",
        "ernie4_5",
        "ernie4_5_moe",
        "glm",
        "glm4",
        "gptj",
        "helium",
        "llama4_text",
        "moonshine",
        "roformer",
    }
)
WITHOUT_TABLE = ("codegen", "gptj", "roformer")  # they keep sines and cosines only
SCALES = ("scaling", "scale", "softmax_scale", "inv_norm_factor")  # how modules call what multiplies q.k


@dataclass(frozen=True, eq=False)
class Rotation:
    """Pair j of the first r coordinates turns by position * frequency_j [Su 2021]; both vectors grow by `factor`."""

    frequencies: Tensor
    neighbors: bool
    factor: float

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (rows, heads, positions, d_h) at positions (rows, positions), turned."""
        frequencies = self.frequencies.to(x)
        turn = positions[:, None, :, None].to(x) * frequencies
        cosine, sine = turn.cos() * self.factor, turn.sin() * self.factor
        half = len(frequencies)
        moving, still = x[..., : 2 * half], x[..., 2 * half :]
        if self.neighbors:
            one, other = moving.unflatten(-1, (half, 2)).unbind(-1)
            moved = torch.stack([one * cosine - other * sine, one * sine + other * cosine], -1).flatten(-2)
        else:
            one, other = moving.chunk(2, -1)
            moved = torch.cat([one * cosine - other * sine, one * sine + other * cosine], -1)
        return torch.cat([moved, still], -1)


def rotation_of(model: nn.Module, attention: str) -> Rotation | None:
    """Return the rotation of one attention, None if the model keeps no frequencies."""
    module, config = model.get_submodule(attention), config_of(model)
    family = str(config.get("model_type", ""))
    tables = [(name, owner) for name, owner in _tables(model) if not _of_another(name, attention, model)]
    kind = getattr(module, "layer_type", getattr(module, "attention_type", _listed_kind(config, attention)))
    own = [pair for pair in tables if pair[0].startswith(f"{attention}.")]
    typed = [pair for pair in tables if kind is not None and str(kind) in pair[0]]
    chosen = own or typed or tables
    if not chosen:
        if family in WITHOUT_TABLE:
            raise BadInput(f"{family} rotates its queries and keeps no frequencies; it is not covered.")
        return None
    if (
        len({name for name, _ in chosen}) > 1
        and len({tuple(model.get_buffer(n).tolist()) for n, _ in chosen}) > 1
    ):
        raise BadInput(
            f"{attention} could rotate by {' or '.join(name for name, _ in chosen)}; it does not say which."
        )
    name, owner = chosen[0]
    factor = getattr(owner, f"{kind}_attention_scaling", getattr(owner, "attention_scaling", 1.0))
    neighbors = family in NEIGHBORS or bool(config.get("rope_interleave", False))
    return Rotation(in_double(model.get_buffer(name).detach()), neighbors, float(factor))


def _tables(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every table of frequencies, by name, with the module that owns it."""
    return [
        (f"{path}.{name}".lstrip("."), module)
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq") and "original" not in name and buffer.numel() > 0
    ]


def _of_another(name: str, attention: str, model: nn.Module) -> bool:
    """Return whether a table lies inside another block than this attention (each block may keep its own)."""
    owner = name.rpartition(".")[0]
    digits = [i for i, word in enumerate(owner.split(".")) if word.isdigit()]
    if not digits:
        return False
    block = ".".join(owner.split(".")[: digits[-1] + 1])
    return not f"{attention}.".startswith(f"{block}.") and block in dict(model.named_modules())


def _listed_kind(config: Document, attention: str) -> str | None:
    """Return the type of layer as the config lists it, by the block's number in the name."""
    number = next((int(word) for word in reversed(attention.split(".")) if word.isdigit()), None)
    listed = config.get("layer_types")
    return None if number is None or not listed or number >= len(listed) else str(listed[number])


@dataclass(frozen=True)
class Side:
    """Queries or keys: their matrix, number of heads, and norm if there is one."""

    projection: Projection
    heads: int
    norm: NormSite | None

    @property
    def norm_of_heads(self) -> bool:
        """True if the norm acts on each head, not on all together (its width tells)."""
        return self.norm is not None and self.norm.width != self.projection.fan_out

    def read(self, stored: Mapping[str, Tensor]) -> Tensor:
        """Return (heads, d_h, d + 1): the matrix, its bias (or zero) last."""
        p = self.projection
        upright = [stored[name].mT if p.transposed else stored[name] for name in p.parameters]
        matrix = torch.cat([_picked(one, p) for one in upright])
        if p.biases:
            bias = torch.cat([_picked(stored[name], p) for name in p.biases])
        else:
            bias = matrix.new_zeros(len(matrix))
        return torch.cat([matrix, bias[:, None]], 1).unflatten(0, (self.heads, -1)).float()

    def parts(self, values: Tensor, sizes: Mapping[str, int]) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield rows in the order of `read`, given back to their parameters: (name, row numbers there, values)."""
        p = self.projection
        for names in (p.parameters, p.biases):
            for name, some in zip(names, values.chunk(len(names)) if names else (), strict=True):
                numbers = torch.arange(sizes[name], device=values.device)
                yield name, _picked(numbers, p), some


@dataclass(frozen=True)
class QueryKey:
    """One attention: z = scale * q.k, with q and k normalized and rotated if the model does so."""

    name: str
    query: Side
    key: Side
    scale: float
    causal: bool
    rotation: Rotation | None
    crossed: bool  # keys come from another stream

    @property
    def share(self) -> int:
        """Query heads per key head."""
        return self.query.heads // self.key.heads

    @property
    def parameters(self) -> tuple[str, ...]:
        """Every parameter that queries or keys are made with, once each."""
        both = (self.query.projection, self.key.projection)
        return tuple(dict.fromkeys(name for p in both for name in (*p.parameters, *p.biases)))


def query_keys(model: nn.Module | ModelMap, sites: ModelSites | None = None) -> list[QueryKey]:
    """Return all attentions of a model; raise `BadInput` for one without bilinear logits.

    sites  their modules; default: by names, which also say how logits are scaled and rotated
    """
    where = ModelMap.of(model)
    bare, attentions, described = where.model, [], where.family()
    for stack in (where.named() if sites is None else sites).stacks:
        decoder = len(stack.blocks) > 0 and stack.blocks[0].cross_attention is not None
        for block in stack.blocks:
            causal = _causal(bare, block.attention, (described is not None and described.causal) or decoder)
            attentions.append(_query_key(bare, block, block.attention, causal, crossed=False))
            # A rotation or norm that the model's behavior shows and that its modules do not.
            attention = attentions[-1]
            if attention.rotation is None and where.turns(attention.name):
                raise BadInput(
                    f"{attention.name} changes its queries and keys by position, in a way that is not known here."
                )
            if attention.query.norm is None and where.norms_queries(attention.name):
                raise BadInput(
                    f"{attention.name} normalizes its queries or keys by something that is not a module."
                )
            if block.cross_attention is not None:
                attentions.append(_query_key(bare, block, block.cross_attention, False, crossed=True))
    return attentions


@dataclass(frozen=True)
class ParameterLayout:
    """How the parameters of queries and keys are stored: which are turned (in, out), how many outputs each has."""

    turned: dict[str, bool]
    outputs: dict[str, int]

    @classmethod
    def of(cls, attentions: list[QueryKey], parameters: Mapping[str, Tensor]) -> ParameterLayout:
        sides = [side.projection for a in attentions for side in (a.query, a.key)]
        turned = {n: p.transposed and n in p.parameters for p in sides for n in (*p.parameters, *p.biases)}
        return cls(turned, {n: p.shape[-1] if turned[n] else p.shape[0] for n, p in parameters.items()})

    def shaped(self, name: str, per_output: Tensor, dimensions: int) -> Tensor:
        """Return one number per output, ready to multiply the parameter."""
        if dimensions == 1:
            return per_output
        return per_output[None, :] if self.turned[name] else per_output[:, None]


def _query_key(
    model: nn.Module, block: BlockSite, site: AttentionSite, causal: bool, *, crossed: bool
) -> QueryKey:
    if site.extra:
        raise BadInput(
            f"{site.name} makes its keys through a latent; expected keys that are one matrix times the input. "
            "Optimize it with the plain optimizer."
        )
    shapes = [model.get_parameter(name).ndim for p in (site.query, site.key) for name in p.parameters]
    if any(ndim != 2 for ndim in shapes):
        raise BadInput(
            f"{site.name} keeps its queries or keys in a tensor of {max(shapes)} axes; expected matrices."
        )
    if site.heads is None or site.kv_heads is None or site.head_width is None:
        raise BadInput(
            f"{site.name} does not say how many heads it has; give its module an attribute num_heads."
        )
    kv_heads = site.key.fan_out // site.head_width
    norms = (None, None) if crossed else (block.norm(QUERY_NORM), block.norm(KEY_NORM))
    used = [norm if norm is not None and norm.kind != "identity" else None for norm in norms]
    rotation = None if crossed else rotation_of(model, site.name)
    return QueryKey(
        site.name,
        Side(site.query, site.heads, used[0]),
        Side(site.key, kv_heads, used[1]),
        _scale(model.get_submodule(site.name), site.head_width),
        causal,
        rotation,
        crossed,
    )


def _scale(attention: nn.Module, head_width: int) -> float:
    """Return what multiplies q.k, as the module says; else 1/sqrt(d_h)."""
    values = [getattr(attention, name, None) for name in SCALES]
    return float(next((s for s in values if isinstance(s, float) and s > 0), head_width**-0.5))


def _causal(model: nn.Module, site: AttentionSite, assumed: bool) -> bool:
    attention = model.get_submodule(site.name)
    values = [getattr(attention, name, None) for name in ("is_causal", "causal_only")]
    return bool(next((s for s in values if isinstance(s, bool)), assumed))


def _picked(stored: Tensor, projection: Projection) -> Tensor:
    """Return the rows of a projection out of those stored."""
    rows = projection.rows
    if rows is None:
        return stored
    return stored.unflatten(0, (rows.groups, rows.size))[:, rows.start : rows.stop].flatten(0, 1)
