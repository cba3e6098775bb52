"""Random perceptrons at infinite width: what happens layer by layer, and where it ends.

Preactivations h^l = W^l phi(h^(l-1)) + b^l, weights of variance sw2 / fan_in, biases of variance sb2.
The maps are in `perceptron_limits`, the line chi_1 = 1 in `edge_of_chaos`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.perceptron import Perceptron
from edgewise.theory.activation.activations import activation
from edgewise.theory.perceptron.edge_of_chaos import boundary, boundary_decay, critical_weight_variance
from edgewise.theory.perceptron.limits import (
    LengthFixedPoint,
    chi_1,
    chi_q,
    correlation_fixed_point,
    correlation_map,
    correlation_slope,
    depth_scale,
    length_fixed_point,
    length_fixed_points,
    length_map,
    separation_fixed_point,
    separation_map,
)

__all__ = [
    "length_map", "correlation_map", "separation_map",
    "length_fixed_point", "length_fixed_points", "LengthFixedPoint",
    "correlation_fixed_point", "separation_fixed_point", "correlation_slope",
    "chi_1", "chi_q", "depth_scale",
    "critical_weight_variance", "boundary", "boundary_decay",
    "PerceptronOrbit", "propagate_perceptron", "PerceptronTheory", "summary",
]  # fmt: skip

TRAINABLE_MULTIPLE = (
    6.0  # fitted: the contour at which MNIST and CIFAR networks stop training [Schoenholz 2017]
)
_ON_THE_BOUNDARY = 1e-6


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
        if not np.all(q < 1e150):
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
class PerceptronTheory:
    """The limits of a perceptron; scales in layers, inf on the boundary, nan where there is no such thing."""

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


def summary(perceptron: Perceptron, q0: float = 1.0) -> PerceptronTheory:
    """Fixed points, slopes, depth scales and phase of a perceptron whose input has length q0.

    Phase by chi_1: below 1 ordered (gradients vanish), above 1 chaotic (they explode). `length_fixed_point` is
    inf when lengths grow for ever (ReLU above sw2 = 2) and q0 when every length is fixed (ReLU at sw2 = 2).
    """
    phi = activation(perceptron.activation)
    variances = (perceptron.weight_variance, perceptron.bias_variance)
    q = length_fixed_point(phi, *variances, start=q0)
    e = separation_fixed_point(phi, *variances, q)
    x1, xq = float(chi_1(phi, variances[0], q)), float(chi_q(phi, variances[0], q))
    slope = float(correlation_slope(phi, *variances, q, e))
    xi_c, xi_g = float(depth_scale(slope)), float(depth_scale(x1))
    return PerceptronTheory(
        length_fixed_point=float(q),
        correlation_fixed_point=float(1 - e),
        chi_1=x1,
        chi_q=xq,
        correlation_slope=slope,
        depth_scale_length=float(depth_scale(xq)),
        depth_scale_correlation=xi_c,
        depth_scale_gradient=xi_g,
        phase=_phase(x1),
        trainable_depth=TRAINABLE_MULTIPLE * min(xi_c, xi_g),
        boundary_weight_variance=critical_weight_variance(phi, variances[1]),
    )


def _phase(growth: float) -> str:
    if abs(growth - 1) <= _ON_THE_BOUNDARY:
        return "critical"
    return "ordered" if growth < 1 else "chaotic"
