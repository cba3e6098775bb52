"""Two networks side by side, and a measured pass beside the theory of the same network.

Theory and measurement start from the same tokens. In networks whose description is exact they still differ: a network
of finite width is one draw, and its total log-changes scatter by about sqrt(2 L / d). `tests/agreement/self_check.json`
has the gaps of such networks; the limits below are those that 99 % of them keep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.files import Document
from edgewise.nouns.architecture import Architecture, Perceptron, Shown
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Verdict


@dataclass(frozen=True)
class Comparison(Shown):
    """Traces, verdicts, and the knobs (name, first, second) in which the descriptions differ."""

    traces: tuple[Trace, Trace]
    verdicts: tuple[Verdict, Verdict]
    differences: tuple[tuple[str, Any, Any], ...]

    @property
    def names(self) -> tuple[str, str]:
        first, second = (verdict.name for verdict in self.verdicts)
        return first or "first", second or "second"

    def json(self) -> Document:
        return {
            "names": list(self.names),
            "verdicts": [verdict.json() for verdict in self.verdicts],
            "differences": [{"knob": knob, "first": a, "second": b} for knob, a, b in self.differences],
        }

    def __repr__(self) -> str:
        pairs = zip(self.names, self.verdicts, strict=True)
        each = "; ".join(f"{name[:80]}: {verdict.outcome.value}" for name, verdict in pairs)
        return f"<Comparison {each}; print it>"

    def __str__(self) -> str:
        lines = [
            str(verdict) if verdict.name else f"{name}: {verdict}"
            for name, verdict in zip(self.names, self.verdicts, strict=True)
        ]
        changed = [f"  {knob}: {a} against {b}" for knob, a, b in self.differences]
        return "\n\n".join(lines) + "\n\nThey differ in\n" + ("\n".join(changed) or "  nothing")


def differences(
    first: Architecture | Perceptron, second: Architecture | Perceptron
) -> tuple[tuple[str, Any, Any], ...]:
    """Knobs whose values differ (one missing on a side is None), notes and names apart."""
    a, b = first.to_dict(), second.to_dict()
    notes = ("name", "assumed", "unmodelled")
    names = [name for name in {**a, **b} if name not in notes and a.get(name) != b.get(name)]
    return tuple((name, a.get(name), b.get(name)) for name in names)


# Limits of the overlap and of the logs of norm and gradient: (at infinite width, per unit of sqrt(2 L / d)).
LIMITS = {"overlap": (0.1, 0.3), "norm": (0.15, 0.6), "gradient": (0.5, 2.5)}
WORDS = {"overlap": "the overlap of tokens", "norm": "the squared size of the stream"}
CAUSES = ("trained", "copies", "share their weights")  # what outweighs other parts that theory leaves out


@dataclass(frozen=True)
class TraceGap:
    """The largest difference of one quantity over the blocks, and how large it may be in a network of this shape."""

    quantity: str
    block: int
    measured: float
    predicted: float
    size: float  # of overlaps, or of logs
    limit: float

    @property
    def excess(self) -> float:
        return self.size / self.limit

    @property
    def sentence(self) -> str:
        """Both values; of the gradient its size beside that at the output, as on the screen."""
        where = f"after block {self.block}" if self.block else "at the embedding"
        if self.quantity != "gradient":
            return f"{WORDS[self.quantity]} {where} is {self.measured:.3g}, predicted {self.predicted:.3g}"
        seen, expected = (f"{math.sqrt(x):.2g}" for x in (self.measured, self.predicted))
        return f"the gradient {where} is {seen} times that at the output, predicted {expected}"


def gaps(measured: Trace, theory: Trace) -> list[TraceGap]:
    """Return the largest gap of each quantity, the one that exceeds its limit most first."""
    quantities = {"overlap": "overlap", "norm": "norm"}
    if measured.log_gradient is not None and theory.log_gradient is not None:
        quantities["gradient"] = "log_gradient"
    rows = [
        _gap(name, measured.blocks(field), theory.blocks(field), theory) for name, field in quantities.items()
    ]
    return sorted(rows, key=lambda gap: -gap.excess)


def _gap(name: str, measured: Array, predicted: Array, theory: Trace) -> TraceGap:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        one, other = (np.log(x) if name == "norm" else x for x in (measured, predicted))
        size = np.abs(one - other)
        size[np.isnan(size)] = 0.0 if (np.isnan(one) == np.isnan(other)).all() else np.inf
        values = (np.exp(x) if name == "gradient" else x for x in (measured, predicted))
        first, second = (float(x[block]) for x in values for block in [int(size.argmax())])
    flat, scatter = LIMITS[name]
    assert theory.architecture is not None
    limit = flat + scatter * math.sqrt(2 * theory.depth / theory.architecture.width)
    return TraceGap(name, int(size.argmax()), first, second, float(size.max()), limit)


def departure(measured: Trace, theory: Trace) -> str:
    """One sentence where theory does not hold for this network: the largest gap and its likely cause; empty else.

    Trained weights are judged by what was measured in any case.
    """
    worst = gaps(measured, theory)[0]
    trained = any("trained" in reason for reason in getattr(theory.architecture, "unmodelled", ()))
    if worst.excess <= 1 and not trained:
        return ""
    if worst.excess <= 1:
        return f"The weights are trained, theory is of random ones, so this is the measured network: {worst.sentence}."
    return f"Theory does not hold here, so this is the measured network: {worst.sentence}. {_cause(theory)}"


def _cause(theory: Trace) -> str:
    network = theory.architecture
    reasons = [] if network is None or isinstance(network, Perceptron) else list(network.unmodelled)
    for word in CAUSES:
        for reason in reasons:
            if word in reason:
                return f"Likely cause: {reason}."
    if reasons:
        return f"Likely cause: {'; '.join(reasons[:2])}."
    return "No cause is known; the description may be wrong about a part of this model."
