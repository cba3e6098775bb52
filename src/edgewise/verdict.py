"""What a trace means: exponents with errors, a phase, findings with remedies, and one outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

SCHEMA = 1


class Outcome(Enum):
    """The answer to «will it train?»; its value is what the user reads, its exit code what a script reads."""

    TRAINS = "trains"
    RISKY = "risky"
    FAILS = "will not train"
    UNDECIDED = "undecided"

    @property
    def exit_code(self) -> int:
        return {"trains": 0, "risky": 1, "undecided": 1, "will not train": 2}[self.value]


class Phase(Enum):
    """Where the network stands, by the sign of the angle exponent and its error; never by a threshold on overlap."""

    ORDERED = "ordered"
    CHAOTIC = "chaotic"
    CRITICAL = "critical"
    UNDECIDED = "undecided"

    @property
    def sentence(self) -> str:
        return _PHASES[self.value]


_PHASES = {
    "ordered": "tokens merge: the difference between two of them shrinks exponentially with depth",
    "chaotic": "tokens separate: the difference between two near ones grows exponentially with depth",
    "critical": "neither order nor chaos: differences change by a power of depth at most",
    "undecided": "the sign of the angle exponent is within its error",
}


class Kind(Enum):
    """What can be found wrong; each member's value is the name in JSON."""

    RANK_COLLAPSE = "rank_collapse"
    FULL_COLLAPSE = "full_collapse"
    ENTROPY_COLLAPSE = "entropy_collapse"
    VANISHING_GRADIENT = "vanishing_gradient"
    EXPLODING_GRADIENT = "exploding_gradient"
    STARVED_QUERY_KEY = "starved_query_key_gradients"
    EMBEDDING_JUMP = "embedding_jump"
    TOKENS_SEPARATE = "tokens_separate"
    STREAM_OUT_OF_RANGE = "stream_out_of_range"


@dataclass(frozen=True)
class Finding:
    """One defect: what was seen, in numbers, and what to do about it."""

    kind: Kind
    sentence: str
    remedy: str
    severity: str  # "fails", "risky" or "note"

    def json(self) -> dict[str, str]:
        return {"kind": self.kind.value, "severity": self.severity, "sentence": self.sentence, "remedy": self.remedy}


@dataclass(frozen=True)
class Exponent:
    """A log-rate of a squared quantity per block: over this depth, its error, and its limit at infinite depth.

    `error` is the larger of the spread over seeds and the finite-width scatter sqrt(2/(L d)) of one network.
    `change` is twice the log-change over the second half of the depth, which the outcome is read from;
    `change_error` is how well its mean is known (0 for an exact recursion).
    """

    at_depth: float
    error: float
    asymptotic: float | None = None
    change: float | None = None
    change_error: float | None = None

    def json(self) -> dict[str, float | None]:
        names = ("at_depth", "error", "asymptotic", "change", "change_error")
        return {name: finite(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        limit = "" if self.asymptotic is None else f", {self.asymptotic:+.4f} at infinite depth"
        error = f" ± {self.error:.4f}" if math.isfinite(self.error) and math.isfinite(self.at_depth) else ""
        return f"{self.at_depth:+.4f}{error} per block{limit}"


@dataclass(frozen=True)
class FixedPoint:
    """A state the block map leaves alone, and the eigenvalues of the map there (norm and overlap directions)."""

    norm: float
    overlap: float
    eigenvalues: tuple[float, float]

    @property
    def stable(self) -> bool:
        return all(abs(value) < 1 for value in self.eigenvalues)

    def json(self) -> dict[str, Any]:
        return {
            "norm": finite(self.norm), "overlap": finite(self.overlap), "stable": self.stable,
            "eigenvalues": [finite(value) for value in self.eigenvalues],
        }  # fmt: skip


@dataclass(frozen=True)
class Probability:
    """How often networks of this score trained in a recorded sweep; low and high as families of it are left out.

    `outside`: in which ways this network is unlike those of the sweep; empty when it is like them.
    """

    value: float
    low: float
    high: float
    outside: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        numbers = {name: round(getattr(self, name), 4) for name in ("value", "low", "high")}
        return {**numbers, "outside": list(self.outside)}


@dataclass(frozen=True)
class Verdict:
    """Scalars only. `print(verdict)` is a paragraph, `verdict.json()` goes to machines."""

    outcome: Outcome
    phase: Phase
    angle: Exponent
    gradient: Exponent | None
    relative_gradient: Exponent | None
    readout: str | None = None
    embedding_jump: float | None = None
    depth_scale: float | None = None
    fixed_points: tuple[FixedPoint, ...] = ()
    power_law: float | None = None
    condensation: float | None = None
    attention_entropy: tuple[float, float] | None = None  # expected, and log n
    perceptron: dict[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[str, ...] = ()
    extrapolated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    name: str = ""
    depth: int = 0
    limits: tuple[float, float] = field(default=(4.0, 7.0))
    probability: Probability | None = None
    raw_decides: bool = False  # no norm follows (a perceptron): the scale of the signal counts

    @property
    def decisive_gradient(self) -> Exponent | None:
        """The gradient exponent the outcome is read from: relative to the stream, which a norm rescales anyway."""
        return self.gradient if self.raw_decides else self.relative_gradient

    def json(self) -> dict[str, Any]:
        def part(value: Any) -> Any:
            return None if value is None else value.json()

        return {
            "outcome": self.outcome.value,
            "phase": self.phase.value,
            "angle": part(self.angle),
            "gradient": part(self.gradient),
            "relative_gradient": part(self.relative_gradient),
            "readout": self.readout,
            "training_probability": part(self.probability),
            "embedding_jump": finite(self.embedding_jump),
            "depth_scale": finite(self.depth_scale),
            "fixed_points": [point.json() for point in self.fixed_points],
            "power_law": finite(self.power_law),
            "condensation": finite(self.condensation),
            "attention_entropy": None if self.attention_entropy is None else finite(self.attention_entropy[0]),
            "uniform_entropy": None if self.attention_entropy is None else finite(self.attention_entropy[1]),
            "perceptron": self.perceptron,
            "findings": [finding.json() for finding in self.findings],
            "ruled_out": list(self.ruled_out),
            "extrapolated": list(self.extrapolated),
            "notes": list(self.notes),
            "source": self.source,
        }

    def __str__(self) -> str:
        from edgewise.paragraph import paragraph  # prose lives apart from the record

        return paragraph(self)


def finite(value: float | None) -> float | None:
    """JSON has no infinity: a number that is not finite is null (a finding says why)."""
    return None if value is None or not math.isfinite(value) else float(value)
