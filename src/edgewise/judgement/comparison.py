"""Two networks side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgewise.nouns.architecture import Architecture
from edgewise.nouns.perceptron import Perceptron
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Verdict


@dataclass(frozen=True)
class Comparison:
    """Traces, verdicts, and the knobs (name, first, second) in which the descriptions differ."""

    traces: tuple[Trace, Trace]
    verdicts: tuple[Verdict, Verdict]
    differences: tuple[tuple[str, Any, Any], ...]

    @property
    def names(self) -> tuple[str, str]:
        first, second = (verdict.name for verdict in self.verdicts)
        return first or "first", second or "second"

    def json(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "verdicts": [verdict.json() for verdict in self.verdicts],
            "differences": [{"knob": knob, "first": a, "second": b} for knob, a, b in self.differences],
        }

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
