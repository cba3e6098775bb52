"""One perceptron's theory in one place: its maps, its limits, its orbits, its circles, its line of criticality."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.perceptron import Perceptron
from edgewise.theory.activation.activations import Activation, activation
from edgewise.theory.perceptron import limits as layer
from edgewise.theory.perceptron import manifold
from edgewise.theory.perceptron.edge_of_chaos import boundary
from edgewise.theory.perceptron.limits import LengthFixedPoint
from edgewise.theory.perceptron.manifold import CircleOrbit
from edgewise.theory.perceptron.recursion import (
    PerceptronOrbit,
    PerceptronTheory,
    propagate_perceptron,
    summary,
)


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
        return layer.length_map(self._phi, *self._variances, q)

    def length_fixed_points(self) -> tuple[LengthFixedPoint, ...]:
        """Every solution of q' = q, with the slope there; stable when it is below 1."""
        return layer.length_fixed_points(self._phi, *self._variances)

    def correlation(self, c: ArrayLike) -> Array:
        """One layer of the correlation map at q*, c' = (sw2 E phi(u) phi(u') + sb2) / q*, shapes as c."""
        return layer.correlation_map(self._phi, *self._variances, self.limits.length_fixed_point, c)

    def orbit(self, start_length: ArrayLike = 1.0, start_correlation: ArrayLike = 0.0) -> PerceptronOrbit:
        """Lengths, separations 1 - c and gradients of two inputs at every layer, each (depth + 1, ...)."""
        return propagate_perceptron(self.perceptron, start_length, start_correlation)

    def circle(self, angles: Array | None = None, start_length: float | None = None) -> CircleOrbit:
        """A circle of inputs at every layer: autocorrelation, metric, curvature, both lengths; from q*."""
        return manifold.propagate_circle(self.perceptron, angles, start_length)

    def limit_curvature(self) -> float:
        """Squared curvature per neuron of the deep circle in the chaotic phase, else inf."""
        return manifold.limit_curvature(self.perceptron)

    def shallow_length_bound(self, shallow_width: int) -> float:
        """No single hidden layer of this width makes a longer closed curve of activations from a circle."""
        return manifold.shallow_length_bound(self._phi, shallow_width)

    def depth_beyond_shallow(self, shallow_width: int) -> float:
        """Layers after which this network's circle of activations is longer than that bound; inf if never."""
        return manifold.depth_beyond_shallow(self.perceptron, shallow_width)

    def edge_of_chaos(self, largest_bias_variance: float = 1.0) -> tuple[Array, Array]:
        """The line chi_1 = 1 of this activation as (weight variances, bias variances)."""
        return boundary(self._phi, largest_bias_variance)

    @property
    def _phi(self) -> Activation:
        return activation(self.perceptron.activation)

    @property
    def _variances(self) -> tuple[float, float]:
        return self.perceptron.weight_variance, self.perceptron.bias_variance
