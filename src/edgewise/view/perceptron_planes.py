"""Order and chaos of a random perceptron in the plane of weight and bias variance [Poole 2016, Fig. 1]."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.nouns.perceptron import Perceptron
from edgewise.theory.averages.activations import activation
from edgewise.theory.perceptron.edge_of_chaos import boundary
from edgewise.theory.perceptron.fixed_points import chi_1, length_fixed_point
from edgewise.theory.perceptron.maps import summary
from edgewise.view.panel import Curve, Map, Marker, Panel, finite_limit
from edgewise.view.sheet import Sheet

Range = tuple[float, float, int]


def perceptron_plane(
    source: Perceptron | str | Callable[..., Any],
    weight_variance: Range = (0.05, 4.0, 80),
    bias_variance: Range = (0.0, 1.0, 60),
) -> Sheet:
    """log chi_1 over (weight variance, bias variance), its zero line, and the perceptron when one is given.

    source: a Perceptron (marked in the plane), or an activation's name or function. Ranges are (low, high, count).
    """
    perceptron = source if isinstance(source, Perceptron) else None
    phi = activation(source.activation if isinstance(source, Perceptron) else source)
    x, y = _axis("weight_variance", weight_variance), _axis("bias_variance", bias_variance)
    sw2, sb2 = np.meshgrid(x, y)
    with np.errstate(divide="ignore"):
        rates = np.log(chi_1(phi, sw2, length_fixed_point(phi, sw2, sb2)))
    line = boundary(phi, largest_bias_variance=float(y[-1]))
    inside = (line[0] >= x[0]) & (line[0] <= x[-1])
    edge = Curve("χ₁ = 1, edge of chaos", line[0][inside], line[1][inside], group=6, role="boundary")
    background = Map("log χ₁: gradient growth per layer", x, y, rates, finite_limit([rates], share=70))
    panel = Panel(
        "ordered (log χ₁ < 0) and chaotic (log χ₁ > 0)",
        "weight variance σ_w²",
        "bias variance σ_b²",
        (edge,),
        _note(perceptron, line),
        background=background,
        markers=_markers(perceptron, x, y),
    )
    return Sheet(f"{_name(source)} perceptrons: order and chaos", (panel,), "theory, infinite width")


def _axis(name: str, bounds: Range) -> Array:
    low, high, count = bounds
    if not (0 <= low < high < math.inf and count >= 2):
        raise BadInput(
            f"{name} must be (low, high, count) with 0 <= low < high and count >= 2, got {bounds!r}."
        )
    return np.linspace(low, high, count)


def _name(source: Perceptron | str | Callable[..., Any]) -> str:
    phi = source.activation if isinstance(source, Perceptron) else source
    return phi if isinstance(phi, str) else getattr(phi, "__name__", "these")


def _note(perceptron: Perceptron | None, line: tuple[Array, Array]) -> str:
    if perceptron is None:
        return (
            f"edge from σ_w² = {line[0][0]:.4g} at σ_b² = {line[1][0]:g}"
            if len(line[0])
            else "no edge of chaos"
        )
    limits = summary(perceptron)
    depth = limits.trainable_depth
    reach = f"trainable to about {depth:.0f} layers" if math.isfinite(depth) else "trainable at any depth"
    return f"{perceptron.name or 'this network'}: χ₁ = {limits.chi_1:.4f}, {limits.phase}, {reach}"


def _markers(perceptron: Perceptron | None, x: Array, y: Array) -> tuple[Marker, ...]:
    if perceptron is None:
        return ()
    at = (perceptron.weight_variance, perceptron.bias_variance)
    shown = x[0] <= at[0] <= x[-1] and y[0] <= at[1] <= y[-1]
    return (Marker(perceptron.name or "this network", *at),) if shown else ()
