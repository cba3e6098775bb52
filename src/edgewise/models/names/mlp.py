"""Input, gate and output matrices of a block's MLP, by shape first and by name where shapes agree."""

from __future__ import annotations

from collections.abc import Sequence

from edgewise.models.names import names
from edgewise.models.names.matrices import Matrix, container_of, projection
from edgewise.models.names.record import MLPSite, Projection, Rows

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
    """Whether bare parameters are stored (in, out): the first shape that admits one reading only decides.

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
