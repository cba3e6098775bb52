"""A plan as a Python module of its own: it needs torch and not edgewise, and writes the same bits as `initialize_`.

The functions that draw are those of `edgewise.repair.draw`, without their annotations.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.files import whole_file
from edgewise.repair import draw
from edgewise.repair.layers import _memory, _overlaps, frozen_names
from edgewise.repair.plan import Change, Plan, counting_word

_MIRRORS = ("orthogonal", "_orthogonal", "_halves", "_reflected", "_mirrored")
PARTS = {
    "normal": ("_normal",),
    "uniform": ("_uniform",),
    "zero": ("_zero",),
    "constant": ("_constant",),
    "orthogonal": ("orthogonal", "_orthogonal"),
    "delta-orthogonal": ("orthogonal", "_centred", "_delta"),
    "mirrored": _MIRRORS,
    "mirrored rows": _MIRRORS,
    "mirrored columns": _MIRRORS,
    "delta-mirrored": ("orthogonal", "_orthogonal", "_halves", "_reflected", "_centred", "_delta_mirrored"),
}
CALLS = {
    "normal": "_normal",
    "uniform": "_uniform",
    "zero": "_zero",
    "constant": "_constant",
    "orthogonal": "_orthogonal",
    "delta-orthogonal": "_delta",
    "mirrored": "_mirrored(True, True)",
    "mirrored rows": "_mirrored(True, False)",
    "mirrored columns": "_mirrored(False, True)",
    "delta-mirrored": "_delta_mirrored",
}
MODULE = '''"""{title}

    from {module} import initialize_
    initialize_(model)            # in place, before training

Frozen parameters (requires_grad=False) are {kept}.
It needs torch only. Every parameter is drawn from (seed, its name), so that order and devices do not matter.
"""

import math
import warnings
import zlib

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
    """Write the plan as a module; refused where it changes nothing."""
    if not plan.changes:
        raise BadInput("the plan changes nothing, so there is no module to write.")
    with whole_file(path) as file:
        file.write(module_text(plan, Path(path).stem, title).encode())


def module_text(plan: Plan, module: str, title: str) -> str:
    """The source of the module."""
    draws = sorted({change.draw for change in plan.changes})
    parts = [
        part for part in dict.fromkeys(p for names in PARTS.values() for p in names) if _needed(part, draws)
    ]
    return MODULE.format(
        title=textwrap.fill(title.replace('"""', "'''"), 110),
        module=module,
        changes="\n".join(f"    {row}," for row in _rows(plan.changes)),
        functions="\n\n\n".join(_source(getattr(draw, part)) for part in parts),
        frozen=plan.frozen,
        kept="written too, unless frozen=False" if plan.frozen else "kept, unless frozen=True",
        frozen_functions="\n\n\n".join(_source(part) for part in (frozen_names, _memory, _overlaps)),
        draws="\n".join(f"    {name!r}: {CALLS[name]}," for name in draws),
    )


def _needed(part: str, draws: Sequence[str]) -> bool:
    return any(part in PARTS[name] for name in draws)


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


def _stored(change: Change) -> dict[str, Any]:
    """How the parameter is stored, where that is not as (out, in)."""
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
