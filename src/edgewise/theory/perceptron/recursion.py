"""The recursion of a random perceptron at infinite width: lengths and correlations forward, the gradient back.

Preactivations h^l = W^l phi(h^(l-1)) + b^l, weights of variance sw2 / fan_in, biases of variance sb2. The maps of one
layer and their limits are in `limits`, the line chi_1 = 1 in `edge_of_chaos`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import LARGEST, Array
from edgewise.errors import BadInput
from edgewise.perceptron import Perceptron
from edgewise.theory.activation.activations import activation
from edgewise.theory.perceptron.limits import chi_1, length_map, separation_map
from edgewise.trace import Trace


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
