"""The simplex recursion: blocks folded over depth, forward and backward, for networks whose tokens are all alike.

Large lengths give the recursion of [Cowsik 2024]. One pass serves one network or a grid of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from edgewise.arrays import LARGEST, Array
from edgewise.errors import BadInput, SearchBudget
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Block
from edgewise.nouns.trace import WEIGHTS, Provenance, Trace
from edgewise.theory.simplex.state import Gradient, Moments, Setting, SimplexState, SimplexStep
from edgewise.theory.simplex.step import step
from edgewise.theory.softmax.integrals import SoftmaxMoments
from edgewise.theory.softmax.moments import (
    OverlapMoments,
    condensation_ratio,
    exact_moments,
    large_n,
    random_energy,
)

SHARP = 1 / 8  # logit variance per head width from which exponents are off by more than 0.015 a block


def propagate_simplex(
    architecture: Architecture,
    start_overlap: float = 0.0,
    readout: str = "token",
    closure: str = "exact",
    budget: SearchBudget | None = None,
) -> Trace:
    """Predict a network without a special token position, at infinite width and finite length."""
    if closure not in CLOSURES:
        raise BadInput(f"closure must be one of {', '.join(CLOSURES)}, got {closure!r}.")
    q = np.asarray(architecture.embedding_norm)
    start = SimplexState(q, q * (1.0 - start_overlap))
    setting = Setting(architecture.tokens, architecture.width, CLOSURES[closure], budget)
    steps: list[SimplexStep] = []
    for after in follow(start, architecture.blocks, setting):
        if not 1 / LARGEST < after.state.norm < LARGEST:
            return _out_of_range(architecture, start, steps, 0.0 if after.state.norm < 1 else math.inf)
        steps.append(after)
    kind = "exact at finite length" if closure == "exact" else f"{closure} closure, for comparison only"
    return _trace(architecture, start, steps, readout, f"theory: simplex recursion, {kind}")


def follow(start: SimplexState, blocks: Sequence[Block], setting: Setting) -> Iterator[SimplexStep]:
    """Yield one step per branch, in order."""
    state = start
    for branch in (branch for block in blocks for branch in block):
        after = step(state, branch, setting)
        yield after
        state = after.state


def pull_back(steps: Sequence[SimplexStep], output: Gradient) -> Iterator[tuple[Gradient, Array]]:
    """Yield the gradient before every step, last step first, with the log of the scale taken out so far.

    The gradient is rescaled to own = 1 at each site: no depth overflows.
    """
    g = output
    log_scale = np.zeros_like(g.own)
    for after in reversed(steps):
        g = after.pull(g)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_scale = log_scale + np.log(g.own)
            g = Gradient(np.ones_like(g.own), np.where(g.own > 0, g.cross / g.own, 0.0))
        yield g, log_scale


def output_gradient(readout: str, shape: tuple[int, ...]) -> Gradient:
    """Return where the gradient of a loss starts: (1, 0) for a loss per token, (1, 1) for a mean-pooled one."""
    return Gradient(np.ones(shape), np.full(shape, float(readout == "pooled")))


def _trace(
    architecture: Architecture, start: SimplexState, steps: Sequence[SimplexStep], readout: str, source: str
) -> Trace:
    states = [start, *(after.state for after in steps)]
    log_gradient, coherence, weights = _gradients(steps, readout)
    statistics = [after.statistics() for after in steps]
    variance, entropy = (
        np.array([[np.nan, *(float(row.get(name, np.nan)) for row in statistics)]])
        for name in ("logit_variance", "attention_entropy")
    )
    return Trace(
        sites=architecture.sites(),
        norm=_row([s.norm for s in states]),
        separation=_row([s.separation for s in states]),
        readouts=(readout,),
        log_gradient=log_gradient[None],
        attention_entropy=entropy[..., None],
        statistics={
            "logit_variance": variance,
            "condensation": condensation_ratio(variance, architecture.tokens),
            "gradient_coherence": coherence,
            **weights,
        },
        architecture=architecture,
        provenance=Provenance(source, sampled=False, extrapolated=_narrow_heads(architecture, variance)),
    )


def _narrow_heads(architecture: Architecture, variance: Array) -> tuple[str, ...]:
    """Logits of a head of finite width are not Gaussian; the Gram recursion draws heads of the real width."""
    if np.isnan(variance).all() or np.nanmax(variance) <= SHARP * architecture.head_width:
        return ()
    return (
        f"the logit variance reaches {np.nanmax(variance):.3g} in heads of width {architecture.head_width}: this "
        "recursion is for wide heads, and is off by 0.02 to 0.1 per block in such networks",
    )


def _out_of_range(
    architecture: Architecture, start: SimplexState, steps: Sequence[SimplexStep], beyond: float
) -> Trace:
    """Return the Trace of a stream that leaves the range of numbers: norms infinite or 0 from there, no gradient."""
    states = [start, *(after.state for after in steps)]
    missing = len(architecture.sites()) - len(states)
    separations = [s.separation for s in states]
    return Trace(
        sites=architecture.sites(),
        norm=_row([*(s.norm for s in states), *[np.asarray(beyond)] * missing]),
        separation=_row(separations + [separations[-1]] * missing),
        architecture=architecture,
        provenance=Provenance(
            "theory: simplex recursion, stopped at the block whose stream overflows", sampled=False
        ),
    )


def _gradients(steps: Sequence[SimplexStep], readout: str) -> tuple[Array, Array, dict[str, Array]]:
    """Per site: log gradient and coherence gp/gq (1, N); per matrix: log |dL/dW|^2 at its site (1, N)."""
    last: Gradient = output_gradient(readout, np.shape(steps[-1].state.norm))
    back = [(last, np.zeros(())), *pull_back(steps, last)][::-1]
    weights = {f"weight_gradient.{name}": np.full((1, len(back)), np.nan) for name in WEIGHTS}
    for site, (after, (gradient, log_scale)) in enumerate(zip(steps, back[1:], strict=True), start=1):
        assert after.weights is not None
        for name, value in after.weights(gradient).items():
            with np.errstate(divide="ignore"):
                weights[f"weight_gradient.{name}"][0, site] = np.log(value) + log_scale
    return _row([s for _, s in back]), _row([g.cross / g.own for g, _ in back]), weights


def _row(values: Sequence[Array]) -> Array:
    return np.array([[float(value) for value in values]])


def _closure(function: Callable[[Array, Array, int], SoftmaxMoments]) -> Moments:
    def moments(
        variance: Array, correlation: Array, tokens: int, budget: SearchBudget | None = None
    ) -> OverlapMoments:
        del budget  # closed forms
        with np.errstate(over="ignore", invalid="ignore"):  # a closure may overflow: that is its result
            every = function(variance, correlation, tokens)
        return OverlapMoments(*(getattr(every, name) for name in OverlapMoments._fields))

    return moments


def _frozen(
    variance: Array, correlation: Array, tokens: int, budget: SearchBudget | None = None
) -> OverlapMoments:
    """Return the exact moments forward, and no gradient through the softmax: R2 = T11 = 0."""
    moments = exact_moments(variance, correlation, tokens, budget)
    return moments._replace(r2=np.zeros_like(moments.r2), t11=np.zeros_like(moments.t11))


CLOSURES: dict[str, Moments] = {  # the exact softmax moments, and for comparison published limits of them
    "exact": exact_moments,
    "large_n": _closure(large_n),
    "random_energy": _closure(random_energy),
    "frozen": _frozen,
}
