"""The record of a verdict: exponents with errors, a phase, findings with remedies, and one outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgewise.errors import BadInput
from edgewise.files import Document
from edgewise.nouns.trace import UNKNOWN, Provenance, WithProvenance

if TYPE_CHECKING:
    from edgewise.nouns.trace import Trace

SCHEMA = 1


class Outcome(Enum):
    """The answer to "will it train?"; its value is what the user reads, its exit code what a script reads."""

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
    FORGETS_INPUT = "forgets_input"
    SLOW_START = "slow_start"
    QUIET_START = "quiet_start"
    INITIALIZATION_ERROR = "initialization_error"
    LARGE_FIRST_LOSS = "large_first_loss"


class FindingSeverity(StrEnum):
    """How bad a finding is; a note changes no outcome."""

    FAILS = "fails"
    RISKY = "risky"
    NOTE = "note"


CAUSES = {  # beside the score: with one of them the outcome is at most risky
    Kind.INITIALIZATION_ERROR: "because of an error in its weights",
    Kind.LARGE_FIRST_LOSS: "because of its first loss",
}


@dataclass(frozen=True)
class Remedy:
    """A change that was predicted and judged: what it is, in knobs too, and the outcome it leads to."""

    sentence: str  # the change as one would write it
    changes: Document  # of the description
    outcome: Outcome
    probability: float | None = None  # that such a network trains
    same_architecture: bool = False  # initialization alone
    note: str = ""  # what is changed, as text

    def __str__(self) -> str:
        chance = "" if self.probability is None else f", {self.probability:.0%}"
        return f"{self.sentence} ({self.outcome.value}{chance})"


class Cures(Protocol):
    """A search for remedies, run when it is first asked for; cut off where trying all of them would take too long."""

    def __call__(self) -> tuple[Remedy, ...]: ...

    @property
    def cut_off(self) -> bool: ...

    @property
    def why_none(self) -> str:
        """The sentence for a search that found no remedy."""
        ...


CUT_OFF = (
    "Not every change was tried, because each takes seconds to predict; with fewer tokens or blocks more are."
)


@dataclass(frozen=True)
class Finding:
    """One defect: what it is, in numbers, and what to do about it."""

    kind: Kind
    sentence: str
    advice: str  # in general
    severity: FindingSeverity
    search: Cures | None = field(default=None, compare=False, repr=False)  # of cures

    @property
    def remedy(self) -> str:
        """Changes that lead to a better outcome by theory, if a description lets them be tried; else general advice."""
        if self.search is None:
            return self.advice
        remedies, cut_off = self.search(), self.search.cut_off
        if not remedies:
            return f"{self.advice} {self.search.why_none}"
        which = "this leads" if len(remedies) == 1 else "each of these leads"
        rest = f" {CUT_OFF}" if cut_off else ""
        return f"By theory, {which} to a better outcome: {'; '.join(map(str, remedies))}.{rest}"

    def json(self) -> dict[str, str]:
        return {
            "kind": self.kind.value,
            "severity": self.severity,
            "sentence": self.sentence,
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class Exponent:
    """A log-rate of a squared quantity per block: over this depth, its error, and its limit at infinite depth.

    `error` is the larger of the spread over seeds and the finite-width scatter sqrt(2/(L d)) of one network.
    `change` is twice the log-change over the second half of the depth, a part of the score of the outcome;
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
    """A state that the block map leaves alone, and the eigenvalues of the map there (norm and overlap directions)."""

    norm: float
    overlap: float
    eigenvalues: tuple[float, float]

    @property
    def stable(self) -> bool:
        return all(abs(value) < 1 for value in self.eigenvalues)

    def json(self) -> Document:
        return {
            "norm": finite(self.norm),
            "overlap": finite(self.overlap),
            "stable": self.stable,
            "eigenvalues": [finite(value) for value in self.eigenvalues],
        }


