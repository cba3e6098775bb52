"""New values of parameters: random matrices of a given root mean square, drawn in float32 from (seed, name).

The same seed and name give the same values, whatever the order or the shards. Shapes: a matrix is (out, in) with any
leading dimensions (experts); a filter is (out, in, *kernel).

Mirrored pairs of units make a layer linear at the start: [V; -V] makes (phi(v), phi(-v)) and [U, -U] reads
U (phi(v) - phi(-v)), exactly U v for ReLU, GELU and SiLU, twice the function for odd ones such as tanh
[Shang 2016, Balduzzi 2017]. A unit left over by an odd size has no mirror image.

Published schemes as goals: the standard deviation that each gives to a matrix, so that they can be compared.

`write_module` writes a plan as a Python module of its own, with the functions that draw, without their annotations: it
needs torch and not edgewise, and writes the same bits as `initialize_`.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.files import whole_file
from edgewise.models.names.model_sites import Projection
from edgewise.optim.parallel import whole
from edgewise.probe.geometry import rows_of
from edgewise.repair.layers import _memory, _overlaps, frozen_names
from edgewise.repair.plan import Change, Plan, counting_word


@dataclass(frozen=True)
class MatrixSize:
    """What a scheme needs to know: sizes, whether it writes into the stream, whether it makes attention scores."""

    fan_in: int
    fan_out: int
    depth: int
    writes: bool
    scores: bool


@dataclass(frozen=True)
class Scheme:
    """std of a matrix, how it is drawn, its source, and what of it weights alone cannot do."""

    std: Callable[[MatrixSize], float]
    draw: str
    reason: str
    note: Callable[[int], str] = lambda depth: ""
    zero_biases: bool = True


def _xavier(m: MatrixSize) -> float:
    return math.sqrt(2 / (m.fan_in + m.fan_out))


def _deepnorm(m: MatrixSize) -> float:
    return _xavier(m) * (1.0 if m.scores else (8 * m.depth) ** -0.25)


def _deepnorm_note(depth: int) -> str:
    return (
        f"DeepNorm also multiplies the skips by (2L)^(1/4) = {(2 * depth) ** 0.25:.3g}; the plan leaves the skips "
        "alone, so this is the half of it that weights can do."
    )


SCHEMES: dict[str, Scheme] = {
    "deepnorm": Scheme(
        _deepnorm,
        "normal",
        "DeepNorm [Wang 2022]: Xavier, times (8L)^(-1/4) but for queries and keys",
        _deepnorm_note,
    ),
    "depth-mup": Scheme(
        lambda m: (m.depth**-0.5 if m.writes else 1.0) / math.sqrt(m.fan_in),
        "normal",
        "depth-muP [Yang 2023, Bordelon 2023]: gain 1, branches over sqrt(L)",
    ),
    "gpt2": Scheme(
        lambda m: 0.02 * ((2 * m.depth) ** -0.5 if m.writes else 1.0),
        "normal",
        "GPT-2 [Radford 2019]: 0.02, branches over sqrt(2L)",
    ),
    "xavier": Scheme(_xavier, "normal", "Xavier [Glorot 2010]: 2 / (fan_in + fan_out)"),
    "torch": Scheme(
        lambda m: 1 / math.sqrt(3 * m.fan_in),
        "uniform",
        "torch.nn.Linear: uniform within 1/sqrt(fan_in)",
        zero_biases=False,
    ),
    "orthogonal": Scheme(
        lambda m: 1 / math.sqrt(m.fan_in),
        "orthogonal",
        "orthogonal [Saxe 2014], delta-orthogonal filters [Xiao 2018]",
    ),
}
GOALS = ("critical", *SCHEMES)


def refuse_goal(goal: str) -> None:
    if goal not in GOALS:
        raise BadInput(f"goal must be one of {', '.join(GOALS)}, got {goal!r}.")


Draw = Callable[[tuple[int, ...], float, torch.Generator, int], Tensor]
# phi(v) - phi(-v) = v for these, whatever the size of v, and 2 phi(v) for those
LINEAR = ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu")
ODD = ("tanh", "erf", "linear")


def draw(
    kind: str, shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int = 1
) -> Tensor:
    """A tensor of this shape with root mean square `std`, on the CPU."""
    if kind not in DRAWS:
        raise BadInput(f"draw must be one of {', '.join(DRAWS)}, got {kind!r}.")
    return DRAWS[kind](shape, std, generator, groups)


def _normal(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return torch.randn(shape, generator=generator) * std


def _uniform(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return (2 * torch.rand(shape, generator=generator) - 1) * (std * math.sqrt(3))


def orthogonal(rows: int, columns: int, generator: torch.Generator, copies: tuple[int, ...] = ()) -> Tensor:
    """Haar orthonormal rows or columns, whichever are fewer: Q of a Gaussian matrix, signs from R [Mezzadri 2007]."""
    long, short = max(rows, columns), min(rows, columns)
    q, r = torch.linalg.qr(torch.randn((*copies, long, short), generator=generator))
    q = q * torch.diagonal(r, dim1=-2, dim2=-1).sign()[..., None, :]
    return q if rows >= columns else q.transpose(-1, -2)


def _orthogonal(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    """W W^T or W^T W proportional to one; entries have root mean square std [Saxe 2014]."""
    *copies, rows, columns = shape
    return orthogonal(rows, columns, generator, tuple(copies)) * (std * math.sqrt(max(rows, columns)))


def _delta(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:
    """Zero but for the center of the kernel, which is orthogonal, per group [Xiao 2018]: an isometry of images."""
    rows, columns, *kernel = shape
    centre = orthogonal(rows // groups, columns, generator, (groups,)).reshape(rows, columns)
    return _centred(centre, kernel) * (std * math.sqrt(max(rows // groups, columns) * math.prod(kernel)))


def _centred(centre: Tensor, kernel: Sequence[int]) -> Tensor:
    """A filter that is this matrix in the center of its kernel and zero elsewhere."""
    values = torch.zeros((*centre.shape, *kernel))
    middle: tuple[Any, ...] = (..., *(size // 2 for size in kernel))
    values[middle] = centre
    return values


def _halves(out: int, into: int, rows: bool, columns: bool) -> tuple[int, int]:
    """The shape of the part that is random."""
    return (out + 1) // 2 if rows else out, (into + 1) // 2 if columns else into


def _reflected(part: Tensor, out: int, into: int) -> Tensor:
    """The part with its negatives beside and below it, cut to (..., out, into)."""
    wide = torch.cat([part, -part], -1)[..., :into]
    return torch.cat([wide, -wide], -2)[..., :out, :]


def _mirrored(
    rows: bool, columns: bool, shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int
) -> Tensor:
    """An orthogonal matrix with its negatives below (rows), beside (columns), or both."""
    *copies, out, into = shape
    part = _orthogonal((*copies, *_halves(out, into, rows, columns)), std, generator, groups)
    return _reflected(part, out, into)


def _delta_mirrored(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:
    """A filter whose center is mirrored in rows and columns, per group."""
    rows, columns, *kernel = shape
    part = (groups, *_halves(rows // groups, columns, True, True))
    half = _orthogonal(part, std * math.sqrt(math.prod(kernel)), generator, 1)
    return _centred(_reflected(half, rows // groups, columns).reshape(rows, columns), kernel)


def _zero(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return torch.zeros(shape)


def _constant(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return torch.full(shape, std)


DRAWS: dict[str, Draw] = {
    "normal": _normal,
    "uniform": _uniform,
    "orthogonal": _orthogonal,
    "delta-orthogonal": _delta,
    "zero": _zero,
    "constant": _constant,
    "mirrored": partial(_mirrored, True, True),
    "mirrored rows": partial(_mirrored, True, False),
    "mirrored columns": partial(_mirrored, False, True),
    "delta-mirrored": _delta_mirrored,
}


def new_values(model: nn.Module, changes: Sequence[Change], seed: int) -> Iterator[tuple[str, Tensor]]:
    """(name, its new values in float32, whole) for every parameter; rows without a change stay as they are."""
    by_name: dict[str, list[Change]] = {}
    for change in changes:
        for name in change.projection.parameters:
            by_name.setdefault(name, []).append(change)
    for name, listed in by_name.items():
        yield name, _parameter(model.get_parameter(name), name, listed, seed)


def _parameter(parameter: Tensor, name: str, listed: Sequence[Change], seed: int) -> Tensor:
    if any(change.projection.rows is not None or change.projection.index is not None for change in listed):
        values = whole(parameter).float().clone()
    else:
        values = torch.empty(parameter.shape)
    for change in listed:
        part = rows_of(values, change.projection)
        index = change.projection.index  # of a layer, in a parameter that holds all
        key = f"{seed}/{name}/{change.role}" + ("" if index is None else f"/{index}")
        generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        shape = tuple(part.shape)
        if change.projection.rows is not None:  # joined: an orthogonal matrix is orthogonal as a whole
            *front, blocks, rows, columns = shape
            shape = (*front, blocks * rows, columns)
        fresh = draw(change.draw, shape, change.new_std, generator, change.groups) - change.offset
        part.copy_(fresh.reshape(part.shape))
        if change.zero_row is not None:
            values[change.zero_row] = 0.0
    return values


def root_mean_square(parameter: Tensor, projection: Projection) -> float:
    part = rows_of(parameter.detach(), projection)
    return float(in_double(part).square().mean().sqrt())


MODULE = '''"""{title}

    from {module} import initialize_
    initialize_(model)            # in place, before training

