"""Architecture to Trace: the simplex recursion where it is exact, the Gram recursion where it is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from edgewise.architecture import Architecture
from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.perceptron import Perceptron
from edgewise.theory.activation.activations import activation
from edgewise.theory.perceptron.recursion import length_map, propagate_perceptron
from edgewise.theory.simplex.closures import closure_named
from edgewise.theory.simplex.recursion import READOUTS, Setting, backward, forward, output_gradient
from edgewise.theory.simplex.state import Gradient, Simplex, Step
from edgewise.trace import Trace

LARGEST = 1e150  # of a stream's mean square: beyond it products overflow double precision
_STATED = {"exact": "exact at finite length"}
SHARP = 1 / 8  # logit variance per head width from which exponents were seen off by more than 0.015 a block
WEIGHTS = ("query", "key", "value", "output", "mlp_in", "mlp_linear", "mlp_out")


def predict_transformer(
    architecture: Architecture,
    start: ArrayLike | None = None,
    start_norm: float | None = None,
    start_overlap: float = 0.0,
    readout: str = "token",
    progress: Callable[[float], None] | None = None,
    closure: str = "exact",
) -> Trace:
    """The orbit of a described transformer; `start` is an input Gram matrix (tokens, tokens), x_a.x_b / width."""
    refuse_start(start_overlap, readout)
    if start is not None and start_overlap:
        raise BadInput("both start and start_overlap were given; the start says it all: leave start_overlap out.")
    if start_norm is not None:
        architecture = architecture.replace(embedding_norm=start_norm)
    if start is None and architecture.symmetric:
        return propagate_simplex(architecture, start_overlap, readout, closure)
    if closure != "exact":
        raise BadInput(f"closure = {closure!r} needs tokens that are all alike: no mask, RoPE, ALiBi or Gram matrix.")
    if architecture.kernel != "softmax":
        raise BadInput(
            f"kernel = {architecture.kernel!r} is modelled for tokens that are all alike: no mask, window, RoPE, ALiBi "
            "or Gram matrix. Leave them out, or use the softmax kernel."
        )
    from edgewise.theory.gram.recursion import propagate_gram  # torch is imported only where it is needed

    trace = propagate_gram(
        architecture, start=start, start_overlap=start_overlap, readout=readout, progress=progress
    )
    return replace(trace, architecture=architecture, extrapolated=extrapolations(architecture))


def predict_perceptron(perceptron: Perceptron, start_overlap: float = 0.0) -> Trace:
    """Two inputs of unit length through a random perceptron, and the gradient back [Poole 2016, Schoenholz 2017]."""
    refuse_start(start_overlap, "token")
    held = _layers_in_range(perceptron)
    if held < perceptron.depth:
        return _exploded(perceptron, held, start_overlap)
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
        extrapolated=extrapolations(perceptron),
        sampled=False,
    )


def _layers_in_range(perceptron: Perceptron) -> int:
    """How many layers the length stays below the largest number."""
    phi, length = activation(perceptron.activation), np.asarray(1.0)
    for layer in range(perceptron.depth):
        length = length_map(phi, perceptron.weight_variance, perceptron.bias_variance, length)
        if not length < LARGEST:
            return layer
    return perceptron.depth


def _exploded(perceptron: Perceptron, held: int, start_overlap: float) -> Trace:
    """What is known of a perceptron whose signal leaves the range of numbers: infinite lengths, no gradient."""
    missing = perceptron.depth - held
    if held:
        orbit = propagate_perceptron(perceptron.replace(depth=held), q0=1.0, c0=start_overlap)
        lengths, separations = orbit.length, orbit.separation
    else:
        lengths, separations = np.ones(1), np.array([1 - start_overlap])
    return Trace(
        sites=perceptron.sites(),
        source="theory: length and correlation maps, stopped where the signal leaves the range of numbers",
        norm=np.concatenate([lengths, np.full(missing, np.inf)])[None],
        separation=np.concatenate([separations, np.full(missing, separations[-1])])[None],
        architecture=perceptron,
        extrapolated=extrapolations(perceptron),
        sampled=False,
    )


def refuse_start(start_overlap: float, readout: str) -> None:
    """An overlap of n tokens lies in (-1/(n-1), 1]; the recursion is written for those of at least 0."""
    if readout not in READOUTS:
        raise BadInput(f"readout = {readout!r} is not possible: expected {' or '.join(READOUTS)}.")
    if not (isinstance(start_overlap, (int, float)) and 0.0 <= start_overlap < 1.0):
        raise BadInput(
            f"start_overlap = {start_overlap!r} is not possible: expected a mean cosine of at least 0 and below 1."
        )


def propagate_simplex(
    architecture: Architecture, start_overlap: float = 0.0, readout: str = "token", closure: str = "exact"
) -> Trace:
    """Exact for networks without a special token position [signal propagation at finite length]."""
    q = np.asarray(architecture.embedding_norm)
    start = Simplex(q, q * (1.0 - start_overlap))
    setting = Setting(architecture.tokens, architecture.width, closure_named(closure))
    steps: list[Step] = []
    for step in forward(architecture.blocks, start, setting):
        if not _in_range(step):
            return _out_of_range(architecture, start, steps, 0.0 if step.state.norm < 1 else math.inf)
        steps.append(step)
    log_gradient, coherence, weights = _gradients(steps, readout)
    states = [start, *(step.state for step in steps)]
    return Trace(
        sites=architecture.sites(),
        source="theory: simplex recursion, " + _STATED.get(closure, f"{closure} closure, for comparison only"),
        norm=_row([s.norm for s in states]),
        separation=_row([s.separation for s in states]),
        readouts=(readout,),
        log_gradient=log_gradient[None],
        attention_entropy=_seen(steps, "attention_entropy")[..., None],
        statistics={
            "logit_variance": _seen(steps, "logit_variance"),
            "condensation": _seen(steps, "logit_variance") / (2 * math.log(architecture.tokens)),
            "gradient_coherence": coherence,
            **weights,
        },
        architecture=architecture,
        extrapolated=extrapolations(architecture) + _narrow_heads(architecture, steps),
        sampled=False,
    )


def _narrow_heads(architecture: Architecture, steps: Sequence[Step]) -> tuple[str, ...]:
    """Logits of a head of finite width are not Gaussian; the recursion over sampled heads draws them as they are."""
    variance = _seen(steps, "logit_variance")
    if np.isnan(variance).all() or np.nanmax(variance) <= SHARP * architecture.head_width:
        return ()
    return (
        f"the logit variance reaches {np.nanmax(variance):.3g} in heads of width {architecture.head_width}: this "
        "recursion is for wide heads, and was seen off by 0.02 to 0.1 per block here",
    )


def _in_range(step: Step) -> bool:
    return bool(1 / LARGEST < step.state.norm < LARGEST)


def _out_of_range(architecture: Architecture, start: Simplex, steps: Sequence[Step], beyond: float) -> Trace:
    """What is known of a network whose stream leaves the range of numbers: norms infinite or 0, no gradient."""
    states = [start, *(step.state for step in steps)]
    missing = len(architecture.sites()) - len(states)
    separations = [s.separation for s in states]
    return Trace(
        sites=architecture.sites(),
        source="theory: simplex recursion, stopped where the stream leaves the range of numbers",
        norm=_row([*(s.norm for s in states), *[np.asarray(beyond)] * missing]),
        separation=_row(separations + [separations[-1]] * missing),
        architecture=architecture,
        extrapolated=extrapolations(architecture),
        sampled=False,
    )


def _gradients(steps: Sequence[Step], readout: str) -> tuple[Array, Array, dict[str, Array]]:
    """Per site: log gradient and coherence gp/gq (1, N); per matrix: log |dL/dW|^2 at its site (1, N)."""
    last: Gradient = output_gradient(readout, np.shape(steps[-1].state.norm))
    back = [(last, np.zeros(())), *backward(steps, last)][::-1]
    weights = {f"weight_gradient.{name}": np.full((1, len(back)), np.nan) for name in WEIGHTS}
    for site, (step, (gradient, log_scale)) in enumerate(zip(steps, back[1:], strict=True), start=1):
        assert step.weights is not None
        for name, value in step.weights(gradient).items():
            with np.errstate(divide="ignore"):
                weights[f"weight_gradient.{name}"][0, site] = np.log(value) + log_scale
    return _row([s for _, s in back]), _row([g.cross / g.own for g, _ in back]), weights


def _row(values: Sequence[Array]) -> Array:
    return np.array([[float(value) for value in values]])


def _seen(steps: Sequence[Step], name: str) -> Array:
    """A quantity only some sites know, nan elsewhere."""
    return np.array([[np.nan, *(float(step.seen().get(name, np.nan)) for step in steps)]])


def extrapolations(architecture: Architecture | Perceptron) -> tuple[str, ...]:
    """Why these numbers are not vouched for, one sentence each; empty when they are."""
    reasons = list(getattr(architecture, "unmodelled", ()))
    spread = math.sqrt(2 * architecture.depth / architecture.width)
    if spread > 1:
        reasons.append(
            f"width {architecture.width} is small for depth {architecture.depth}: the finite-width error of a total "
            f"log-change, sqrt(2 L / d) = {spread:.2f}, exceeds 1"
        )
    return tuple(reasons)
