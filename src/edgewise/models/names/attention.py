"""Queries, keys, values and outputs of a block's attention: apart, fused, per head, or through latents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.names import names
from edgewise.models.names.matrices import Matrix, container_of, projection
from edgewise.models.names.record import AttentionSite, Projection, Rows

if TYPE_CHECKING:
    from torch import nn

MATCHES = {
    "query": names.QUERY,
    "key": names.KEY,
    "value": names.VALUE,
    "key_value": names.FUSED_KEY_VALUE,
    "fused": (*names.FUSED, *names.FUSED_BY_HEAD),
}


def find_attention(
    block: nn.Module, name: str, matrices: Sequence[Matrix], width: int, config: Any, *, cross: bool = False
) -> AttentionSite | None:
    """The attention of a block (or its cross-attention); None where no names of queries and keys are found."""
    inside = [m for m in matrices if names.any_word(names.CROSS, m.path) == cross]
    by_role = {role: [m for m in inside if names.leaf(m.path) in words] for role, words in MATCHES.items()}
    if (
        by_role["query"] and by_role["fused"]
    ):  # GPT-2's cross-attention: queries apart, the rest under the same name
        by_role["key_value"] = by_role.pop("fused")
        by_role["fused"] = []
    latent = [m for m in inside if names.leaf(m.path) in (*names.LATENT_QUERY, *names.LATENT_KEY_VALUE)]
    inward = [m for role in by_role.values() for m in role] + latent
    if not inward:
        return None
    container = container_of(inward)
    output = _output([m for m in inside if m not in inward], container, width)
    if output is None:
        return None
    heads = _heads(block, container, config, by_role["query"])
    out = projection("output", [output])
    parts = _latents(latent, by_role["query"], heads, out) if latent else _apart(by_role, heads, out, width)
    if parts is None:
        return None
    return _site(f"{name}.{container}".rstrip("."), parts, out, heads)


def _site(name: str, parts: dict[str, Projection], out: Projection, heads: int | None) -> AttentionSite:
    query, key, value = (parts.pop(role) for role in ("query", "key", "value"))
    if heads is not None and query.fan_out % heads:
        raise BadInput(f"{query.parameter} has {query.fan_out} rows, which do not divide into {heads} heads.")
    head_width = None if heads is None else query.fan_out // heads
    value_width = None if heads is None else out.fan_in // heads
    kv_heads = None if value_width is None else value.fan_out // value_width
    return AttentionSite(name, query, key, value, out, heads, kv_heads, head_width, tuple(parts.values()))


def _output(rest: Sequence[Matrix], container: str, width: int) -> Matrix | None:
    """The matrix back to the stream: by its name inside the container, else the only one that is left there."""
    near = [m for m in rest if not container or m.path.startswith(f"{container}.")]
    back = [m for m in near if len(m.shape) == 2 and width in m.shape]
    if container:
        named = [m for m in back if names.leaf(m.path) in names.OUTPUT]
        candidates = named or (back if len(back) == 1 else [])
        return candidates[0] if candidates else None
    # Written out in the block itself: only names that no MLP uses.
    plain = [m for m in back if names.leaf(m.path) in names.OUTPUT and m.path.count(".") == 0]
    return plain[0] if plain else None


def _heads(block: nn.Module, container: str, config: Any, queries: Sequence[Matrix]) -> int | None:
    """How many heads: one query matrix per head, an attribute of the attention or the block, or the config."""
    if len(queries) > 1:
        return len(queries)
    attention = block.get_submodule(container)
    for holder in (attention, *attention.children(), block, config):
        for name in names.HEADS:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _apart(
    by_role: dict[str, list[Matrix]], heads: int | None, out: Projection, width: int
) -> dict[str, Projection] | None:
    if by_role["fused"]:
        return _fused(by_role["fused"][0], heads, out, width)
    if by_role["key_value"] and by_role["query"]:
        both = by_role["key_value"][0]
        half = projection("key", [both], width_in=width).fan_out // 2
        slices = {"key": Rows(1, 2 * half, 0, half), "value": Rows(1, 2 * half, half, 2 * half)}
        pair = {role: projection(role, [both], width_in=width, rows=rows) for role, rows in slices.items()}
        return {"query": projection("query", by_role["query"], width_in=width), **pair}
    if not all(by_role[role] for role in ("query", "key", "value")):
        return None
    return {role: projection(role, by_role[role], width_in=width) for role in ("query", "key", "value")}


def _fused(matrix: Matrix, heads: int | None, out: Projection, width: int) -> dict[str, Projection]:
    """Rows (heads + 2 kv_heads) head_width; the shape gives kv_heads, the name gives the order."""
    rows, inner = projection("query", [matrix], width_in=width).fan_out, out.fan_in
    shared = (rows - inner) // 2  # rows of the keys
    by_head = names.leaf(matrix.path) in names.FUSED_BY_HEAD
    if by_head and heads is None:
        raise BadInput(f"{matrix.parameter} is fused head by head, and the number of heads was not found.")
    groups = shared // (inner // heads) if by_head and heads else 1
    if (rows - inner) % 2 or shared <= 0 or inner % groups:
        raise BadInput(
            f"{matrix.parameter} has {rows} rows beside an output matrix of fan-in {inner}; expected "
            "rows = queries + keys + values with as many keys as values."
        )
    q, k = inner // groups, shared // groups
    ends = {"query": (0, q), "key": (q, q + k), "value": (q + k, q + 2 * k)}
    return {
        role: projection(role, [matrix], width_in=width, rows=Rows(groups, q + 2 * k, *limits))
        for role, limits in ends.items()
    }


def _latents(
    latent: Sequence[Matrix], queries: Sequence[Matrix], heads: int | None, out: Projection
) -> dict[str, Projection] | None:
    """DeepSeek: latents of rank r; keys are [still | rotated], the rotated part read from the stream itself.

    Small models read their queries from the stream as well.
    """
    by = {names.leaf(m.path): m for m in latent}
    if queries:
        by["q_b_proj"] = queries[0]
    if heads is None or not {*names.LATENT_KEY_VALUE, "q_b_proj"} <= set(by):
        return None
    lower = {"query_down": projection("query_down", [by["q_a_proj"]])} if "q_a_proj" in by else {}
    down, up = by["kv_a_proj_with_mqa"], by["kv_b_proj"]
    rank, value = up.shape[1], out.fan_in // heads
    both = up.shape[0] // heads
    still = both - value
    return {
        "query": projection("query", [by["q_b_proj"]]),
        "key": projection("key", [up], rows=Rows(heads, both, 0, still)),
        "value": projection("value", [up], rows=Rows(heads, both, still, both)),
        **lower,
        "key_value_down": projection("key_value_down", [down], rows=Rows(1, down.shape[0], 0, rank)),
        "key_rotated": projection("key_rotated", [down], rows=Rows(1, down.shape[0], rank, down.shape[0])),
    }
