"""A circle of inputs through a random perceptron: how it is stretched, bent and folded  [Poole 2016, section 3].

The circle h(t) = sqrt(N q)(u0 cos t + u1 sin t) has one length q at every layer, and statistics that depend on
the difference of two angles only. Per neuron, with chi_1 = sw2 E phi'^2 and chi_2 = sw2 E phi''^2 at q_l:

    metric  g' = chi_1 g,     squared curvature  k' = 3 chi_2 / chi_1^2 + k / chi_1,     g = q, k = 1/q at the input.

Both recursions hold at any length, not only at q*: the terms that E[h d2h] = -g adds to k' cancel.
Shapes: L layers after the input, A angles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.perceptron import Perceptron
from edgewise.theory.activation.activations import Activation, activation
from edgewise.theory.perceptron.limits import chi_1, length_fixed_point, length_map, separation_map


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


def limit_curvature(perceptron: Perceptron) -> float:
    """Squared curvature of the deep circle, 3 chi_2 / (chi_1 (chi_1 - 1)) in the chaotic phase, else inf."""
    phi, sw2 = activation(perceptron.activation), perceptron.weight_variance
    q = _start_length(phi, perceptron)
    x1 = float(chi_1(phi, sw2, q))
    return 3 * _chi_2(phi, sw2, q) / (x1 * (x1 - 1)) if x1 > 1 else float("inf")


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
