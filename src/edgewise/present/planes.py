"""Phase diagrams and flows as figure data: exponents over two knobs, and what one block does to (norm, overlap)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.nouns.figure import Arrows, Curve, Map, Marker, Panel, Sheet, finite_limit
from edgewise.nouns.perceptron import Perceptron
from edgewise.nouns.verdict import FixedPoint
from edgewise.theory.averages.activations import activation
from edgewise.theory.perceptron.edge_of_chaos import boundary, length_fixed_point
from edgewise.theory.perceptron.maps import summary
from edgewise.theory.perceptron.step import chi_1

if TYPE_CHECKING:
    from edgewise.critical.phase_diagram import PhaseDiagram
    from edgewise.critical.stream_flow import VectorField

OUTCOME_NAMES = ("trains", "risky", "will not train")
EDGES = {"angle": "angle exponent 0", "gradient": "gradient exponent 0"}


def phase_diagram(diagram: PhaseDiagram) -> Sheet:
    """Three planes: both exponents of nearly identical tokens, and the network's own outcome with both edges."""
    if diagram.outcome is None:
        raise BadInput("this diagram was not judged; edgewise.phase_diagram makes one that is.")
    limit = finite_limit([diagram.near_angle, diagram.near_gradient])
    angle = Map("log-rate per block", diagram.x, diagram.y, diagram.near_angle, limit)
    gradient = Map("log-rate per block", diagram.x, diagram.y, diagram.near_gradient, limit)
    outcome = Map("", diagram.x, diagram.y, np.asarray(diagram.outcome, float), classes=OUTCOME_NAMES)
    panels = (
        _panel(
            diagram,
            "angle exponent of near tokens",
            angle,
            ("angle",),
            _at_marker(diagram, diagram.near_angle),
        ),
        _panel(
            diagram,
            "gradient exponent of near tokens",
            gradient,
            ("gradient",),
            _at_marker(diagram, diagram.near_gradient),
        ),
        _panel(diagram, "outcome", outcome, ("angle", "gradient"), _shares(diagram.outcome)),
    )
    return Sheet(_title(diagram), panels, _scale(diagram))


def _panel(diagram: PhaseDiagram, title: str, background: Map, edges: tuple[str, ...], note: str) -> Panel:
    curves = tuple(_edge(name, line) for name in edges for line in diagram.boundaries.get(name, ()))
    markers = () if diagram.marker is None else (Marker(_name(diagram), *diagram.marker),)
    return Panel(
        title,
        words(diagram.x_name),
        words(diagram.y_name),
        curves,
        note,
        background=background,
        markers=markers,
        log_x=geometric(diagram.x),
        log_y=geometric(diagram.y),
    )


def _edge(name: str, line: Array) -> Curve:
    group, role = {"angle": (6, "boundary"), "gradient": (2, "second_boundary")}[name]
    return Curve(EDGES[name], line[:, 0], line[:, 1], group, role)


def _at_marker(diagram: PhaseDiagram, values: Array) -> str:
    """The number at the grid point nearest to the given network."""
    if diagram.marker is None:
        return f"from {np.nanmin(values):+.3f} to {np.nanmax(values):+.3f} per block"
    column = int(np.argmin(np.abs(diagram.x - diagram.marker[0])))
    row = int(np.argmin(np.abs(diagram.y - diagram.marker[1])))
    return f"{_name(diagram)}: {values[row, column]:+.3f} per block"


def _shares(outcome: NDArray[np.int8]) -> str:
    parts = [f"{name} {np.mean(outcome == k):.0%}" for k, name in enumerate(OUTCOME_NAMES)]
    return ", ".join(parts)


def _name(diagram: PhaseDiagram) -> str:
    return diagram.architecture.name or "this network"


def _title(diagram: PhaseDiagram) -> str:
    return f"{_name(diagram)}, {diagram.architecture.depth} blocks: where it trains"


def _scale(diagram: PhaseDiagram) -> str:
    grid = f"{len(diagram.x)} × {len(diagram.y)} networks"
    size = f"n = {diagram.architecture.tokens:,} tokens, d = {diagram.architecture.width:,}"
    return f"theory, {size}, {grid}" + (" (extrapolated)" if diagram.extrapolated else "")


def words(knob: str) -> str:
    return knob.replace("_", " ")


def geometric(values: Array) -> bool:
    """True when the values step by a constant factor, so that a logarithmic axis shows them evenly."""
    if len(values) < 3 or not (values > 0).all():
        return False
    return bool(np.ptp(np.diff(np.log(values))) < 1e-6 * np.ptp(np.log(values)))


def vector_field(field: VectorField, title: str = "") -> Sheet:
    """Arrows of unit length point where one block moves (norm, overlap); their colour says how far."""
    panel = Panel(
        "",
        "q, mean square per coordinate",
        "overlap (mean cosine)",
        _orbits(field),
        _note(field),
        log_x=True,
        arrows=_arrows(field),
        markers=tuple(_marker(point) for point in field.fixed_points),
    )
    network = field.architecture
    default = f"{network.name or 'this network'}: what one block does to norm and overlap"
    return Sheet(title or default, (panel,), f"theory, n = {network.tokens:,} tokens, d = {network.width:,}")


def _arrows(field: VectorField) -> Arrows:
    """Directions in fractions of the axes, so that an arrow points where the eye sees it point."""
    u = field.d_log_norm / max(np.ptp(np.log(field.norm)), 1e-12)
    v = field.d_overlap / max(np.ptp(field.overlap), 1e-12)
    length = np.hypot(u, v)
    safe = np.where(length > 0, length, 1.0)
    speed = np.hypot(field.d_log_norm, field.d_overlap)
    label = "step of one block, |Δ(log q, overlap)|"
    return Arrows(field.norm, field.overlap, u / safe, v / safe, speed, label)


def _orbits(field: VectorField) -> tuple[Curve, ...]:
    orbits = enumerate(field.trajectories)
    return tuple(Curve(f"from overlap {o[0, 1]:.2g}", o[:, 0], o[:, 1], 1 + i, "orbit") for i, o in orbits)


def _marker(point: FixedPoint) -> Marker:
    role = "stable" if point.stable else "unstable"
    return Marker(f"{role} fixed point", point.norm, point.overlap, role)


def _note(field: VectorField) -> str:
    if not field.fixed_points:
        return "no fixed point: the stream grows without bound"
    return "\n".join(
        f"{'stable' if p.stable else 'unstable'} at q = {p.norm:.3g}, overlap {p.overlap:.4g}, "
        f"eigenvalues {p.eigenvalues[0]:.3f}, {p.eigenvalues[1]:.3f}"
        for p in field.fixed_points
    )


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
    x, y = _variances("weight_variance", weight_variance), _variances("bias_variance", bias_variance)
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
        _perceptron_note(perceptron, line),
        background=background,
        markers=_markers(perceptron, x, y),
    )
    return Sheet(
        f"{_perceptron_name(source)} perceptrons: order and chaos", (panel,), "theory, infinite width"
    )


def _variances(name: str, bounds: Range) -> Array:
    low, high, count = bounds
    if not (0 <= low < high < math.inf and count >= 2):
        raise BadInput(
            f"{name} must be (low, high, count) with 0 <= low < high and count >= 2, got {bounds!r}."
        )
    return np.linspace(low, high, count)


def _perceptron_name(source: Perceptron | str | Callable[..., Any]) -> str:
    phi = source.activation if isinstance(source, Perceptron) else source
    return phi if isinstance(phi, str) else getattr(phi, "__name__", "these")


def _perceptron_note(perceptron: Perceptron | None, line: tuple[Array, Array]) -> str:
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
