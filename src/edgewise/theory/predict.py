"""Description to Trace: which recursion a network needs, and what of its answer is extrapolated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from numpy.typing import ArrayLike

from edgewise.errors import BadInput
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.perceptron import Perceptron
from edgewise.nouns.trace import Trace
from edgewise.theory.perceptron.recursion import trace_perceptron
from edgewise.theory.simplex.recursion import propagate_simplex
from edgewise.theory.start import first_state, refuse_start, refuse_two_starts

Progress = Callable[[float], None]


def predict(
    network: Architecture | Perceptron,
    *,
    start: Trace | ArrayLike | None = None,
    start_overlap: float = 0.0,
    readout: str = "token",
    progress: Progress | None = None,
    closure: str = "exact",
) -> Trace:
    """The orbit of a described network.

    start: a measured Trace, or an input Gram matrix x_a.x_b / width of shape (tokens, tokens).
    """
    if isinstance(network, Perceptron):
        if start is not None or readout != "token":
            raise BadInput("a perceptron has two inputs and one readout: give start_overlap alone.")
        return predict_perceptron(network, start_overlap)
    if isinstance(start, Trace):
        refuse_two_starts(start, start_overlap)
        norm, overlap = first_state(start)
        return predict_transformer(network, None, norm, overlap, readout, progress, closure)
    return predict_transformer(network, start, None, start_overlap, readout, progress, closure)


def predict_transformer(
    architecture: Architecture,
    start: ArrayLike | None = None,
    start_norm: float | None = None,
    start_overlap: float = 0.0,
    readout: str = "token",
    progress: Progress | None = None,
    closure: str = "exact",
) -> Trace:
    """The simplex recursion where token positions are all alike, the Gram recursion where they are not."""
    refuse_start(start_overlap, readout)
    refuse_two_starts(start, start_overlap)
    if start_norm is not None:
        architecture = architecture.replace(embedding_norm=start_norm)
    if start is None and architecture.symmetric:
        return _with_caveats(propagate_simplex(architecture, start_overlap, readout, closure), architecture)
    _refuse_positions(architecture, closure)
    from edgewise.theory.gram.recursion import propagate_gram

    trace = propagate_gram(
        architecture, start=start, start_overlap=start_overlap, readout=readout, progress=progress
    )
    return _with_caveats(trace, architecture)


def predict_perceptron(perceptron: Perceptron, start_overlap: float = 0.0) -> Trace:
    """Two inputs of unit length through a random perceptron, and the gradient back [Poole 2016, Schoenholz 2017]."""
    refuse_start(start_overlap, "token")
    return _with_caveats(trace_perceptron(perceptron, start_overlap), perceptron)


def _refuse_positions(architecture: Architecture, closure: str) -> None:
    """What is written for tokens that are all alike only."""
    if closure != "exact":
        raise BadInput(
            f"closure = {closure!r} needs tokens that are all alike: no mask, RoPE, ALiBi or Gram matrix."
        )
    if architecture.kernel != "softmax":
        raise BadInput(
            f"kernel = {architecture.kernel!r} is modelled for tokens that are all alike: no mask, window, RoPE, ALiBi "
            "or Gram matrix. Leave them out, or use the softmax kernel."
        )


def _with_caveats(trace: Trace, network: Architecture | Perceptron) -> Trace:
    return replace(trace, extrapolated=extrapolations(network) + trace.extrapolated)


def extrapolations(network: Architecture | Perceptron) -> tuple[str, ...]:
    """Why the numbers of a network are extrapolated, one sentence each; empty when they are not."""
    reasons = list(getattr(network, "unmodelled", ()))
    spread = math.sqrt(2 * network.depth / network.width)
    if spread > 1:
        reasons.append(
            f"width {network.width} is small for depth {network.depth}: the finite-width error of a total "
            f"log-change, sqrt(2 L / d) = {spread:.2f}, exceeds 1"
        )
    return tuple(reasons)
