"""Weights that a direction moves (by role, layer, head or name pattern), and the rebalancing of queries and keys.

A mask is True where an entry moves, in a shape that broadcasts to the parameter.

Logits depend on W_Q W_K^T alone, so (a W_Q, W_K / a) is the same network with another landscape. `rebalanced` takes,
per shared head,

    a = sqrt(|W_K| / |W_Q|) ,   |W_Q| the root mean square over the query heads that share the key head,

with biases scaled alike. This is exact under rotation of positions (a is one number per head) and grouped keys, but not
for networks that normalize queries and keys, nor for kernels of |q - k|.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.models.model_map import ModelMap
from edgewise.models.names.model_sites import KEY_NORM, QUERY_NORM, AttentionSite, BlockSite, Projection

ROLES = {"queries": "query", "keys": "key", "values": "value", "outputs": "output"}


@dataclass(frozen=True)
class Along:
    """What moves: queries, keys, values, outputs (of attention), or a pattern of parameter names such as "*mlp*".

    layers  numbers of blocks, default all (blocks of a decoder count on after those of its encoder)
    heads   numbers of heads, for queries, keys and values; keys and values count their own, shared heads
    vectors whether biases and gains of norms move as well; they stay unless asked for [Li 2018]
    """

    what: str = "*"
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    vectors: bool = False

    def __str__(self) -> str:
        limits = (("layers", self.layers), ("heads", self.heads))
        parts = [f"{word} {' '.join(map(str, numbers))}" for word, numbers in limits if numbers]
        return ", ".join(["all matrices" if self.what == "*" else self.what, *parts])


def support(where: ModelMap, along: Along) -> dict[str, Tensor]:
    """Return masks of the entries that move, by parameter; raise, listing what there is, if nothing would."""
    for word, numbers in (("layers", along.layers), ("heads", along.heads)):
        if numbers is None:
            continue
        if isinstance(numbers, str) or not all(isinstance(k, int) and k >= 0 for k in numbers):
            raise BadInput(f"{word} must be whole numbers, counted from 0, got {numbers!r}.")
    masks = _of_role(where, along) if along.what in ROLES else _of_pattern(where, along)
    if not masks:
        names = [name for name, _ in where.model.named_parameters()]
        raise BadInput(
            f"{along.what!r} matches no parameter: expected one of {', '.join(ROLES)}, or a pattern of names such as "
            f"{names[0] if names else '...'!r} ({len(names)} parameters in all)."
        )
    return masks


def _of_pattern(where: ModelMap, along: Along) -> dict[str, Tensor]:
    if along.heads is not None:
        raise BadInput(
            f"heads cannot be combined with the pattern {along.what!r}; only {', '.join(ROLES)} have heads."
        )
    inside = None
    if along.layers is not None:
        inside = tuple(f"{block.name}." for block in _blocks(where, along.layers))
    matched = {
        name: p
        for name, p in where.model.named_parameters()
        if fnmatchcase(name, along.what)
        and p.is_floating_point()
        and (inside is None or name.startswith(inside))
    }
    moving = {name: p for name, p in matched.items() if along.vectors or p.ndim > 1}
    if matched and not moving:
        raise BadInput(
            f"{along.what!r} matches only vectors ({next(iter(matched))}), which stay where they are: biases and gains "
            "of norms have no filters. Give Along(..., vectors=True) to move them."
        )
    return {name: torch.ones((1,) * p.ndim, dtype=torch.bool, device=p.device) for name, p in moving.items()}


def _blocks(where: ModelMap, layers: Sequence[int] | None) -> list[BlockSite]:
    blocks = [block for stack in where.sites().stacks for block in stack.blocks]
    if layers is None:
        return blocks
    _refuse_beyond("layers", layers, len(blocks))
    return [blocks[k] for k in layers]


def _of_role(where: ModelMap, along: Along) -> dict[str, Tensor]:
    parameters = dict(where.model.named_parameters())
    masks: dict[str, Tensor] = {}
    for site in attentions(where, along.layers):
        projection: Projection = getattr(site, ROLES[along.what])
        chosen = _rows_of_heads(site, along, projection)
        for name, rows, wanted in spread(projection, chosen, parameters):
            for key, vector in ((name, False), *((b, True) for b in _bias_of(projection, name))):
                if vector and not along.vectors:
                    continue
                _mark(masks, key, parameters[key], rows[wanted], projection.transposed and not vector)
    return masks


def attentions(model: nn.Module | ModelMap, layers: Sequence[int] | None = None) -> list[AttentionSite]:
    """Return every attention of the chosen blocks, cross-attention after its block's own."""
    own = [(block.attention, block.cross_attention) for block in _blocks(ModelMap.of(model), layers)]
    return [site for pair in own for site in pair if site is not None]


