"""The phase diagram: exponents and phases on a grid of two knobs, with the lines on which the exponents vanish.

An axis is a knob, or a strength: one number for a branch and the skip around it, x <- sqrt(1 - a^2) x + a branch(x)
[Cowsik 2024].
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.critical.exponents import Exponents, evaluate
from edgewise.errors import BadInput, SearchBudget
from edgewise.files import Document, json_values, whole_file
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.knobs import KNOBS, Knob, refuse_unknown
from edgewise.stability.lyapunov import signs
from edgewise.theory.predict import check_start

_PAIRS = {
    "attention_strength": ("attention_skip", "attention_branch"),
    "mlp_strength": ("mlp_skip", "mlp_branch"),
}
_MEANING = "multiplier a of the branch, with sqrt(1 - a^2) on the skip around it; from 0 to 1"
AXES: dict[str, Knob] = KNOBS | {name: Knob(name, "fraction", 0.0, _MEANING) for name in _PAIRS}


def is_strength(name: str) -> bool:
    return name in _PAIRS


def as_knobs(name: str, values: Array) -> dict[str, Array]:
    """Return the knobs that an axis of a diagram moves."""
    if name not in _PAIRS:
        return {name: values}
    skip, branch = _PAIRS[name]
    return {skip: np.sqrt(1 - values**2), branch: values}


def value_of(name: str, architecture: Architecture) -> Any:
    """Return the value of a network on an axis; None if its skip and branch are not such a pair."""
    if name not in _PAIRS:
        return getattr(architecture, name)
    skip, branch = (getattr(architecture, knob) for knob in _PAIRS[name])
    if isinstance(skip, tuple) or isinstance(branch, tuple) or abs(skip**2 + branch**2 - 1) > 1e-6:
        return None
    return branch


Lines = list[Array]
WITHOUT_POSITIONS = (
    "positions (causal mask, window, RoPE, ALiBi) are left out: the diagram is of the symmetric network"
)


@dataclass(frozen=True, eq=False)
class PhaseDiagram(Exponents):
    """The exponents as arrays (y, x). phase: -1 ordered, 0 undecided, 1 chaotic.

    share, outcome: the probability of training and its band, 0 trains, 1 risky, 2 will not train; None if they were
    not asked for (`edgewise.judgement.grid` works them out).
    boundaries["angle"]: nearly identical tokens neither merge nor separate; boundaries["gradient"]: the gradient of a
    readout they share neither grows nor dies. Both over the network's own depth [Cowsik 2024].
    """

    x_name: str
    y_name: str
    x: Array
    y: Array
    phase: NDArray[np.int8]
    boundaries: Mapping[str, Lines]
    marker: tuple[float, float] | None
    architecture: Architecture
    readout: str
    start_overlap: float
    extrapolated: tuple[str, ...]
    share: Array | None = None
    outcome: NDArray[np.int8] | None = None

    def __repr__(self) -> str:
        grid = f"{len(self.x)} x {len(self.y)} networks"
        return (
            f"<PhaseDiagram {self.x_name} x {self.y_name}, {grid}; edgewise.present.phase_diagram draws it>"
        )

    def json(self) -> Document:
        """Plain lists; numbers that are not finite are null."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return dict(json_values(values | {"architecture": self.architecture.to_dict()}))

    def save(self, path: str | Path) -> None:
        """Write the data as JSON, whole or not at all."""
        with whole_file(path) as file:
            file.write(json.dumps(self.json()).encode())


def compute_diagram(
    architecture: Architecture,
    axes: Mapping[str, object],
    readout: str = "token",
    start_overlap: float = 0.0,
    budget: SearchBudget | None = None,
) -> PhaseDiagram:
    """Evaluate the simplex recursion on the whole grid; real-valued knobs at once, whole-number ones row by row."""
    check_start(start_overlap, readout)
    (x_name, x), (y_name, y) = pairs = _axes(axes)
    names = [field.name for field in fields(Exponents)]

    def rates(network: Architecture, knobs: Mapping[str, Array]) -> list[Array]:
        exponents = evaluate(network, knobs, readout, start_overlap, budget)
        return [getattr(exponents, name) for name in names]

    shaped: dict[str, Any] = dict(zip(names, over_grid(architecture, pairs, rates), strict=True))
    return PhaseDiagram(
        x_name=x_name,
        y_name=y_name,
        x=x,
        y=y,
        **shaped,
        phase=signs(shaped["near_angle"], math.sqrt(2 / (architecture.depth * architecture.width))),
        boundaries={
            "angle": zero_lines(x, y, shaped["near_angle"]),
            "gradient": zero_lines(x, y, shaped["near_gradient"]),
        },
        marker=_marker(architecture, x_name, y_name),
        architecture=architecture,
        readout=readout,
        start_overlap=start_overlap,
        extrapolated=architecture.unmodelled + (() if architecture.symmetric else (WITHOUT_POSITIONS,)),
    )


def _axes(axes: Mapping[str, object]) -> list[tuple[str, Array]]:
    if len(axes) != 2:
        raise BadInput(f"a phase diagram has two knobs, got {len(axes)} ({', '.join(axes) or 'none'}).")
    refuse_unknown(axes, AXES)
    if all(AXES[name].kind == "integer" for name in axes):
        raise BadInput(f"{' and '.join(axes)} are both whole numbers; let one axis be real-valued.")
    return [(name, _axis(name, span)) for name, span in axes.items()]


def _axis(name: str, span: object) -> Array:
    if isinstance(span, (tuple, list)) and len(span) == 3 and isinstance(span[2], int) and span[2] >= 2:
        low, high, count = span
        values = np.linspace(low, high, count)
        if AXES[name].kind == "integer":
            values = np.unique(np.rint(values))
        for value in (values[0], values[-1]):
            AXES[name].check(int(value) if AXES[name].kind == "integer" else float(value), 1)
        if (AXES[name].kind in ("number", "integer") or is_strength(name)) and low < high:
            return values
    raise BadInput(
        f"{name} = {span!r}: expected (low, high, count) of a numeric knob, low below high, count >= 2."
    )


def over_grid(
    architecture: Architecture,
    axes: Sequence[tuple[str, Array]],
    function: Callable[[Architecture, Mapping[str, Array]], Sequence[NDArray[Any]]],
) -> list[NDArray[Any]]:
    """Return each value (Y, X) of a function of (network, arrays of knobs): whole-number axes network by network."""
    (x_name, x), (y_name, y) = axes
    if AXES[x_name].kind == "integer":
        return [values.T for values in over_grid(architecture, axes[::-1], function)]
    if AXES[y_name].kind == "integer":
        rows = [function(architecture.replace(**{y_name: int(value)}), as_knobs(x_name, x)) for value in y]
        return [np.array(values) for values in zip(*rows, strict=True)]
    xs, ys = np.meshgrid(x, y)
    knobs = as_knobs(x_name, xs.ravel()) | as_knobs(y_name, ys.ravel())
    return [values.reshape(xs.shape) for values in function(architecture, knobs)]


def zero_lines(x: Array, y: Array, values: Array) -> Lines:
    """Polylines (m, 2) on which the values vanish."""
    from contourpy import contour_generator

    lines = contour_generator(x=x, y=y, z=np.ma.masked_invalid(values)).lines(0.0)
    return [np.asarray(line) for line in lines]


def _marker(architecture: Architecture, x_name: str, y_name: str) -> tuple[float, float] | None:
    x, y = value_of(x_name, architecture), value_of(y_name, architecture)
    alike = not any(isinstance(value, tuple) or value is None for value in (x, y))
    return (float(x), float(y)) if alike else None
