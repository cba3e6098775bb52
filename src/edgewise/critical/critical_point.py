"""The critical point: knob values at which both exponents vanish over this depth, or the nearest, with what is left.

A transformer's are bracketed; a perceptron's is its edge of chaos.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgewise.arrays import Array
from edgewise.critical.asymptotics import BlockMap, collapsed_norms
from edgewise.critical.exponents import evaluate, refuse_structural, totals
from edgewise.errors import BadInput, SearchBudget
from edgewise.files import Document
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.blocks import attentions
from edgewise.nouns.knobs import KNOBS, refuse_unknown
from edgewise.nouns.verdict import finite
from edgewise.stability.fixed_points import FACTORS, bracketed_root
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.perceptron.edge_of_chaos import boundary_decay
from edgewise.theory.perceptron.maps import summary
from edgewise.theory.predict import check_start

REACHED = 0.05  # a total log-change over the depth below this counts as none

Both = Callable[[Mapping[str, Array]], tuple[Array, Array]]  # knobs to (angle, gradient)


@dataclass(frozen=True)
class CriticalPoint:
    """Values of the free knobs, and what is left per block: angle of near tokens, relative gradient."""

    values: Mapping[str, float]
    angle: float
    gradient: float
    reached: bool
    note: str
    architecture: Architecture | Perceptron

    def json(self) -> Document:
        return {
            "values": dict(self.values),
            "angle": finite(self.angle),
            "gradient": finite(self.gradient),
            "reached": self.reached,
            "note": self.note,
            "architecture": self.architecture.to_dict(),
        }

    def __repr__(self) -> str:
        return f"<CriticalPoint {str(self)[:300]}>"

    def __str__(self) -> str:
        knobs = ", ".join(f"{name} = {value:.6g}" for name, value in self.values.items())
        if not knobs:
            return f"No critical point. {self.note}"
        where = "Critical at" if self.reached else "Nearest to critical at"
        left = f"angle {self.angle:+.5f}, relative gradient {self.gradient:+.5f} per block"
        return f"{where} {knobs}: {left}." + (f" {self.note}" if self.note else "")


def solve(
    network: Architecture | Perceptron,
    free: Sequence[str] | None = None,
    readout: str = "token",
    start_overlap: float = 0.0,
    budget: SearchBudget | None = None,
) -> CriticalPoint:
    """Find the values of the free knobs at which the exponents vanish.

    free: one or two knobs of a transformer, "weight_variance" of a perceptron; by default the one that matters most.
    """
    names = default_knobs(network) if free is None else tuple(free)
    check_start(start_overlap, readout)
    if isinstance(network, Perceptron):
        return edge_of_chaos(network, names, readout)
    return _transformer(network, names, readout, start_overlap, budget)


def default_knobs(network: Architecture | Perceptron) -> tuple[str, ...]:
    """Return the attention branch, which sets the gap between both exponents; without attention the MLP's input gain.

    Two free knobs would mostly find the trivial answer, branches of zero.
    """
    if isinstance(network, Perceptron):
        return ("weight_variance",)
    return ("attention_branch",) if network.heads else ("mlp_in_gain",)


def edge_of_chaos(perceptron: Perceptron, free: Sequence[str], readout: str = "token") -> CriticalPoint:
    """Return the weight variance with chi_1 = 1 at this bias variance; exponents at infinite depth [Poole 2016]."""
    if tuple(free) != ("weight_variance",) or readout != "token":
        raise BadInput(
            f"a perceptron is made critical by its weight variance, at its one readout: free must be "
            f"'weight_variance' and readout 'token', got {', '.join(free)} and {readout!r}."
        )
    variance = summary(perceptron).boundary_weight_variance
    if not math.isfinite(variance):
        note = "No weight variance gives chi_1 = 1 at this bias variance."
        return CriticalPoint({}, *_at_infinite_depth(perceptron), False, note, perceptron)
    changed = perceptron.replace(weight_variance=variance)
    note = f"Exponents are those at infinite depth; on the edge {_decay(changed)}."
    return CriticalPoint({"weight_variance": variance}, *_at_infinite_depth(changed), True, note, changed)


def _at_infinite_depth(perceptron: Perceptron) -> tuple[float, float]:
    limits = summary(perceptron)
    relative = limits.relative_gradient_exponent
    return limits.angle_exponent, math.nan if relative is None else relative


def _decay(perceptron: Perceptron) -> str:
    """Return how differences fall where no exponential decides."""
    length = summary(perceptron).length_fixed_point
    if not 0 < length < math.inf:
        return "differences change by a power of depth"
    power, amplitude = boundary_decay(activation(perceptron.activation), perceptron.weight_variance, length)
    if not math.isfinite(amplitude):
        return "differences change by a power of depth"
    return f"1 - correlation falls with the layer l as {amplitude:.3g}/l" + (f"^{power}" if power > 1 else "")


def _transformer(
    architecture: Architecture,
    free: Sequence[str],
    readout: str,
    start_overlap: float,
    budget: SearchBudget | None,
) -> CriticalPoint:
    """One free knob: the point where the larger of the two exponents is smallest. Two: angle zero, then gradient zero.

    Every root is bracketed by doubling away from the present value and closed inside its bracket.
    """
    _refuse(free)
    start = {name: _start(architecture, name) for name in free}

    def exponents(values: Mapping[str, Array]) -> tuple[Array, Array]:
        arrays = np.broadcast_arrays(*values.values())
        flat = {name: array.ravel() for name, array in zip(values, arrays, strict=True)}
        rates = evaluate(architecture, flat, readout, start_overlap, budget)
        return rates.near_angle.reshape(arrays[0].shape), rates.relative_gradient.reshape(arrays[0].shape)

    values = _one(exponents, start) if len(free) == 1 else _two(exponents, start, tuple(free))
    angle, gradient = (float(x[0]) for x in exponents({k: np.array([v]) for k, v in values.items()}))
    reached = max(abs(angle), abs(gradient)) * architecture.depth < REACHED
    changed = architecture.replace(**values)
    if not architecture.symmetric:
        point = CriticalPoint(values, angle, gradient, False, "", changed)
        return _with_positions(point, readout, start_overlap, budget)
    return CriticalPoint(values, angle, gradient, reached, _note(changed, reached), changed)


def _with_positions(
    point: CriticalPoint, readout: str, start_overlap: float, budget: SearchBudget | None
) -> CriticalPoint:
    """Return the point by the theory that knows mask and positions; the search does without, so it is only near."""
    network = point.architecture
    assert isinstance(network, Architecture)
    per_block = [total / network.depth for total in totals(network, readout, start_overlap, budget)]
    reached = max(map(abs, per_block)) * network.depth < REACHED
    note = (
        f"The search leaves out mask and positions (there angle {point.angle:+.5f}, relative gradient "
        f"{point.gradient:+.5f} are left); the numbers above are of the theory that has them."
    )
    return replace(point, angle=per_block[0], gradient=per_block[1], reached=reached, note=note)


def _refuse(free: Sequence[str]) -> None:
    if len(free) not in (1, 2) or len(set(free)) != len(free):
        raise BadInput(f"free = {list(free)!r}: name one or two different knobs.")
    refuse_unknown(free, KNOBS)
    refuse_structural(dict.fromkeys(free))


def _start(architecture: Architecture, name: str) -> float:
    value = getattr(architecture, name)
    value = float(np.mean(value)) if isinstance(value, tuple) else value
    return value if value else 1.0


def _one(exponents: Both, start: Mapping[str, float]) -> dict[str, float]:
    """Return the best of the roots of angle, gradient, their sum and their difference, and the best end of the search.

    Where the larger of two sizes is smallest, either one vanishes alone or both have the same size.
    """
    ((name, value),) = start.items()
    combinations: list[Callable[[Array, Array], Array]] = [
        lambda a, g: a,
        lambda a, g: g,
        lambda a, g: a + g,
        lambda a, g: a - g,
    ]
    candidates = list(value * FACTORS)
    for combine in combinations:
        root = bracketed_root(lambda x, f=combine: f(*exponents({name: x})), np.array([value]))  # type: ignore[misc]
        candidates += list(root[np.isfinite(root)])
    angle, gradient = exponents({name: np.array(candidates)})
    return {name: float(candidates[int(np.argmin(np.maximum(np.abs(angle), np.abs(gradient))))])}


def _two(exponents: Both, start: Mapping[str, float], free: tuple[str, ...]) -> dict[str, float]:
    """Follow the line of zero angle exponent (inner knob) to the zero of the gradient exponent (outer knob)."""
    outer, inner = free
    values = start[outer] * FACTORS[FACTORS <= 4]
    guess = np.full(len(values), start[inner])
    line = bracketed_root(
        lambda x: exponents({outer: values.reshape(-1, *[1] * (x.ndim - 1)), inner: x})[0], guess
    )
    finite_line = np.isfinite(line)
    values, line = values[finite_line], line[finite_line]
    if not len(values):
        return _one(exponents, {inner: start[inner]}) | {outer: start[outer]}
    gradient = exponents({outer: values, inner: line})[1]
    changes = np.flatnonzero(gradient[:-1] * gradient[1:] < 0)
    if not len(changes):
        best = int(np.argmin(np.abs(gradient)))
        return {outer: float(values[best]), inner: float(line[best])}
    return _close(exponents, free, values[changes[-1] :][:2], float(line[changes[-1]]))


def _close(exponents: Both, free: tuple[str, ...], bracket: Array, guess: float) -> dict[str, float]:
    """brentq in the outer knob, the inner one on its zero line."""
    outer, inner = free

    def on_line(value: float) -> float:
        at = np.array([value])
        return float(bracketed_root(lambda x: exponents({outer: at, inner: x})[0], np.array([guess]))[0])

    def gradient(value: float) -> float:
        return float(exponents({outer: np.array([value]), inner: np.array([on_line(value)])})[1][0])

    from scipy.optimize import brentq

    root = float(brentq(gradient, *bracket, rtol=1e-6))
    return {outer: root, inner: on_line(root)}


def _note(architecture: Architecture, reached: bool) -> str:
    """Return why the two exponents cannot vanish together while attention is on."""
    if reached and np.max(np.abs(architecture.attention_branch)) > 0.05:
        return ""
    attention = next(attentions(architecture.blocks[-1]), None)
    strength = attention.branch * attention.value_gain if attention else 0.0
    norms = collapsed_norms(BlockMap.of(architecture))
    if not strength:
        return "These knobs alone do not reach it; free another one."
    skip = architecture.blocks[-1][0].skip
    gap = ""
    if norms and skip:
        value = math.log1p(strength**2 / (skip**2 * norms[0]))
        gap = f" (at collapse by log(1 + branch^2 value_gain^2 / (skip^2 q*)) = {value:.4f} per block)"
    if reached:
        return "Only the limit of a small attention branch does it: these values are already in that limit."
    return (
        f"The gradient exponent of a pooled signal exceeds the angle exponent while attention is on{gap}: "
        "both vanish together only in the limit of a small attention branch; free attention_branch, or scale "
        "branches by 1/sqrt(depth)."
    )