def spread(
    projection: Projection, chosen: Tensor, parameters: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (parameter, its stored rows that are of this matrix, which of them are chosen).

    `chosen` is in matrix order.
    """
    names = projection.parameters
    for name, part in zip(names, chosen.chunk(len(names)), strict=True):
        p = parameters[name]
        yield name, projection.row_numbers(p.shape[-1] if projection.transposed else p.shape[0]), part


def _bias_of(projection: Projection, parameter: str) -> list[str]:
    """Return the bias of the same module as this parameter."""
    place = projection.parameters.index(parameter)
    return [projection.biases[place]] if projection.biases else []


def head_width(site: AttentionSite) -> int:
    if site.head_width is None or site.heads is None:
        raise BadInput(f"cannot tell how many heads {site.name} has; give its module an attribute num_heads.")
    return site.head_width


def _rows_of_heads(site: AttentionSite, along: Along, projection: Projection) -> Tensor:
    """(fan_out,): True for the rows of the chosen heads."""
    if along.heads is None:
        return torch.ones(projection.fan_out, dtype=torch.bool)
    if along.what == "outputs":
        raise BadInput("outputs have no heads (their rows are the stream's): use queries, keys or values.")
    width = head_width(site)
    if along.what == "values":
        assert site.heads is not None
        width = site.output.fan_in // site.heads
    count = projection.fan_out // width
    _refuse_beyond("heads", along.heads, count)
    rows = torch.zeros(count, dtype=torch.bool)
    rows[list(along.heads)] = True
    return rows.repeat_interleave(width)


def _mark(masks: dict[str, Tensor], name: str, parameter: Tensor, rows: Tensor, transposed: bool) -> None:
    dimension = parameter.ndim - 1 if transposed else 0
    shape = [parameter.shape[k] if k == dimension else 1 for k in range(parameter.ndim)]
    mask = masks.setdefault(name, torch.zeros(shape, dtype=torch.bool, device=parameter.device))
    mask.view(-1)[rows.to(parameter.device)] = True


def _refuse_beyond(word: str, numbers: Sequence[int], count: int) -> None:
    if not numbers or max(numbers) >= count:
        raise BadInput(f"{word} must be among {word} 0 to {count - 1} of this model, got {tuple(numbers)}.")


def rebalanced(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of queries and keys after rebalancing, by name; the model itself is not touched."""
    where = ModelMap(model)
    bare = where.model
    _refuse_normed(where)
    new = {name: p.detach().clone() for name, p in bare.named_parameters()}
    touched: set[str] = set()
    for site in attentions(where):
        if site.extra:
            raise BadInput(
                f"{site.name} makes keys through a latent: its logits are not a product of two matrices."
            )
        factor = _factors(bare, site)
        share = len(factor[0]) // len(factor[1])
        assert share * len(factor[1]) == len(factor[0])
        for projection, factors in ((site.query, factor[0]), (site.key, factor[1])):
            touched |= _scale(projection, factors.repeat_interleave(head_width(site)), new)
    return {name: new[name] for name in sorted(touched)}


def _factors(model: nn.Module, site: AttentionSite) -> tuple[Tensor, Tensor]:
    """Return a for every query head and 1/a for every key head."""
    width = head_width(site)
    query, key = (
        in_double(p.weight(model).detach()).unflatten(0, (-1, width)).square().sum((1, 2)).sqrt()
        for p in (site.query, site.key)
    )
    share = len(query) // len(key)
    joint = query.unflatten(0, (-1, share)).square().mean(1).sqrt()
    if bool((joint == 0).any() | (key == 0).any()):
        raise BadInput(
            f"{site.name} has a head whose queries or keys are all zero: there is nothing to balance."
        )
    a = (key / joint).sqrt()
    return a.repeat_interleave(share), 1 / a


def _scale(projection: Projection, per_row: Tensor, new: dict[str, Tensor]) -> set[str]:
    """Multiply the rows of a matrix and its biases; the names of the parameters that changed."""
    touched = set()
    for place, (name, rows, factors) in enumerate(spread(projection, per_row, new)):
        stored = new[name].transpose(-1, -2) if projection.transposed else new[name]
        stored[rows] *= factors[:, None].to(stored)
        touched.add(name)
        if projection.biases:
            bias = projection.biases[place]
            new[bias][rows] *= factors.to(new[bias])
            touched.add(bias)
    return touched


def _refuse_normed(where: ModelMap) -> None:
    for stack in where.sites().stacks:
        for block in stack.blocks:
            norms = [block.norm(role) for role in (QUERY_NORM, KEY_NORM)]
            named = any(norm is not None and norm.kind != "identity" for norm in norms)
            if named or where.norms_queries(block.attention.name):
                raise BadInput(
                    f"{block.attention.name} normalizes its queries or keys: their scale is undone, and there is "
                    "nothing to rebalance. Draw the landscape without rebalance."
                )


def check_unchanged(before: float, after: float, dtype: torch.dtype) -> None:
    """Raise if the loss changed: attention is not a function of q.k (Gaussian kernels)."""
    tolerance = 1000 * torch.finfo(dtype).eps * max(1.0, abs(before))
    if not abs(after - before) <= tolerance:
        raise BadInput(
            f"rebalancing changed the loss from {before:.6g} to {after:.6g}: attention here is not a function of "
            "W_Q W_K^T (a Gaussian kernel, perhaps). Draw it without rebalance."
        )
