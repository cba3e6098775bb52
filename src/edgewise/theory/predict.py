"""Description to Trace: where a prediction starts, which recursion a network needs, and what is extrapolated."""

from __future__ import annotations

import math
from collections.abc import Callable

from numpy.typing import ArrayLike

from edgewise.errors import BadInput, NotCovered, SearchBudget
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.trace import Trace, check_readout
from edgewise.theory.perceptron.drive import trace_perceptron
from edgewise.theory.simplex.drive import propagate_simplex

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
    """Predict the orbit of a described network.

    start: a measured Trace, or an input Gram matrix x_a.x_b / width of shape (tokens, tokens).
    """
    if isinstance(network, Perceptron):
        if start is not None or readout != "token":
            raise BadInput("a perceptron has two inputs and one readout: give start_overlap alone.")
        return predict_perceptron(network, start_overlap)
    norm: float | None = None
    if isinstance(start, Trace):
        _check_one_start(start, start_overlap)
        (norm, start_overlap), start = first_state(start), None
    return predict_transformer(network, start, norm, start_overlap, readout, progress, closure)


def predict_transformer(
    architecture: Architecture,
    start: ArrayLike | None = None,
    start_norm: float | None = None,
    start_overlap: float = 0.0,
    readout: str = "token",
    progress: Progress | None = None,
    closure: str = "exact",
    budget: SearchBudget | None = None,
) -> Trace:
    """Run the simplex recursion if token positions are all alike, the Gram recursion if they are not."""
    check_start(start_overlap, readout)
    _check_one_start(start, start_overlap)
    if start_norm is not None:
        architecture = architecture.replace(embedding_norm=start_norm)
    if start is None and architecture.symmetric:
        return _with_caveats(
            propagate_simplex(architecture, start_overlap, readout, closure, budget), architecture
        )
    # Raise for what is written for tokens that are all alike only.
    if closure != "exact":
        raise NotCovered(
            f"closure = {closure!r} needs tokens that are all alike: no mask, RoPE, ALiBi or Gram matrix."
        )
    if architecture.kernel != "softmax":
        raise NotCovered(
            f"kernel = {architecture.kernel!r} is modeled for tokens that are all alike: no mask, window, RoPE, ALiBi "
            "or Gram matrix. Leave them out, or use the softmax kernel."
        )
    from edgewise.theory.gram.drive import propagate_gram

    trace = propagate_gram(
        architecture,
        start=start,
        start_overlap=start_overlap,
        readout=readout,
        progress=progress,
        budget=budget,
    )
    return _with_caveats(trace, architecture)


def predict_perceptron(perceptron: Perceptron, start_overlap: float = 0.0) -> Trace:
    """Predict two inputs of unit length, and the gradient back [Poole 2016, Schoenholz 2017]."""
    check_start(start_overlap, "token")
    return _with_caveats(trace_perceptron(perceptron, start_overlap), perceptron)


def _with_caveats(trace: Trace, network: Architecture | Perceptron) -> Trace:
    """Return the trace with the reasons why its numbers are extrapolated, one sentence each, if they are."""
    reasons = list(getattr(network, "unmodelled", ()))
    spread = math.sqrt(2 * network.depth / network.width)
    if spread > 1:
        reasons.append(
            f"width {network.width} is small for depth {network.depth}: the finite-width error of a total "
            f"log-change, sqrt(2 L / d) = {spread:.2f}, exceeds 1"
        )
    return trace.with_provenance(extrapolated=tuple(reasons) + trace.extrapolated)


def check_start(start_overlap: float, readout: str) -> None:
    """Raise unless the overlap is at least 0, for which the recursions are written, and the readout is known."""
    check_readout(readout)
    if not (isinstance(start_overlap, (int, float)) and 0.0 <= start_overlap < 1.0):
        raise BadInput(
            f"start_overlap must be a mean cosine of at least 0 and below 1, got {start_overlap!r}."
        )


def _check_one_start(start: object, start_overlap: float) -> None:
    if start is not None and start_overlap:
        raise BadInput("give start or start_overlap, not both: the start has its own overlap.")


def first_state(trace: Trace) -> tuple[float, float]:
    """Return norm and mean cosine at the first site of a trace, averaged over seeds."""
    return float(trace.norm[:, 0].mean()), at_least_zero(float(trace.overlap[:, 0].mean()))


def at_least_zero(overlap: float) -> float:
    """Return a measured overlap, and zero for one below zero, for which the recursions are not written.

    n tokens that are centered, or drawn in few dimensions, have a mean cosine down to -1/(n-1): nothing aligns them.
    """
    return 0.0 if overlap < 0 else overlap
