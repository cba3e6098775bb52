"""The simplex recursion: blocks folded over depth, forward and backward, for networks whose tokens are all alike.

One pass serves one network or a grid of them; norms are maps of the same state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgewise.arrays import LARGEST, Array
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.blocks import Attention, Block, Branch, Norm
from edgewise.nouns.trace import WEIGHTS, Trace
from edgewise.theory.averages.activations import activation
from edgewise.theory.simplex.layers import (
    Moments,
    bilinear_attention,
    exact,
    gaussian_attention,
    mlp,
    softmax_attention,
)
from edgewise.theory.simplex.state import Gradient, Simplex, Step, chain
from edgewise.theory.softmax.condensation import condensation_ratio, large_n, random_energy
from edgewise.theory.softmax.integrals import SoftmaxMoments
from edgewise.theory.softmax.moments import OverlapMoments

_SOURCES = {"exact": "exact at finite length"}
SHARP = 1 / 8  # logit variance per head width from which exponents are off by more than 0.015 a block


def propagate_simplex(
    architecture: Architecture, start_overlap: float = 0.0, readout: str = "token", closure: str = "exact"
) -> Trace:
    """The Trace of a network without a special token position, at infinite width and finite length.

    Large lengths give the recursion of [Cowsik 2024].
    """
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
    variance = _statistic(steps, "logit_variance")
    return Trace(
        sites=architecture.sites(),
        source="theory: simplex recursion, "
        + _SOURCES.get(closure, f"{closure} closure, for comparison only"),
        norm=_row([s.norm for s in states]),
        separation=_row([s.separation for s in states]),
        readouts=(readout,),
        log_gradient=log_gradient[None],
        attention_entropy=_statistic(steps, "attention_entropy")[..., None],
        statistics={
            "logit_variance": variance,
            "condensation": condensation_ratio(variance, architecture.tokens),
            "gradient_coherence": coherence,
            **weights,
        },
        architecture=architecture,
        extrapolated=_narrow_heads(architecture, variance),
        sampled=False,
    )


def _narrow_heads(architecture: Architecture, variance: Array) -> tuple[str, ...]:
    """Logits of a head of finite width are not Gaussian; the Gram recursion draws heads of the real width."""
    if np.isnan(variance).all() or np.nanmax(variance) <= SHARP * architecture.head_width:
        return ()
    return (
        f"the logit variance reaches {np.nanmax(variance):.3g} in heads of width {architecture.head_width}: this "
        "recursion is for wide heads, and is off by 0.02 to 0.1 per block in such networks",
    )


def _in_range(step: Step) -> bool:
    return bool(1 / LARGEST < step.state.norm < LARGEST)


def _out_of_range(architecture: Architecture, start: Simplex, steps: Sequence[Step], beyond: float) -> Trace:
    """The Trace of a network whose stream leaves the range of numbers: norms infinite or 0 from there, no gradient."""
    states = [start, *(step.state for step in steps)]
    missing = len(architecture.sites()) - len(states)
    separations = [s.separation for s in states]
    return Trace(
        sites=architecture.sites(),
        source="theory: simplex recursion, stopped where the stream leaves the range of numbers",
        norm=_row([*(s.norm for s in states), *[np.asarray(beyond)] * missing]),
        separation=_row(separations + [separations[-1]] * missing),
        architecture=architecture,
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


def _statistic(steps: Sequence[Step], name: str) -> Array:
    """A quantity of every site (1, N), nan where a site does not have it."""
    return np.array([[np.nan, *(float(step.statistics().get(name, np.nan)) for step in steps)]])


@dataclass(frozen=True)
class Setting:
    """What every layer needs besides its gains."""

    tokens: int
    width: int
    moments: Moments = exact


def apply_branch(branch: Branch, state: Simplex, setting: Setting) -> Step:
    """x <- outside( skip x + sum of multiplier * after(layer(before(x))) ); cross terms vanish at initialization."""
    before = normalize(branch.norm, state) if branch.norm.before else identity(state)
    paths = [_path(branch, layer, before, setting) for layer in branch.layers]
    total = state.scaled(branch.skip**2)
    for path in paths:
        total = total.plus(path.state)
    outside = normalize(branch.norm, total) if branch.norm.outside else identity(total)

    def pull(g: Gradient) -> Gradient:
        g = outside.pull(g)
        back = g.scaled(branch.skip**2)
        for path in paths:
            back = back.plus(path.pull(g))
        return back

    def weights(g: Gradient) -> Mapping[str, Array]:
        g = outside.pull(g)
        return {name: value for path in paths if path.weights for name, value in path.weights(g).items()}

    def statistics() -> Mapping[str, Array]:
        return {name: value for path in paths for name, value in path.statistics().items()}

    return Step(outside.state, pull, statistics, weights)


def _path(branch: Branch, layer: object, before: Step, setting: Setting) -> Step:
    """One layer between the norms, with its multiplier."""
    if isinstance(layer, Attention):
        inner = _attention(layer, before.state, setting)
    else:
        inner = mlp(layer, before.state, setting.tokens, setting.width)  # type: ignore[arg-type]
    after = normalize(branch.norm, inner.state) if branch.norm.after else identity(inner.state)
    multiplier = layer.branch**2  # type: ignore[attr-defined]

    def scale(g: Gradient) -> Gradient:
        return g.scaled(multiplier)

    def weights(g: Gradient) -> Mapping[str, Array]:
        assert inner.weights is not None
        return inner.weights(after.pull(scale(g)))

    pull = chain(before.pull, inner.pull, after.pull, scale)
    return Step(after.state.scaled(multiplier), pull, inner.statistics, weights)


def _attention(layer: Attention, state: Simplex, setting: Setting) -> Step:
    if layer.kernel == "gaussian":
        return gaussian_attention(layer, state, setting.tokens, setting.width)
    if layer.kernel == "bilinear":
        return bilinear_attention(layer, state, setting.tokens, setting.width)
    return softmax_attention(layer, state, setting.tokens, setting.width, setting.moments)


def forward(blocks: Sequence[Block], start: Simplex, setting: Setting) -> Iterator[Step]:
    """One step per branch, in order."""
    state = start
    for block in blocks:
        for branch in block:
            step = apply_branch(branch, state, setting)
            yield step
            state = step.state


def output_gradient(readout: str, shape: tuple[int, ...]) -> Gradient:
    """A loss per token starts at (1, 0); a mean-pooled one at (1, 1)."""
    return Gradient(np.ones(shape), np.full(shape, float(readout == "pooled")))


def backward(steps: Sequence[Step], output: Gradient) -> Iterator[tuple[Gradient, Array]]:
    """Gradients before every step, last step first, with the log of the scale taken out so far.

    The gradient is rescaled to own = 1 at each site: no depth overflows.
    """
    g = output
    log_scale = np.zeros_like(g.own)
    for step in reversed(steps):
        g = step.pull(g)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_scale = log_scale + np.log(g.own)
            g = Gradient(np.ones_like(g.own), np.where(g.own > 0, g.cross / g.own, 0.0))
        yield g, log_scale


def normalize(norm: Norm, state: Simplex) -> Step:
    """(q, D) -> (1, D/q), gradients divided by q; or Gaussian averages of tanh, erf in the norm's place.

    LayerNorm and RMSNorm differ only by the feature mean, O(1/sqrt d) at initialization; the projection of the
    gradient on the sphere is O(1/d). DyT and Derf are x -> phi(slope x) [Zhu 2025; Alekseev 2026].
    """
    if norm.kind in ("layer", "rms"):
        alive = np.asarray(state.norm) > 0  # a norm leaves a vanished signal at zero
        factor = np.where(alive, 1.0 / np.where(alive, state.norm, 1.0), 0.0)
        after = Simplex(np.where(alive, 1.0, 0.0), np.asarray(state.difference * factor))
        return Step(after, lambda g: g.scaled(factor))
    return _elementwise(norm, state)


def _elementwise(norm: Norm, state: Simplex) -> Step:
    phi, a2 = activation(norm.kind), norm.slope**2
    q, e = a2 * state.norm, state.separation
    after = Simplex(phi.square(q), a2 * state.difference * phi.chord(q, e))
    return Step(after, lambda g: g.scaled(a2 * phi.slope_square(q), a2 * phi.slope_product(q, 1 - e)))


def identity(state: Simplex) -> Step:
    """No norm here."""
    return Step(state, lambda g: g)


def _closure(function: Callable[[Array, Array, int], SoftmaxMoments]) -> Moments:
    def moments(variance: Array, correlation: Array, tokens: int) -> OverlapMoments:
        with np.errstate(over="ignore", invalid="ignore"):  # a closure may overflow: that is its result
            every = function(variance, correlation, tokens)
        return OverlapMoments(*(getattr(every, name) for name in OverlapMoments._fields))

    return moments


def _frozen(variance: Array, correlation: Array, tokens: int) -> OverlapMoments:
    """The exact moments forward, and no gradient through the softmax: R2 = T11 = 0."""
    moments = exact(variance, correlation, tokens)
    return moments._replace(r2=np.zeros_like(moments.r2), t11=np.zeros_like(moments.t11))


CLOSURES: dict[str, Moments] = {
    "exact": exact,
    "large_n": _closure(large_n),
    "random_energy": _closure(random_energy),
    "frozen": _frozen,
}


def closure_named(name: str) -> Moments:
    """Which softmax moments the recursion uses: the exact ones, or for comparison a published limit of them."""
    if name not in CLOSURES:
        raise BadInput(f"closure must be one of {', '.join(CLOSURES)}, got {name!r}.")
    return CLOSURES[name]
