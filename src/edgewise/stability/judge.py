"""Trace to Verdict, from the trace alone; `edgewise.judge` adds what needs the description."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgewise.perceptron import Perceptron
from edgewise.stability.depth_scale import depth_scale
from edgewise.stability.findings import find, out_of_range, rule_out
from edgewise.stability.lyapunov import exponent
from edgewise.stability.phases import FAILS, RISKY, outcome, phase
from edgewise.trace import Trace
from edgewise.verdict import Exponent, Outcome, Verdict

Array = NDArray[np.float64]


def judge(trace: Trace) -> Verdict:
    """Exponents at this depth, phase, findings and outcome."""
    width = None if trace.architecture is None else trace.architecture.width
    with np.errstate(divide="ignore"):
        angle = exponent(np.log(_ends(trace, trace.separation)), width, trace.sampled)
    gradient, relative = gradients(trace, width)
    raw_decides = isinstance(trace.architecture, Perceptron)
    decisive = gradient if raw_decides else relative
    verdict = Verdict(
        outcome=Outcome.FAILS if out_of_range(trace).any() else outcome(angle, decisive),
        phase=phase(angle),
        angle=angle,
        gradient=gradient,
        relative_gradient=relative,
        readout=trace.readouts[0] if trace.readouts else None,
        embedding_jump=embedding_jump(trace),
        depth_scale=depth_scale(angle.at_depth),
        condensation=_largest(trace.statistics.get("condensation")),
        attention_entropy=_entropy(trace),
        extrapolated=trace.extrapolated,
        notes=getattr(trace.architecture, "assumed", ()),
        source=trace.source,
        name=getattr(trace.architecture, "name", ""),
        depth=trace.depth,
        limits=(RISKY, FAILS),
        raw_decides=raw_decides,
    )
    findings = find(verdict, trace)
    return replace(verdict, findings=findings, ruled_out=rule_out(verdict, trace, findings))


def gradients(trace: Trace, width: float | None) -> tuple[Exponent | None, Exponent | None]:
    """Raw and relative gradient exponents, lambda_g = (1/L) log(|g_0|^2/|g_L|^2) and of rho = |g|^2 q.

    Pre-norm divides the gradient by the stream's norm, so a stream that starts small shows a huge raw exponent in
    a network that trains well; the relative one is scale free.
    """
    if trace.log_gradient is None:
        return None, None
    raw = _ends(trace, trace.log_gradient[0])
    relative = raw + np.log(_ends(trace, trace.norm))
    return tuple(exponent(-logs, width, trace.sampled) for logs in (raw, relative))  # type: ignore[return-value]


def embedding_jump(trace: Trace) -> float | None:
    """log-change of the relative gradient across the first block: a defect of its own, apart from depth."""
    if trace.log_gradient is None or trace.depth < 2:
        return None
    ends = trace.block_ends()
    relative = trace.log_gradient[0][:, ends] + np.log(trace.norm[:, ends])
    return float((relative[:, 0] - relative[:, 1]).mean())


def _ends(trace: Trace, values: Array) -> Array:
    return values[:, trace.block_ends()]


def _largest(values: Array | None) -> float | None:
    if values is None or np.isnan(values).all():
        return None
    return float(np.nanmax(values.mean(axis=0)))


def _entropy(trace: Trace) -> tuple[float, float] | None:
    """The smallest expected attention entropy over depth, and that of uniform attention."""
    if trace.attention_entropy is None or np.isnan(trace.attention_entropy).all():
        return None
    tokens = getattr(trace.architecture, "tokens", None)
    lowest = float(np.nanmin(trace.attention_entropy.mean(axis=(0, 2))))
    return lowest, math.log(tokens) if tokens else math.nan
