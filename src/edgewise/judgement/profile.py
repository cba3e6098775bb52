"""A trace in units that anyone has: how alike tokens are, how large gradients, how many tokens attention looks at."""

from __future__ import annotations

import math

import numpy as np

from edgewise.judgement.reading import Reading
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.perceptron import Perceptron
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Profile

SLOW = 10  # times the depth: what takes longer to halve or double does not change here


def profile(reading: Reading) -> Profile:
    """The rows and counts of a trace, means over seeds."""
    trace, spread = reading.trace, reading.attention
    network = trace.architecture if isinstance(trace.architecture, Architecture) else None
    entropy = None if spread is None else spread.entropy
    return Profile(
        overlap=tuple(trace.blocks("overlap").tolist()),
        separation=tuple(trace.blocks("separation").tolist()),
        gradient=_gradient(trace),
        halving=_halving(reading.angle.change.scalar, trace.depth),
        keys=None if entropy is None else math.exp(entropy),
        visible=None if network is None or entropy is None else _visible(network),
        tokens=None if network is None else network.tokens,
        norm=None if network is None else network.norm,
        measured=not trace.source.startswith("theory"),
        left_out=trace.left_out,
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


def _halving(change: float, depth: int) -> float | None:
    """L log 2 / -change, of the late log-change of 1 - overlap."""
    if not math.isfinite(change) or abs(change) < math.log(2) / SLOW:
        return None
    return -depth * math.log(2) / change


def _visible(network: Architecture) -> float:
    """The geometric mean over tokens of how many they may look at: e^entropy of uniform attention."""
    keys = np.arange(1, network.tokens + 1) if network.causal else np.full(network.tokens, network.tokens)
    if isinstance(network.window, int):
        keys = np.minimum(keys, network.window if network.causal else 2 * network.window - 1)
    return float(np.exp(np.log(keys).mean()))
