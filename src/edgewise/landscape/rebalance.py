"""Queries and keys of equal size, the network unchanged: pictures of two softmax networks become comparable.

Logits depend on W_Q W_K^T alone, so (a W_Q, W_K / a) is the same network with another landscape. Per shared head

    a = sqrt(|W_K| / |W_Q|) ,   |W_Q| the root mean square over the query heads that share the key head,

with biases scaled alike. Exact under rotation of positions (a is one number per head) and grouped keys; not for
networks that normalize queries and keys (their length is not theirs to keep), nor for kernels of |q - k|.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.landscape.support import attentions, head_width, spread
from edgewise.models.model_map import ModelMap
from edgewise.models.names.record import KEY_NORM, QUERY_NORM, AttentionSite, Projection


def rebalanced(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of queries and keys after rebalancing, by name; the model itself is not touched."""
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
    """a for every query head and 1/a for every key head."""
    width = head_width(site)
    query, key = (_head_norms(p.weight(model), width) for p in (site.query, site.key))
    share = len(query) // len(key)
    joint = query.unflatten(0, (-1, share)).square().mean(1).sqrt()
    if bool((joint == 0).any() | (key == 0).any()):
        raise BadInput(
            f"{site.name} has a head whose queries or keys are all zero: there is nothing to balance."
        )
    a = (key / joint).sqrt()
    return a.repeat_interleave(share), 1 / a


def _head_norms(matrix: Tensor, width: int) -> Tensor:
    return matrix.detach().double().unflatten(0, (-1, width)).square().sum((1, 2)).sqrt()


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
    """Refuse when the loss did not survive: attention that is not a function of q.k (Gaussian kernels)."""
    tolerance = 1000 * torch.finfo(dtype).eps * max(1.0, abs(before))
    if not abs(after - before) <= tolerance:
        raise BadInput(
            f"rebalancing changed the loss from {before:.6g} to {after:.6g}: attention here is not a function of "
            "W_Q W_K^T (a Gaussian kernel, perhaps). Draw it without rebalance."
        )
