"""One block of a model, taken apart by names: attention, MLP, norms, and what is left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.names import model_sites as roles
from edgewise.models.names import names
from edgewise.models.names import names as role_names
from edgewise.models.names import norm as norm_sites
from edgewise.models.names.matrices import Matrix, container_of, matrices_of, projection, stream_width
from edgewise.models.names.model_sites import AttentionSite, BlockSite, MLPSite, NormSite, Projection, Rows

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
    """The attention of a block (or its cross-attention); None if no names of queries and keys are found."""
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
    if heads and key.fan_out == query.fan_out == value.fan_out:  # the output may read more than the values
        kv_heads = heads
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
    """Return how many heads: one query matrix per head, an attribute of the attention or the block, or the config."""
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


Group = list[Matrix]


def find_mlp(name: str, matrices: Sequence[Matrix], width: int) -> MLPSite | None:
    """The MLP among the matrices that attention has left over; None if they do not make one."""
    shared = [m for m in matrices if names.any_word(names.SHARED, m.path)]
    own = [m for m in matrices if m not in shared]
    experts = [m for m in own if names.any_word(names.EXPERTS, m.path)]
    router = [m for m in own if m not in experts and names.leaf(m.path) in names.ROUTER] if experts else []
    pair = _pair(experts or own, width, mixture=bool(experts))
    if pair is None:
        return None
    beside = find_mlp(name, [_renamed(m) for m in shared], width) if shared else None
    home = container_of([*(experts or own), *router, *shared])
    return MLPSite(
        f"{name}.{home}".rstrip("."),
        pair.input,
        pair.output,
        pair.gate,
        projection("router", router[:1]) if router else None,
        beside,
    )


def _renamed(matrix: Matrix) -> Matrix:
    """The shared expert is read like any MLP once its name no longer marks it."""
    from dataclasses import replace

    return replace(matrix, path=matrix.path.replace("shared_expert", "shared"))


def _pair(matrices: Sequence[Matrix], width: int, *, mixture: bool) -> MLPSite | None:
    """Sort into matrices from the stream and back to it; a mixture has them per expert or in three dimensions."""
    groups = _grouped(matrices, mixture)
    transposed = _orientation(groups, width)
    inward: list[Group] = []
    back: list[Group] = []
    for group in groups:
        out, into = group[0].sizes(_stored(group[0], transposed))
        (back if _is_back(group[0], out, into, width, bool(inward)) else inward).append(group)
    if len(back) != 1 or not 1 <= len(inward) <= 2:
        return None
    count = _experts(groups, mixture)
    make = _Maker(transposed, count)
    output = make("output", back[0])
    gate, linear = _gate_and_linear(inward, output.fan_in, make)
    return MLPSite("", linear, output, gate) if linear else None


def _stored(matrix: Matrix, fallback: bool) -> bool:
    return fallback if matrix.transposed is None else matrix.transposed


def _experts(groups: Sequence[Group], mixture: bool) -> int:
    first = groups[0][0]
    if len(first.shape) == 3:
        return first.shape[0]
    return len(groups[0]) if mixture else 0


class _Maker:
    """Builds the projections of one MLP, all stored the same way."""

    def __init__(self, transposed: bool, experts: int) -> None:
        self.transposed, self.experts = transposed, experts

    def __call__(self, role: str, group: Group, rows: Rows | None = None) -> Projection:
        stored = _stored(group[0], self.transposed)
        return projection(role, group, rows=rows, transposed=stored, experts=self.experts)


def _grouped(matrices: Sequence[Matrix], mixture: bool) -> list[Group]:
    """One group per matrix; in a mixture one per pattern, so that the experts of a list stay together."""
    groups: dict[str, Group] = {}
    for matrix in matrices:
        groups.setdefault(matrix.pattern if mixture else matrix.path, []).append(matrix)
    return list(groups.values())


def _orientation(groups: Sequence[Group], width: int) -> bool:
    """Return whether bare parameters are stored (in, out): the first shape that admits one reading only decides.

    Three-dimensional experts: gate and up together (2 h, d) and down (d, h); d = h and d = 2 h cannot both be.
    """
    for group in groups:
        first, last = group[0].shape[-2:]
        if first == last or width not in (first, last):
            continue
        back = names.leaf(group[0].path) in ("down_proj", "wo", "w2", "down", "output")
        return (last == width) if back else (first == width)
    return False


def _is_back(matrix: Matrix, out: int, into: int, width: int, after_inward: bool) -> bool:
    """To the stream: out = d and not in = d; where both are d, the one that comes second."""
    if out == width and into == width:
        return after_inward and names.leaf(matrix.path) not in (*names.GATE, *names.LINEAR)
    return out == width


def _gate_and_linear(
    inward: Sequence[Group], hidden: int, make: _Maker
) -> tuple[Projection | None, Projection | None]:
    """(gate, linear): two matrices, or one with twice the hidden rows, or one and no gate."""
    if len(inward) == 2:
        first, second = inward
        if names.leaf(second[0].path) in names.GATE and names.leaf(first[0].path) not in names.GATE:
            first, second = second, first
        return make("gate", first), make("input", second)
    whole = make("input", inward[0])
    if whole.fan_out == hidden:
        return None, whole
    if whole.fan_out != 2 * hidden:
        return None, None
    bare = len(inward[0][0].shape) == 3 and make.transposed
    halves = _interleaved(hidden) if bare else _stacked(hidden)
    return make("gate", inward[0], halves[0]), make("input", inward[0], halves[1])


def _stacked(hidden: int) -> tuple[Rows, Rows]:
    return Rows(1, 2 * hidden, 0, hidden), Rows(1, 2 * hidden, hidden, 2 * hidden)


def _interleaved(hidden: int) -> tuple[Rows, Rows]:
    """gpt-oss, the one family that stores experts (in, out), alternates the rows of gate and up."""
    return Rows(hidden, 2, 0, 1), Rows(hidden, 2, 1, 2)


class OpenBlock:
    """A block with its matrices sorted; norms get their roles when the position is known."""

    def __init__(
        self,
        model: nn.Module,
        name: str,
        index: int,
        config: Any,
        known: tuple[AttentionSite, MLPSite | None] | None = None,
    ) -> None:
        self.name, self.index = name, index
        self.module = model.get_submodule(name)
        self.matrices = [m for m in matrices_of(self.module, name) if not _is_table(self.module, m)]
        self.norm_paths = norm_sites.find_norms(self.module)
        self.stream_norms = [p for p in self.norm_paths if norm_sites.inner_role(p) is None]
        self.width = stream_width(self.matrices, self._norm_widths())
        self.attention = known[0] if known else self._attention(config, cross=False)
        self.cross = None if known else self._attention(config, cross=True)
        self.mlp = known[1] if known else self._mlp()
        self.alone = known is not None and known[1] is None  # attention without an MLP

    def _norm_widths(self) -> list[int]:
        norms = (self.module.get_submodule(path) for path in self.stream_norms)
        pairs = ((norm, norm_sites.gain_name(norm)) for norm in norms)
        return [norm.get_parameter(gain).numel() for norm, gain in pairs if gain is not None]

    def _attention(self, config: Any, cross: bool) -> AttentionSite | None:
        return find_attention(self.module, self.name, self.matrices, self.width, config, cross=cross)

    def _mlp(self) -> MLPSite | None:
        attentions = [site for site in (self.attention, self.cross) if site is not None]
        taken = {name for site in attentions for p in site.projections for name in p.parameters}
        homes = [site.name for site in attentions if site.name != self.name]
        rest = [m for m in self.matrices if m.parameter not in taken]
        rest = [m for m in rest if not any(m.parameter.startswith(f"{home}.") for home in homes)]
        return find_mlp(self.name, rest, self.width)

    def parts(self) -> dict[str, Any]:
        """The parts by role, for the check that all blocks have the same."""
        return {"attention (query, key, value, output)": self.attention, "MLP (input, output)": self.mlp}

    def close(self, norm_roles: Mapping[str, str], parallel: bool) -> BlockSite:
        """The finished record; `norm_roles` is by path in the block."""
        if self.attention is None or (self.mlp is None and not self.alone):
            raise BadInput(f"{self.name} has no attention or no MLP that names and shapes reveal.")
        norms = tuple(
            self._norm(path, norm_roles) for path in self.norm_paths if path in norm_roles or _inner(path)
        )
        scales = tuple(f"{self.name}.{path}" for path, _ in self.module.named_parameters() if _is_scale(path))
        return BlockSite(
            self.name,
            self.index,
            self.attention,
            self.mlp,
            norms,
            None if parallel else self._middle(norms),
            self.cross,
            scales,
            self._left_over(norms, scales),
        )

    def _norm(self, path: str, norm_roles: Mapping[str, str]) -> NormSite:
        return norm_sites.site(self.module, self.name, path, _inner(path) or norm_roles[path])

    def _middle(self, norms: tuple[NormSite, ...]) -> str | None:
        """The module whose input is the stream after attention: the MLP's norm, else the MLP itself."""
        if self.mlp is None:
            return None
        before = next((norm.name for norm in norms if norm.role == roles.BEFORE_MLP), None)
        if before is not None:
            return before
        return self.mlp.name if self.mlp.name != self.name else (self.mlp.gate or self.mlp.input).module

    def _left_over(self, norms: tuple[NormSite, ...], scales: tuple[str, ...]) -> tuple[str, ...]:
        """Parameters of the block without a role."""
        sites = [s for s in (self.attention, self.cross, self.mlp) if s is not None]
        used = {name for s in sites for p in s.projections for name in (*p.parameters, *p.biases)} | {*scales}
        homes = tuple(f"{norm.name}." for norm in norms)
        full = (f"{self.name}.{path}" for path, _ in self.module.named_parameters())
        return tuple(name for name in full if name not in used and not name.startswith(homes or ("\0",)))


def _inner(path: str) -> str | None:
    return norm_sites.inner_role(path)


def _is_scale(path: str) -> bool:
    return role_names.any_word(role_names.SCALES, path)


def _is_table(block: nn.Module, matrix: Matrix) -> bool:
    """Embeddings inside a block (relative positions) are not projections."""
    from torch import nn

    return isinstance(block.get_submodule(matrix.owner), nn.Embedding)
