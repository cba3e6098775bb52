"""One perceptron's theory in one place: its maps, its limits, its orbits, its circles, its edge of chaos."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.nouns.architecture import Perceptron
from edgewise.theory.averages.activation_averages import Activation, activation
from edgewise.theory.perceptron import drive
from edgewise.theory.perceptron import edge_of_chaos as edge
from edgewise.theory.perceptron.state import CircleOrbit, PerceptronOrbit
from edgewise.theory.perceptron.step import chi_1, chi_q, correlation_map, length_map

TRAINABLE_MULTIPLE = 6.0  # of the depth scale: where MNIST and CIFAR networks stop training [Schoenholz 2017]
_ON_THE_BOUNDARY = 1e-6


@dataclass(frozen=True)
class PerceptronTheory:
    """The limits of a perceptron; scales in layers, inf on the boundary, else nan."""

    length_fixed_point: float
    correlation_fixed_point: float
    chi_1: float
    chi_q: float
    correlation_slope: float
    depth_scale_length: float
    depth_scale_correlation: float
    depth_scale_gradient: float
    phase: str
    trainable_depth: float
    boundary_weight_variance: float

    @property
    def angle_exponent(self) -> float:
        """log chi_1: the log-rate per layer of small differences, and of the squared gradient towards the input."""
        return math.log(self.chi_1) if self.chi_1 > 0 else -math.inf

    @property
    def relative_gradient_exponent(self) -> float | None:
        """The same of |g|^2 q; None if the length keeps changing, and the relative gradient with it."""
        return self.angle_exponent if 0 < self.length_fixed_point < math.inf else None


def summary(perceptron: Perceptron, q0: float = 1.0) -> PerceptronTheory:
    """Return fixed points, slopes, depth scales and phase of a perceptron whose input has length q0.

    Phase by chi_1: below 1 ordered (gradients vanish), above 1 chaotic (they explode). `length_fixed_point` is
    inf when lengths grow without bound (ReLU above sw2 = 2) and q0 when every length is fixed (ReLU at sw2 = 2).
    """
    phi = activation(perceptron.activation)
    variances = (perceptron.weight_variance, perceptron.bias_variance)
    q = edge.length_fixed_point(phi, *variances, start=q0)
    e = edge.separation_fixed_point(phi, *variances, q)
    x1, xq = float(chi_1(phi, variances[0], q)), float(chi_q(phi, variances[0], q))
    slope = float(edge.correlation_slope(phi, *variances, q, e))
    xi_c, xi_g = float(edge.depth_scale(slope)), float(edge.depth_scale(x1))
    return PerceptronTheory(
        length_fixed_point=float(q),
        correlation_fixed_point=float(1 - e),
        chi_1=x1,
        chi_q=xq,
        correlation_slope=slope,
        depth_scale_length=float(edge.depth_scale(xq)),
        depth_scale_correlation=xi_c,
        depth_scale_gradient=xi_g,
        phase="critical" if abs(x1 - 1) <= _ON_THE_BOUNDARY else "ordered" if x1 < 1 else "chaotic",
        trainable_depth=TRAINABLE_MULTIPLE * min(xi_c, xi_g),
        boundary_weight_variance=_boundary(phi, variances[1]),
    )


# sweeps of the weights ask for it at every point
_boundary = lru_cache(maxsize=256)(edge.critical_weight_variance)


@dataclass(frozen=True)
class PerceptronMaps:
    """What theory says of one random perceptron, at infinite width [Poole 2016, Schoenholz 2017]."""

    perceptron: Perceptron

    @cached_property
    def limits(self) -> PerceptronTheory:
        """Fixed points q* and c*, chi_1, depth scales and phase, from an input of length 1."""
        return summary(self.perceptron)

    def length(self, q: ArrayLike) -> Array:
        """One layer of the length map, q' = sw2 E phi^2 + sb2, shapes as q."""
        return length_map(self._phi, *self._variances, q)

    def length_fixed_points(self) -> tuple[edge.LengthFixedPoint, ...]:
        """Every solution of q' = q, with the slope there; stable when it is below 1."""
        return edge.length_fixed_points(self._phi, *self._variances)

    def correlation(self, c: ArrayLike) -> Array:
        """One layer of the correlation map at q*, c' = (sw2 E phi(u) phi(u') + sb2) / q*, shapes as c."""
        return correlation_map(self._phi, *self._variances, self.limits.length_fixed_point, c)

    def orbit(self, start_length: ArrayLike = 1.0, start_correlation: ArrayLike = 0.0) -> PerceptronOrbit:
        """Lengths, separations 1 - c and gradients of two inputs at every layer, each (depth + 1, ...)."""
        return drive.propagate_perceptron(self.perceptron, start_length, start_correlation)

    def circle(self, angles: Array | None = None, start_length: float | None = None) -> CircleOrbit:
        """Return a circle of inputs at every layer: autocorrelation, metric, curvature, both lengths; from q*."""
        return drive.propagate_circle(self.perceptron, angles, start_length)

    def shallow_length_bound(self, shallow_width: int) -> float:
        """No single hidden layer of this width makes a longer closed curve of activations from a circle."""
        return drive.shallow_length_bound(self._phi, shallow_width)

    def depth_beyond_shallow(self, shallow_width: int) -> float:
        """Layers after which this network's circle of activations is longer than that bound; inf if never."""
        return drive.depth_beyond_shallow(self.perceptron, shallow_width)

    def edge_of_chaos(self, largest_bias_variance: float = 1.0) -> tuple[Array, Array]:
        """Return the line chi_1 = 1 of this activation as (weight variances, bias variances)."""
        return edge.boundary(self._phi, largest_bias_variance)

    @property
    def _phi(self) -> Activation:
        return activation(self.perceptron.activation)

    @property
    def _variances(self) -> tuple[float, float]:
        return self.perceptron.weight_variance, self.perceptron.bias_variance
