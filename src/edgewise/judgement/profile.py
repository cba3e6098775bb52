"""The numbers of a trace that a verdict is about, and the same in units that anyone has.

Growths over depth, the first block's jump, attention's spread; then how alike tokens are, how large gradients, how many
tokens attention is spread over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import AttentionSpread, Profile
from edgewise.stability.lyapunov import Growth, growth

ALIKE = 1e-3  # 1 - overlap below which tokens are one: of recorded networks read per token none such learned
APART = 1e-2  # where that is counted as the network's doing: tokens that start more alike are so by the data


@dataclass(frozen=True)
class TraceReading:
    """What is read from a trace, each number once."""

    trace: Trace
    angle: Growth  # of 1 - overlap
    gradient: Growth | None  # of |g|^2 towards the input; None if no gradient was followed
    relative: Growth | None  # of |g|^2 q, relative to the stream
    embedding_jump: float | None  # log-change of the relative gradient across the first block
    attention: AttentionSpread | None
    # (N,) sites at which the stream has left the range of numbers, or vanished
    out_of_range: NDArray[np.bool_]
    # Block from which all tokens are one, up to the output; None if they are not.
    collapsed: int | None = None

    @property
    def decisive_gradient(self) -> Growth | None:
        """Relative to the stream, which norms rescale anyway; a perceptron has no norm, so its raw gradient counts."""
        return self.gradient if isinstance(self.trace.architecture, Perceptron) else self.relative


def read(trace: Trace) -> TraceReading:
    """Return the numbers of a trace."""
    width = None if trace.architecture is None else trace.architecture.width
    with np.errstate(divide="ignore"):
        angle = growth(np.log(_ends(trace, trace.separation)), width, trace.sampled)
    raw, relative = _gradients(trace)
    return TraceReading(
        trace=trace,
        angle=angle,
        gradient=None if raw is None else growth(-raw, width, trace.sampled),
        relative=None if relative is None else growth(-relative, width, trace.sampled),
        embedding_jump=_jump(trace, relative),
        attention=_attention(trace),
        out_of_range=np.asarray((np.isinf(trace.norm) | (trace.norm == 0)).any(axis=0)),
        collapsed=_collapsed(trace),
    )


def per_token(trace: Trace) -> bool:
    """Return True if each token has a label of its own; one per sequence can be read from tokens that are all alike."""
    if isinstance(trace.architecture, Perceptron):
        return False
    return (trace.readout or trace.decisive_readout) not in ("pooled", "class")


def _collapsed(trace: Trace) -> int | None:
    """Wherever in depth it happens: what is lost in the first blocks is not there in the last ones either."""
    apart = trace.blocks("separation")
    if not per_token(trace) or apart[0] < APART or apart[-1] >= ALIKE:
        return None
    return int(np.flatnonzero(apart >= ALIKE)[-1]) + 1


def _gradients(trace: Trace) -> tuple[Array | None, Array | None]:
    """Return logs of |g|^2 and of |g|^2 q after every block (S, L + 1).

    Pre-norm divides the gradient by the stream's norm, so a stream that starts small shows a huge raw exponent in
    a network that trains well; the relative one is scale free.
    """
    if trace.log_gradient is None or trace.decisive_readout is None:
        return None, None
    raw = _ends(trace, trace.log_gradient[trace.readouts.index(trace.decisive_readout)])
    with np.errstate(divide="ignore"):
        return raw, raw + np.log(_ends(trace, trace.norm))


def _jump(trace: Trace, relative: Array | None) -> float | None:
    """Return the jump across the first block, a defect apart from the dynamics over depth."""
    if relative is None or trace.depth < 2:
        return None
    with np.errstate(invalid="ignore"):
        return float((relative[:, 0] - relative[:, 1]).mean())


def _ends(trace: Trace, values: Array) -> Array:
    return values[:, trace.block_ends()]


def _attention(trace: Trace) -> AttentionSpread | None:
    """Return the largest condensation ratio and the smallest expected entropy over depth."""
    condensation = _largest(trace.statistics.get("condensation"))
    entropy = uniform = None
    if trace.attention_entropy is not None and not np.isnan(trace.attention_entropy).all():
        tokens = getattr(trace.architecture, "tokens", None)
        entropy = float(np.nanmin(trace.attention_entropy.mean(axis=(0, 2))))
        uniform = math.log(tokens) if tokens else math.nan
    if condensation is None and entropy is None:
        return None
    return AttentionSpread(condensation, entropy, uniform)


def _largest(values: Array | None) -> float | None:
    if values is None or np.isnan(values).all():
        return None
    return float(np.nanmax(values.mean(axis=0)))


SLOW = 10  # times the depth: what takes longer to halve or double does not change here


def profile(reading: TraceReading) -> Profile:
    """Return the rows and counts of a trace, means over seeds."""
    trace, spread = reading.trace, reading.attention
    network = trace.architecture if isinstance(trace.architecture, Architecture) else None
    entropy = None if spread is None else spread.entropy
    change = reading.angle.change.scalar
    moves = math.isfinite(change) and abs(change) >= math.log(2) / SLOW
    return Profile(
        overlap=tuple(trace.blocks("overlap").tolist()),
        separation=tuple(trace.blocks("separation").tolist()),
        gradient=_gradient(trace),
        halving=-trace.depth * math.log(2) / change if moves else None,
        keys=None if entropy is None else math.exp(entropy),
        visible=None if network is None or entropy is None else _visible(network),
        tokens=None if network is None else network.tokens,
        norm=None if network is None else network.norm,
        measured=not trace.source.startswith("theory"),
        left_out="; ".join(trace.notes),
    )


def _gradient(trace: Trace) -> tuple[float, ...]:
    """sqrt( |g_l|^2 q_l / |g_L|^2 q_L ), without q in a perceptron; empty where a number is missing."""
    if trace.log_gradient is None:
        return ()
    logs = trace.blocks("log_gradient", trace.decisive_readout)
    if not isinstance(trace.architecture, Perceptron):
        with np.errstate(divide="ignore"):
            logs = logs + np.log(trace.blocks("norm"))
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = np.exp((logs - logs[-1]) / 2)
    return () if np.isnan(sizes).any() else tuple(sizes.tolist())


def _visible(network: Architecture) -> float:
    """Return the geometric mean over tokens of how many they may attend to: e^entropy of uniform attention."""
    keys = np.arange(1, network.tokens + 1) if network.causal else np.full(network.tokens, network.tokens)
    if isinstance(network.window, int):
        seen = network.window if network.causal else 2 * network.window - 1
        keys = np.minimum(keys, min(seen, network.tokens))
    return float(np.exp(np.log(keys).mean()))
