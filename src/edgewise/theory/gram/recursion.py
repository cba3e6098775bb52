"""The Gram recursion, token by token: for masks, positions and measured inputs, where tokens are not alike.

State C_ab = x_a.x_b / d forward, Gamma_ab = g_a.g_b backward; the stream's width never appears. One branch and its
norms: x <- outside( skip x + sum of multiplier * after(layer(before(x))) ). Attention is averaged over sampled heads of
the real head width, so every number has a sampling error: the spread over `draws`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edgewise.architecture import Architecture
from edgewise.arrays import Array
from edgewise.blocks import MLP, Attention, Branch, Norm
from edgewise.effort import spend
from edgewise.errors import BadInput
from edgewise.theory.activation.activations import activation
from edgewise.theory.gram.cost import affordable
from edgewise.theory.gram.geometry import Geometry, Precision, from_overlaps, simplex
from edgewise.theory.gram.heads import Sampling
from edgewise.theory.gram.layers import attend, perceive, pull_attention, pull_mlp
from edgewise.theory.gram.pairs import PairAverages
from edgewise.theory.start import refuse_readout, refuse_two_starts
from edgewise.trace import WEIGHTS, Trace

Progress = Callable[[float], None]
Pull = Callable[[Array], Array]
Weights = Mapping[str, float]
PullWeights = Callable[[Array], tuple[Array, Weights]]

STATISTICS = ("logit_variance", "condensation")  # of attention layers
LONG = 128  # tokens from which the number of heads matters
HELD = 5e8  # bytes of attention probabilities held between forward and backward; above it they are drawn again


def propagate_gram(
    architecture: Architecture,
    *,
    start: ArrayLike | None = None,
    start_overlap: float = 0.0,
    readout: str = "token",
    samples: int | None = None,
    draws: int = 2,
    seed: int = 0,
    dtype: Precision = np.float32,
    progress: Progress | None = None,
) -> Trace:
    """The orbit of a transformer, token by token; the seed axis of the Trace holds the independent draws.

    start      (n, n) input Gram matrix x_a.x_b / width; a simplex of `start_overlap` unless given
    readout    token: independent output gradients; pooled: one shared by all tokens
    samples    heads drawn per attention layer; 2 to 32 by length, depth and variance of the scores unless given
    progress   called with the fraction done
    """
    _refuse(readout, samples, draws, seed, dtype)
    sampling = _sampling(architecture, samples, dtype)
    head_width = architecture.head_width if architecture.heads else 0
    spend(affordable(architecture.tokens, architecture.depth, draws, sampling, head_width).seconds)
    first = _start(architecture, start, start_overlap)
    runs = []
    for draw in range(draws):
        report = None if progress is None else _share(progress, draw, draws)
        runs.append(_Run(architecture, first, readout, sampling, (seed, draw), report))
    left = any(run.left_range for run in runs)  # then no gradient was followed
    source = f"theory: gram recursion, {sampling.samples} heads x {draws} draws"
    return Trace(
        sites=architecture.sites(),
        source=source + (", stopped where the stream leaves the range of numbers" if left else ""),
        norm=np.array([run.norm for run in runs]),
        separation=np.array([run.separation for run in runs]),
        readouts=() if left else (readout,),
        log_gradient=None if left else np.array([[run.log_gradient for run in runs]]),
        attention_entropy=np.array([run.entropy for run in runs])[..., None],
        statistics={name: np.array([run.statistics[name] for run in runs]) for name in runs[0].statistics},
        architecture=architecture,
    )


def default_samples(tokens: int, depth: int) -> int:
    """Heads per layer that bring exponents to about 0.001, and to 0.005 where attention is sharp.

    Rows average as heads do; noise of the first layers is divided by the depth, noise of all by its root. Short
    sequences cost little and get four times what that needs.
    """
    rows, whole = (4 * tokens, round) if tokens >= LONG else (tokens, math.ceil)
    return min(32, max(_fewest(tokens), whole(2**20 / (rows * depth**2)), whole(2**16 / (rows * depth))))


def _fewest(tokens: int) -> int:
    return 4 if tokens < LONG else 2


def fewer_samples(architecture: Architecture, count: int) -> int:
    """Heads where scores hardly vary: weights then differ little from head to head, and so do their averages.

    The variance of the scores of normed tokens is score_gain^2 q^2, q at most that of the embedding where a norm
    follows the sum. Noise falls with it; the fewest keep exponents to 0.0002 below a variance of one quarter.
    """
    normed = architecture.norm in ("pre", "post", "sandwich")
    if architecture.tokens < LONG or not normed or architecture.kernel != "softmax":
        return count
    q = max(1.0, architecture.embedding_norm) if architecture.norm == "post" else 1.0
    variance = (float(np.max(architecture.score_gain)) * q) ** 2
    return min(count, max(_fewest(architecture.tokens), math.ceil(count * variance)))


def _sampling(architecture: Architecture, samples: int | None, dtype: Precision) -> Sampling:
    count = samples or fewer_samples(architecture, default_samples(architecture.tokens, architecture.depth))
    held = architecture.depth * count * architecture.tokens**2 * np.dtype(dtype).itemsize
    return Sampling(count, dtype, keep=held < HELD)


def _share(progress: Progress, draw: int, draws: int) -> Progress:
    return lambda fraction: progress((draw + fraction) / draws)


def _refuse(readout: str, samples: int | None, draws: int, seed: int, dtype: Precision) -> None:
    refuse_readout(readout)
    if dtype not in (np.float32, np.float64):
        raise BadInput(f"dtype must be numpy.float32 or numpy.float64, got {dtype}.")
    for name, value, least in (("samples", samples, 1), ("draws", draws, 1), ("seed", seed, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise BadInput(f"{name} must be a whole number of at least {least}, got {value!r}.")


def _start(architecture: Architecture, start: Any, overlap: float) -> Geometry:
    n = architecture.tokens
    if start is None:
        lowest = -1.0 / (n - 1)
        if not lowest <= overlap <= 1.0:
            raise BadInput(f"start_overlap must lie between {lowest:g} and 1, got {overlap!r}.")
        return simplex(n, architecture.embedding_norm, overlap)
    refuse_two_starts(start, overlap)
    gram = _as_matrix(start)
    if gram.shape != (n, n):
        raise BadInput(f"the start Gram matrix has shape {gram.shape}; the architecture needs {(n, n)}.")
    return from_overlaps(gram)


def _as_matrix(start: Any) -> Array:
    plain = start.detach().cpu() if hasattr(start, "detach") else start  # a tensor may carry a gradient
    try:
        return np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise BadInput(
            f"a start of type {type(start).__name__} cannot be read as a matrix of numbers ({cause}). Give a Trace, or "
            "a Gram matrix x_a.x_b / width of shape (tokens, tokens)."
        ) from cause


class _Run:
    """One independent repetition: forward through all branches, then backward, one number per site each."""

    def __init__(
        self, architecture: Architecture, first: Geometry, readout: str, sampling: Sampling,
        seed: tuple[int, int], progress: Progress | None,
    ) -> None:  # fmt: skip
        self.sites = len(architecture.sites())
        self.norm, self.separation = [first.norm], [first.separation]
        self.entropy = [math.nan]
        names = (*STATISTICS, "gradient_coherence", *(f"weight_gradient.{name}" for name in WEIGHTS))
        self.statistics = {name: np.full(self.sites, math.nan) for name in names}
        self.log_gradient = np.zeros(self.sites)
        self._progress, self._done = progress, 0
        self.left_range = False
        pulls = self._forward(architecture, first, sampling, seed)
        if not self.left_range:
            self._backward(pulls, _output_gradient(first.tokens, readout))

    def _forward(
        self, architecture: Architecture, state: Geometry, sampling: Sampling, seed: tuple[int, int]
    ) -> list[PullWeights]:
        pulls = []
        branches = [branch for block in architecture.blocks for branch in block]
        for site, branch in enumerate(branches, start=1):
            number = int(np.random.SeedSequence([*seed, site]).generate_state(1, np.uint64)[0] >> 2)
            step = apply_branch(branch, state, architecture.width, sampling, number)
            if not _in_range(step.state, sampling.dtype):
                self._leave_range(step.state, state.separation)
                break
            state = step.state
            self.norm.append(state.norm)
            self.separation.append(state.separation)
            self.entropy.append(step.statistics.get("attention_entropy", math.nan))
            for name in STATISTICS:
                self.statistics[name][site] = step.statistics.get(name, math.nan)
            pulls.append(step.pull)
            self._tick()
        return pulls

    def _backward(self, pulls: list[PullWeights], gamma: Array) -> None:
        """Gamma is rescaled to a mean diagonal of 1 at every site and its logarithm summed: no depth overflows."""
        log_scale = 0.0
        self._coherence(len(pulls), gamma)
        for site in range(len(pulls), 0, -1):
            gamma, weights = pulls.pop()(gamma)  # each frees its memory
            for name, value in weights.items():
                self.statistics[f"weight_gradient.{name}"][site] = _log(value) + log_scale
            size = float(gamma.diagonal().mean())
            log_scale += _log(size)
            gamma = gamma / size if size > 0 else gamma
            self.log_gradient[site - 1] = log_scale
            self._coherence(site - 1, gamma)
            self._tick()

    def _coherence(self, site: int, gamma: Array) -> None:
        n, diagonal = len(gamma), float(gamma.diagonal().mean())
        if diagonal > 0:
            off = (float(gamma.sum()) - n * diagonal) / (n * (n - 1))
            self.statistics["gradient_coherence"][site] = off / diagonal

    def _leave_range(self, beyond: Geometry, separation: float) -> None:
        """A stream that explodes or vanishes is an answer: norms infinite or 0 from here on, no gradient."""
        self.left_range = True
        missing = self.sites - len(self.norm)
        self.norm += [0.0 if beyond.norm < 1 else math.inf] * missing  # what overflowed on the way is not a number
        self.separation += [separation] * missing
        self.entropy += [math.nan] * missing

    def _tick(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done / (2 * (self.sites - 1)))


def _in_range(state: Geometry, dtype: Precision) -> bool:
    """Whether logits, which are products of two tokens, can still be drawn in this precision."""
    largest = float(np.finfo(dtype).max) ** 0.5
    return 1 / largest < state.norm < largest


def _output_gradient(tokens: int, readout: str) -> Array:
    if readout == "pooled":
        return np.ones((tokens, tokens))
    return np.eye(tokens)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


@dataclass(frozen=True)
class Step:
    """The state after a branch, how gradient overlaps come back (with |dL/dW|^2), and statistics of its layers."""

    state: Geometry
    pull: PullWeights
    statistics: Mapping[str, float] = field(default_factory=dict)


def apply_branch(branch: Branch, state: Geometry, width: int, sampling: Sampling, seed: int) -> Step:
    """Cross terms vanish: every layer ends in an independent zero-mean matrix."""
    inner, pull_before = normalize(branch.norm, state) if branch.norm.before else (state, _same)
    paths = [_path(branch, layer, inner, width, sampling, seed) for layer in branch.layers if layer.branch != 0]
    total = state.scaled(branch.skip**2)
    for path in paths:
        total = total.plus(path.state)
    pulls = [path.pull for path in paths]  # not the paths: their states need not stay in memory
    out, pull_outside = normalize(branch.norm, total) if branch.norm.outside else (total, _same)

    def pull(gamma: Array) -> tuple[Array, Weights]:
        gamma = pull_outside(gamma)
        pulled = [pull_path(gamma) for pull_path in pulls]
        back = gamma * branch.skip**2
        for inside, _ in pulled:
            back = back + pull_before(inside)
        return back, {name: value for _, weights in pulled for name, value in weights.items()}

    return Step(out, pull, {name: value for path in paths for name, value in path.statistics.items()})


def _same(gamma: Array) -> Array:
    return gamma


def _path(
    branch: Branch, layer: Attention | MLP, inner: Geometry, width: int, sampling: Sampling, seed: int
) -> Step:
    """One layer between the norms, with its multiplier."""
    output, statistics, pull_layer = _apply(layer, inner, width, sampling, seed)
    after, pull_after = normalize(branch.norm, output) if branch.norm.after else (output, _same)
    return Step(
        after.scaled(layer.branch**2), lambda gamma: pull_layer(pull_after(gamma * layer.branch**2)), statistics
    )


def _apply(
    layer: Attention | MLP, inner: Geometry, width: int, sampling: Sampling, seed: int
) -> tuple[Geometry, Weights, PullWeights]:
    if isinstance(layer, MLP):
        perceived = perceive(layer, inner)
        return perceived.state, {}, lambda gamma: pull_mlp(layer, inner, perceived, gamma, width)
    output, statistics, memory = attend(layer, inner, sampling, seed)
    return output, statistics, lambda gamma: pull_attention(layer, inner, gamma, width, sampling, memory)


def normalize(norm: Norm, state: Geometry) -> tuple[Geometry, Pull]:
    """The state after a norm, and how gradients come back: Gamma_ab / sqrt(q_a q_b).

    LayerNorm and RMSNorm are one map at this order; tanh and erf of slope x are Gaussian averages (DyT, Derf).
    """
    if norm.kind not in ("layer", "rms"):
        return _elementwise(norm, state)
    if not (state.squares > 0).all():
        raise BadInput("a norm would divide by zero: what enters it is zero. Give the layer before it a gain above 0.")
    lengths = np.sqrt(state.squares)
    return (
        Geometry(np.ones_like(lengths), state.separations),
        lambda gamma: gamma / (lengths[:, None] * lengths),
    )


def _elementwise(norm: Norm, state: Geometry) -> tuple[Geometry, Pull]:
    averages = PairAverages(activation(norm.kind), state.scaled(norm.slope**2))
    return averages.values, lambda gamma: gamma * averages.slopes() * norm.slope**2