@dataclass(frozen=True)
class Probability:
    """How often networks of this score trained in a recorded sweep; low and high as families of it are left out.

    `outside`: in which ways this network is unlike those of the sweep; empty when it is like them.
    `why_open`: why it decides nothing; empty if the outcome is a band of it.
    """

    value: float
    low: float
    high: float
    outside: tuple[str, ...] = ()
    why_open: str = ""
    forgetting: float | None = None  # late change of the log-share of the stream that is not the input's

    def json(self) -> Document:
        numbers = {name: round(getattr(self, name), 4) for name in ("value", "low", "high")}
        rest = {"why_open": self.why_open or None, "forgetting": finite(self.forgetting)}
        return {**numbers, "outside": list(self.outside), **rest}

    @property
    def sentence(self) -> str:
        """Return how many of such networks trained, and how well that is known."""
        value, low, high = self.value, self.low, self.high
        if value < 0.005:
            bound = "under 1" if high < 0.005 else f"up to {100 * high:.0f}"
            return f"almost none of such networks trained ({bound} %)"
        if value > 0.995:
            bound = "over 99" if low > 0.995 else f"at least {100 * low:.0f}"
            return f"nearly all such networks trained ({bound} %)"
        first, last = (min(max(round(100 * share), 1), 99) for share in (low, high))
        between = f"{first} to {last} %" if first < last else f"{last} %"
        return f"about {per_cent(value)} of such networks trained ({between})"

    @property
    def unlike(self) -> str:
        """Ways in which the network is not among those that were tried; empty when it is."""
        outside = "; ".join(self.outside)
        for phrase in ("(those had ", "(those were "):
            outside = outside.replace(phrase, "(tried: ")
        return f"Shares are extrapolated: {outside}." if outside else ""


@dataclass(frozen=True)
class Slowdown:
    """How many times the steps of a sound start of its shape a network is expected to need.

    `low` and `high`: between them lay 80 % of the recorded networks of families left out of the fit.
    """

    value: float
    low: float
    high: float
    added: float  # log-share of the stream that is the blocks' own at the output, the third number of a start
    tried: str  # on what it was fitted
    cause: str = ""  # what costs the most; empty if nothing costs much

    def json(self) -> Document:
        numbers = {name: round(getattr(self, name), 4) for name in ("value", "low", "high", "added")}
        return {**numbers, "tried": self.tried, "cause": self.cause or None}

    @property
    def sentence(self) -> str:
        """Return the steps as text, their cause, and what that rests on."""
        near = 0.8 <= self.value < 1.25
        times = "About as many steps" if near else f"About {self.value:.1f} times as many steps"
        cause = f", because {self.cause}" if self.cause and not near else ""
        return (
            f"{times} as a well initialized network of its shape ({self.low:.1f} to {self.high:.1f} times){cause}; "
            f"tried on {self.tried}."
        )


@dataclass(frozen=True)
class AttentionSpread:
    """How attention is spread over the keys, at the worst site; None if it was not observed."""

    condensation: float | None  # largest logit variance over 2 log n; condensed on few keys from 1 on
    entropy: float | None  # smallest expected entropy, in nats
    uniform_entropy: float | None  # log n, that of uniform attention


@dataclass(frozen=True)
class Profile:
    """What happens to tokens and gradients on the way through depth; rows (L + 1) begin at the input."""

    overlap: tuple[float, ...]  # mean cosine of two tokens
    separation: tuple[float, ...]  # 1 - overlap, exact if the overlap is near 1
    gradient: tuple[float, ...] = ()  # of the last block's; relative to the stream except in perceptrons
    halving: float | None = None  # blocks that halve 1 - overlap; negative: double it; None: too slow
    keys: float | None = None  # how many tokens attention spreads over where it spreads least, e^entropy
    visible: float | None = None  # how many it would spread over if it were uniform, mask and window included
    tokens: int | None = None  # length of the input
    norm: str | None = None  # position of the norms
    measured: bool = False  # from a model, else from theory
    left_out: str = ""  # which tokens of the input were not measured, and why

    def __repr__(self) -> str:
        return f"<Profile of {self.depth} blocks: overlap {self.overlap[0]:.3g} to {self.overlap[-1]:.3g}>"

    @property
    def depth(self) -> int:
        """Blocks, or layers of a perceptron."""
        return len(self.overlap) - 1


