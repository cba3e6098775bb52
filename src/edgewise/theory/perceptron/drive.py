"""The recursion of a random perceptron at infinite width: two inputs and their gradient, and a circle of inputs.

The circle h(t) = sqrt(N q)(u0 cos t + u1 sin t) is stretched, bent and folded [Poole 2016, section 3]. It has one
length q at every layer, and statistics that depend on the difference of two angles only. Per neuron, with
chi_1 = sw2 E phi'^2 and chi_2 = sw2 E phi''^2 at q_l:

    metric  g' = chi_1 g,     squared curvature  k' = 3 chi_2 / chi_1^2 + k / chi_1,     g = q, k = 1/q at the input.

Both recursions hold at any length, not only at q*: the terms that E[h d2h] = -g adds to k' cancel.
Shapes: L layers after the input, A angles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import LARGEST, Array
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Perceptron
from edgewise.nouns.trace import Provenance, Trace
from edgewise.theory.averages.activation_averages import Activation, activation
from edgewise.theory.perceptron.edge_of_chaos import length_fixed_point
from edgewise.theory.perceptron.state import CircleOrbit, PerceptronOrbit, PerceptronState, start_state
from edgewise.theory.perceptron.step import PerceptronStep, chi_1, length_map, separation_map, step


def trace_perceptron(perceptron: Perceptron, start_overlap: float = 0.0) -> Trace:
    """Predict two inputs of unit length and the gradient back [Poole 2016, Schoenholz 2017].

    A signal that overflows is an answer: lengths are infinite from there on, and no gradient is followed.
    """
    start = start_state(1.0, start_overlap)
    steps = follow(start, perceptron)
    missing = perceptron.depth - len(steps)
    states = [start, *(step.state for step in steps)]
    with np.errstate(divide="ignore"):
        log_gradient = None if missing else np.log(pull_back(steps))[None, None]
    source = "theory: length and correlation maps"
    source += ", stopped at the layer whose signal overflows" if missing else ""
    return Trace(
        sites=perceptron.sites(),
        norm=np.array([[s.length for s in states] + [np.inf] * missing]),
        separation=np.array([[s.separation for s in states] + [states[-1].separation] * missing]),
        readouts=() if missing else ("token",),
        log_gradient=log_gradient,
        architecture=perceptron,
        provenance=Provenance(source, sampled=False),
    )


def follow(start: PerceptronState, perceptron: Perceptron) -> list[PerceptronStep]:
    """Return one step per layer, and those before the first overflow only."""
    steps: list[PerceptronStep] = []
    for _ in range(perceptron.depth):
        after = step(steps[-1].state if steps else start, perceptron)
        if not np.all(after.state.length < LARGEST):
            break
        steps.append(after)
    return steps


def pull_back(steps: list[PerceptronStep]) -> Array:
    """Return |g_l|^2 / |g_L|^2 at every layer, input first (depth + 1, ...)."""
    gradients = [np.ones_like(steps[-1].state.length)]
    for after in reversed(steps):
        gradients.append(after.pull(gradients[-1]))
    return np.stack(gradients[::-1])


def propagate_perceptron(perceptron: Perceptron, q0: ArrayLike = 1.0, c0: ArrayLike = 0.0) -> PerceptronOrbit:
    """Return the orbit of two inputs of equal length q0 and correlation c0, and the gradient back; arrays broadcast."""
    start = start_state(q0, c0)
    steps = follow(start, perceptron)
    if len(steps) < perceptron.depth:
        raise BadInput(
            f"the length exceeds 1e150 at layer {len(steps) + 1} of {perceptron.depth} (weight variance "
            f"{perceptron.weight_variance}): expected one that numbers can hold; use a smaller depth or weight variance"
        )
    states = [start, *(step.state for step in steps)]
    lengths, separations = (np.stack(column) for column in zip(*states, strict=True))
    return PerceptronOrbit(lengths, separations, pull_back(steps))


def propagate_circle(
    perceptron: Perceptron, angles: Array | None = None, start_length: float | None = None
) -> CircleOrbit:
    """Follow the circle layer by layer, from length q* unless another is given."""
    phi, sw2, sb2 = activation(perceptron.activation), perceptron.weight_variance, perceptron.bias_variance
    q = _start_length(phi, perceptron) if start_length is None else float(start_length)
    t = np.linspace(-np.pi, np.pi, 129) if angles is None else np.asarray(angles, dtype=float)
    rows = [(q, 2 * np.sin(t / 2) ** 2, q, 1 / q)]
    for _ in range(perceptron.depth):
        q, e, g, k = rows[-1]
        x1 = float(chi_1(phi, sw2, q))
        x2 = sw2 * float(phi.curvature_square(q)) if phi.is_smooth else float("inf")
        bent = 3 * (x2 / x1) / x1 + k / x1 if x1 > 0 else np.inf
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


def _start_length(phi: Activation, perceptron: Perceptron) -> float:
    q = float(length_fixed_point(phi, perceptron.weight_variance, perceptron.bias_variance))
    if not 0 < q < np.inf:
        raise BadInput(
            f"lengths of {perceptron} go to {q}: expected a finite fixed point to start the circle at; "
            "give start_length to propagate_circle, or add a bias variance"
        )
    return q
