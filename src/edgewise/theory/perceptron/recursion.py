"""Recursions of a random perceptron at infinite width: two inputs and their gradient, and a circle of inputs.

Preactivations h^l = W^l phi(h^(l-1)) + b^l, weights of variance sw2 / fan_in, biases of variance sb2. The maps of one
layer and their limits are in `fixed_points`, the line chi_1 = 1 in `edge_of_chaos`.

The circle h(t) = sqrt(N q)(u0 cos t + u1 sin t) is stretched, bent and folded [Poole 2016, section 3]. It has one
length q at every layer, and statistics that depend on the difference of two angles only. Per neuron, with
chi_1 = sw2 E phi'^2 and chi_2 = sw2 E phi''^2 at q_l:

    metric  g' = chi_1 g,     squared curvature  k' = 3 chi_2 / chi_1^2 + k / chi_1,     g = q, k = 1/q at the input.

Both recursions hold at any length, not only at q*: the terms that E[h d2h] = -g adds to k' cancel.
Shapes: L layers after the input, A angles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import LARGEST, Array
from edgewise.errors import BadInput
from edgewise.nouns.perceptron import Perceptron
from edgewise.nouns.trace import Trace
from edgewise.theory.averages.activations import Activation, activation
from edgewise.theory.perceptron.fixed_points import chi_1, length_fixed_point, length_map, separation_map


def trace_perceptron(perceptron: Perceptron, start_overlap: float = 0.0) -> Trace:
    """Two inputs of unit length through a random perceptron, and the gradient back [Poole 2016, Schoenholz 2017]."""
    layers = _layers_in_range(perceptron)
    if layers < perceptron.depth:
        return _exploded(perceptron, layers, start_overlap)
    orbit = propagate_perceptron(perceptron, q0=1.0, c0=start_overlap)
    with np.errstate(divide="ignore"):
        log_gradient = np.log(orbit.gradient)
    return Trace(
        sites=perceptron.sites(),
        source="theory: length and correlation maps",
        norm=orbit.length[None],
        separation=orbit.separation[None],
        readouts=("token",),
        log_gradient=log_gradient[None, None],
        architecture=perceptron,
        sampled=False,
    )


def _layers_in_range(perceptron: Perceptron) -> int:
    """How many layers the length stays within the range of numbers."""
    phi, length = activation(perceptron.activation), np.asarray(1.0)
    for layer in range(perceptron.depth):
        length = length_map(phi, perceptron.weight_variance, perceptron.bias_variance, length)
        if not length < LARGEST:
            return layer
    return perceptron.depth


def _exploded(perceptron: Perceptron, layers: int, start_overlap: float) -> Trace:
    """The Trace of a perceptron whose signal leaves the range of numbers: lengths infinite from there, no gradient."""
    missing = perceptron.depth - layers
    if layers:
        orbit = propagate_perceptron(perceptron.replace(depth=layers), q0=1.0, c0=start_overlap)
        lengths, separations = orbit.length, orbit.separation
    else:
        lengths, separations = np.ones(1), np.array([1 - start_overlap])
    return Trace(
        sites=perceptron.sites(),
        source="theory: length and correlation maps, stopped where the signal leaves the range of numbers",
        norm=np.concatenate([lengths, np.full(missing, np.inf)])[None],
        separation=np.concatenate([separations, np.full(missing, separations[-1])])[None],
        architecture=perceptron,
        sampled=False,
    )


@dataclass(frozen=True)
class PerceptronOrbit:
    """Per layer, input first: length q, separation 1 - c and |g_l|^2 / |g_L|^2, each (depth + 1, ...)."""

    length: Array
    separation: Array
    gradient: Array

    @property
    def correlation(self) -> Array:
        return np.asarray(1.0 - self.separation)


def propagate_perceptron(perceptron: Perceptron, q0: ArrayLike = 1.0, c0: ArrayLike = 0.0) -> PerceptronOrbit:
    """Two inputs of equal length q0 and correlation c0 through the layers, and the gradient back.

    q' = sw2 E phi^2 + sb2,   e' = sw2 q e chord(q, e) / q',   |g_l|^2 = sw2 E phi'(q_l)^2 |g_(l+1)|^2
    """
    phi, sw2, sb2 = activation(perceptron.activation), perceptron.weight_variance, perceptron.bias_variance
    q, e = (np.array(x) for x in np.broadcast_arrays(*_start(q0, c0)))
    lengths, separations, growths = [q], [e], []
    for layer in range(1, perceptron.depth + 1):
        growths.append(chi_1(phi, sw2, q))
        e = separation_map(phi, sw2, sb2, q, e)
        q = length_map(phi, sw2, sb2, q)
        if not np.all(q < LARGEST):
            raise BadInput(
                f"the length exceeds 1e150 at layer {layer} of {perceptron.depth} (weight variance {sw2}): "
                "expected one that numbers can hold; use a smaller depth or weight variance"
            )
        lengths.append(q)
        separations.append(e)
    backward = np.cumprod(np.stack([np.ones_like(q), *growths[::-1]]), axis=0)[::-1]
    return PerceptronOrbit(np.stack(lengths), np.stack(separations), backward)


def _start(q0: ArrayLike, c0: ArrayLike) -> tuple[Array, Array]:
    q, c = np.asarray(q0, dtype=float), np.asarray(c0, dtype=float)
    if np.any(q < 0) or np.any(np.abs(c) > 1) or not np.all(np.isfinite(q)):
        raise BadInput(f"start q0 = {q}, c0 = {c}: expected a finite length q0 >= 0 and -1 <= c0 <= 1")
    return q, 1.0 - c


@dataclass(frozen=True)
class CircleOrbit:
    """A circle per layer, input first. Curvature is infinite after a kinked activation."""

    angles: Array  # (A,)
    width: int
    length: Array  # (L+1,) q
    separation: Array  # (L+1, A): 1 - autocorrelation
    metric: Array  # (L+1,) g, squared speed per neuron
    curvature: Array  # (L+1,) squared curvature k, per neuron

    @property
    def autocorrelation(self) -> Array:
        return np.asarray(1.0 - self.separation)

    @property
    def euclidean_length(self) -> Array:
        """2 pi sqrt(N g), shape (L+1,)."""
        return np.asarray(2 * np.pi * np.sqrt(self.width * self.metric))

    @property
    def grassmannian_length(self) -> Array:
        """Length of the curve of tangent directions, 2 pi sqrt(g k): 2 pi for a plane circle. Shape (L+1,)."""
        return np.asarray(2 * np.pi * np.sqrt(self.metric * self.curvature))


def propagate_circle(
    perceptron: Perceptron, angles: Array | None = None, start_length: float | None = None
) -> CircleOrbit:
    """The circle layer by layer, from length q* unless another is given."""
    phi, sw2, sb2 = activation(perceptron.activation), perceptron.weight_variance, perceptron.bias_variance
    q = _start_length(phi, perceptron) if start_length is None else float(start_length)
    t = np.linspace(-np.pi, np.pi, 129) if angles is None else np.asarray(angles, dtype=float)
    rows = [(q, 2 * np.sin(t / 2) ** 2, q, 1 / q)]
    for _ in range(perceptron.depth):
        q, e, g, k = rows[-1]
        x1, x2 = float(chi_1(phi, sw2, q)), _chi_2(phi, sw2, q)
        bent = 3 * x2 / x1**2 + k / x1 if x1 > 0 else np.inf
        following = float(length_map(phi, sw2, sb2, q))
        rows.append((following, separation_map(phi, sw2, sb2, np.full_like(e, q), e), x1 * g, bent))
    length, separation, metric, curvature = (np.asarray(column) for column in zip(*rows, strict=True))
    return CircleOrbit(t, perceptron.width, length, separation, metric, curvature)


def shallow_length_bound(kind: str | Activation, width: int, turns: int = 2) -> float:
    """Longest closed curve that one hidden layer of `width` units can make of one whose tangent turns little.

    L_E <= width * turns * range: when phi is monotone with range R and no projection of the tangent changes
    sign more than `turns` times (a circle: 2), each coordinate varies by at most turns * R in total.
    """
    phi = activation(kind)
    x = np.concatenate([-np.logspace(8, -3, 500), np.logspace(-3, 8, 500)])
    values = phi.function(x)
    bounded = np.ptp(values[[0, 200]]) + np.ptp(values[[-200, -1]]) < 1e-9 * np.ptp(values)
    if not bounded or np.any(np.diff(values) < 0):
        raise BadInput(
            f"activation {phi.name!r} is not monotone and bounded: expected one that is (tanh, erf, sigmoid), "
            "because the bound counts how often each unit can cross its range"
        )
    return float(width * turns * np.ptp(values))


def depth_beyond_shallow(perceptron: Perceptron, shallow_width: int) -> float:
    """Layers after which the circle of activations outgrows every shallow network of that width; inf if never.

    Its length at layer l is 2 pi sqrt(N q* chi_1^(l+1) / sw2), started at q*.
    """
    phi, sw2 = activation(perceptron.activation), perceptron.weight_variance
    q = _start_length(phi, perceptron)
    bound = shallow_length_bound(phi, shallow_width)
    x1 = float(chi_1(phi, sw2, q))
    first = 2 * np.pi * np.sqrt(perceptron.width * q * x1 / sw2)
    if first > bound:
        return 0.0
    return float(np.floor(2 * np.log(bound / first) / np.log(x1)) + 1) if x1 > 1 else float("inf")


def _chi_2(phi: Activation, sw2: float, q: float) -> float:
    return sw2 * float(phi.curvature_square(q)) if phi.is_smooth else float("inf")


def _start_length(phi: Activation, perceptron: Perceptron) -> float:
    q = float(length_fixed_point(phi, perceptron.weight_variance, perceptron.bias_variance))
    if not 0 < q < np.inf:
        raise BadInput(
            f"lengths of {perceptron} go to {q}: expected a finite fixed point to start the circle at; "
            "give start_length to propagate_circle, or add a bias variance"
        )
    return q