@dataclass(frozen=True, repr=False)
class Verdict(WithProvenance):
    """What a trace means, in scalars and sentences: `print(verdict)` for people, `verdict.json()` for machines.

    >>> import edgewise
    >>> edgewise.judge(edgewise.predict("gpt2", tokens=16)).trains
    True
    """

    outcome: Outcome  # will it train?
    phase: Phase  # by the sign of the angle exponent
    angle: Exponent  # of 1 - overlap between different tokens
    gradient: Exponent | None  # of |g|^2 towards the input; None if no gradient was followed
    relative_gradient: Exponent | None  # of |g|^2 q, which does not see the scale of the stream
    probability: Probability | None = None  # how often such networks trained in a recorded sweep
    slowdown: Slowdown | None = None  # how many times the steps of a sound start; None if it is not known
    embedding_jump: float | None = None  # log-change of the relative gradient across the first block
    depth_scale: float | None = None  # blocks in which a difference changes by a factor e
    fixed_points: tuple[FixedPoint, ...] = ()  # of the last block's map, repeated without end
    power_law: float | None = None  # zeta with 1 - overlap ~ norm^zeta if the stream grows without bound
    attention: AttentionSpread | None = None  # None without attention
    perceptron: Document | None = None  # limits of a perceptron's maps, by name
    findings: tuple[Finding, ...] = ()  # what is wrong and what to do, the worst first
    ruled_out: tuple[str, ...] = ()  # what was inspected and is not the trouble
    profile: Profile = Profile((0.0,), (1.0,))  # overlap and gradient through depth
    provenance: Provenance = UNKNOWN  # source of the numbers

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """Changes that lead to a better outcome by theory, best first and then cheapest; worked out when asked for."""
        return next((finding.search() for finding in self.findings if finding.search is not None), ())

    @property
    def capped(self) -> str:
        """The reason why the outcome is not that of the score, which then has no probability; empty if it is."""
        if self.probability is not None:
            return ""
        return next((CAUSES[finding.kind] for finding in self.findings if finding.kind in CAUSES), "")

    @property
    def trains(self) -> bool | None:
        """Return whether such a network trains: True or False, None if that is risky or undecided."""
        return {Outcome.TRAINS: True, Outcome.FAILS: False}.get(self.outcome)

    def __bool__(self) -> bool:
        raise BadInput(
            f"a verdict is not true or false: this one says {self.outcome.value!r}. "
            "Use verdict.trains (True, False, or None if it is risky), or verdict.outcome."
        )

    def __repr__(self) -> str:
        chance = "" if self.probability is None else f", {per_cent(self.probability.value)}"
        name = self.name if len(self.name) <= 80 else f"{self.name[:79]}…"
        return f"<Verdict {name or 'this network'!s}, {self.depth} blocks: {self.outcome.value}{chance}; print it>"

    @property
    def depth(self) -> int:
        """Blocks, or layers of a perceptron."""
        return self.profile.depth

    @property
    def decisive_gradient(self) -> Exponent | None:
        """The one that counts for the outcome: relative to the stream, which norms rescale; raw for a perceptron."""
        return self.relative_gradient if self.perceptron is None else self.gradient

    def report(self, path: str | Path, trace: Trace | None = None) -> Path:
        """Write a page that needs nothing else: answer, fixes, curves, numbers, what repeats it.

        path   an .html file
        trace  what was judged; with it the page also has the norm, the description and the curves after the first fix
        """
        from edgewise import present

        return present.write_verdict(self, path, trace)

    def __str__(self) -> str:
        from edgewise import present

        return present.as_text(present.card_of(self))

    def json(self) -> Document:
        """Return the published form, `schema/prediction-1.json`."""
        attention = self.attention or AttentionSpread(None, None, None)
        return {
            "outcome": self.outcome.value,
            "phase": self.phase.value,
            "angle": self.angle.json(),
            "gradient": self.gradient and self.gradient.json(),
            "relative_gradient": self.relative_gradient and self.relative_gradient.json(),
            "readout": self.readout or None,
            "training_probability": self.probability and self.probability.json(),
            "slowdown": self.slowdown and self.slowdown.json(),
            "capped": self.capped or None,
            "embedding_jump": finite(self.embedding_jump),
            "depth_scale": finite(self.depth_scale),
            "fixed_points": [point.json() for point in self.fixed_points],
            "power_law": finite(self.power_law),
            "condensation": finite(attention.condensation),
            "attention_entropy": finite(attention.entropy),
            "uniform_entropy": finite(attention.uniform_entropy),
            "perceptron": self.perceptron,
            "findings": [finding.json() for finding in self.findings],
            "ruled_out": list(self.ruled_out),
            "departure": self.departure or None,
            "extrapolated": list(self.extrapolated),
            "notes": list(self.notes),
            "source": self.source,
        }


def per_cent(share: float) -> str:
    """Return a share as a person says it.

    >>> per_cent(0.344), per_cent(0.001), per_cent(0.9999)
    ('34 %', 'under 1 %', 'over 99 %')
    """
    return "under 1 %" if share < 0.005 else "over 99 %" if share > 0.995 else f"{100 * share:.0f} %"


def finite(value: float | None) -> float | None:
    """JSON has no infinity: a number that is not finite is null (a finding says why)."""
    return None if value is None or not math.isfinite(value) else float(value)