Frozen parameters (requires_grad=False) are {kept}.
It needs torch only. Every parameter is drawn from (seed, its name), so that order and devices do not matter.
"""

import math
import warnings
import zlib
from functools import partial

import torch


def names(pattern, numbers):
    """The same parameter of several blocks."""
    return [pattern.format(number) for number in numbers]


# parameters, role, draw, standard deviation, how it is stored
CHANGES = [
{changes}
]


@torch.no_grad()
def initialize_(model, seed=0, frozen={frozen}):
    """Write the planned values into the model, in place; the same seed writes the same values.

    frozen: whether parameters with requires_grad=False are written too.
    """
    kept = set() if frozen else frozen_names(model)
    left = [name for change in CHANGES for name in change[0] if name in kept]
    if left:
        warnings.warn(f"{{len(left)}} frozen parameters stay as they are: {{', '.join(left)}}", stacklevel=2)
    for parameters, role, draw, std, stored in CHANGES:
        for name in parameters:
            if name in kept:
                continue
            parameter = model.get_parameter(name)
            key = f"{{seed}}/{{name}}/{{role}}" + (f"/{{stored['index']}}" if "index" in stored else "")
            generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
            part = _part(parameter, stored)
            shape = _shape(part, stored.get("rows"))
            values = DRAWS[draw](shape, std, generator, stored.get("groups", 1)) - stored.get("offset", 0.0)
            part.copy_(values.reshape(part.shape))
            if "zero_row" in stored:
                parameter[stored["zero_row"]] = 0.0
    return model


{frozen_functions}


def _part(parameter, stored):
    """The rows of a fused matrix, as (..., groups, rows, in); of a parameter that holds all layers, one of them."""
    matrix = parameter[stored["index"]] if "index" in stored else parameter
    if "split" in stored or ("index" in stored and matrix.dim() > 2):
        matrix = matrix.flatten(0, stored.get("split", 1) - 1).flatten(1)
    matrix = matrix.transpose(-1, -2) if stored.get("transposed") else matrix
    if "rows" not in stored:
        return matrix
    groups, size, start, stop = stored["rows"]
    return matrix.unflatten(-2, (groups, size)).narrow(-2, start, stop - start)


def _shape(part, rows):
    if rows is None:
        return tuple(part.shape)
    *front, groups, count, columns = part.shape
    return (*front, groups * count, columns)


{functions}


DRAWS = {{
{draws}
}}
'''


def write_module(plan: Plan, path: str | Path, title: str) -> None:
    """Write the plan as a module; raise if it changes nothing."""
    if not plan.changes:
        raise BadInput("the plan changes nothing, so a module would be empty.")
    with whole_file(path) as file:
        file.write(module_text(plan, Path(path).stem, title).encode())


def module_text(plan: Plan, module: str, title: str) -> str:
    """The source of the module."""
    draws = {kind: DRAWS[kind] for kind in sorted({change.draw for change in plan.changes})}
    calls = {
        kind: f"partial({call.func.__name__}, {', '.join(map(repr, call.args))})"
        if isinstance(call, partial)
        else call.__name__
        for kind, call in draws.items()
    }
    needed: dict[str, Callable[..., Any]] = {}
    for call in draws.values():
        _collect(call.func if isinstance(call, partial) else call, needed)
    return MODULE.format(
        title=textwrap.fill(title.replace('"""', "'''"), 110),
        module=module,
        changes="\n".join(f"    {row}," for row in _rows(plan.changes)),
        functions="\n\n\n".join(map(_source, needed.values())),
        frozen=plan.frozen,
        kept="written too, unless frozen=False" if plan.frozen else "kept, unless frozen=True",
        frozen_functions="\n\n\n".join(_source(part) for part in (frozen_names, _memory, _overlaps)),
        draws="\n".join(f"    {kind!r}: {call}," for kind, call in calls.items()),
    )


def _collect(function: Callable[..., Any], into: dict[str, Callable[..., Any]]) -> None:
    """Add a function of this module, after those that it calls."""
    for name in function.__code__.co_names:
        if inspect.isfunction(other := globals().get(name)) and other.__module__ == __name__:
            _collect(other, into)
    into[function.__name__] = function


def _source(function: Callable[..., Any]) -> str:
    """A function as it stands in edgewise, without annotations and comments."""
    tree = ast.parse(inspect.getsource(function))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
    return ast.unparse(_Plain().visit(tree))


class _Plain(ast.NodeTransformer):
    """Assignments without annotations."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        assert node.value is not None
        return ast.copy_location(ast.Assign([node.target], node.value, lineno=node.lineno), node)


def _rows(changes: Sequence[Change]) -> list[str]:
    """One row for the parameters that differ in the number of their block only."""
    names = [name for change in changes for name in change.projection.parameters]
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    places = {name: counting_word(group) for group in alike.values() for name in group}
    groups: dict[tuple[Any, ...], list[str]] = {}
    for change in changes:
        for name in change.projection.parameters:
            how = (change.role, change.draw, change.new_std, tuple(_stored(change).items()))
            groups.setdefault((_pattern(name, places[name]), *how), []).append(name)
    return [
        f"({_names(pattern, listed)}, {role!r}, {kind!r}, {std!r}, {dict(stored)!r})"
        for (pattern, role, kind, std, stored), listed in groups.items()
    ]


def _pattern(name: str, place: int | None) -> str:
    words = name.split(".")
    return name if place is None else ".".join([*words[:place], "{}", *words[place + 1 :]])


def _names(pattern: str, listed: Sequence[str]) -> str:
    """`names("layers.{}.w", range(0, 24))` for several, a list for one."""
    if len(listed) == 1:
        return repr(list(listed))
    place = pattern.split(".").index("{}")
    numbers = [int(name.split(".")[place]) for name in listed]
    run = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"names({pattern!r}, {f'range({numbers[0]}, {numbers[-1] + 1})' if run else numbers})"


def _stored(change: Change) -> dict[str, object]:
    """Return how the parameter is stored, if that is not as (out, in)."""
    place, rows = change.projection, change.projection.rows
    values = {
        "transposed": place.transposed,
        "rows": None if rows is None else (rows.groups, rows.size, rows.start, rows.stop),
        "groups": change.groups if change.groups > 1 else None,
        "zero_row": change.zero_row,
        "offset": change.offset,
        "index": place.index,
        "split": place.split if place.split > 1 else None,
    }
    return {
        name: value
        for name, value in values.items()
        if value or (name in ("zero_row", "index") and value is not None)
    }
