"""A plan: which parameter gets which standard deviation and why, and the diagnosis behind it.

The diagnosis says whether the start is the reason, whether the plan cures it, and if not, where to look.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from edgewise.models.names.model_sites import Projection
from edgewise.nouns.architecture import Shown
from edgewise.nouns.verdict import Exponent, finite
from edgewise.stability.lyapunov import SEVERITY_LIMITS, Growth, LateChange, Severity, severity

SHOWN = 8  # kinds of frozen parameters that a sentence names
TOLERANCE = 0.5  # a plan promises its expected totals to this; what is within it of the limit is left alone


def exponent_of(growth: Growth) -> Exponent:
    """A growth over this depth as a verdict records it."""
    return Exponent(growth.rate, growth.error, None, growth.change.scalar, growth.change.error)


@dataclass(frozen=True)
class TotalChanges:
    """Log-changes over the whole depth: of 1 - overlap, and of the squared gradient towards the input.

    angle = log (1-c_L)/(1-c_0); gradient = log (|g_0|^2 q_0 / |g_L|^2 q_L), without q if no norm follows (`raw`).
    `spread` is the finite-width scatter sqrt(2L/d) of one network's log-norms.

    This is what a plan brings within its limit, and not a verdict: totals contain the first block's jump and harmless
    power laws. The limits of a verdict are about twice the change over the second half of the depth, `change` of the
    `exponents` (angle, gradient), which are there for a network as it is and None for one that a plan tries.
    """

    angle: float
    gradient: float
    raw: bool = False
    spread: float = 0.0
    exponents: tuple[Exponent, Exponent] | None = field(default=None, repr=False)

    @property
    def worst(self) -> float:
        """The larger of the two sizes; infinite if one is not a number."""
        sizes = (abs(self.angle), abs(self.gradient))
        return math.inf if any(math.isnan(size) for size in sizes) else max(sizes)

    def json(self) -> dict[str, Any]:
        return {
            "angle": finite(self.angle),
            "gradient": finite(self.gradient),
            "gradient_kind": "raw" if self.raw else "relative",
            "spread": finite(self.spread),
            "exponents": None if self.exponents is None else [exponent.json() for exponent in self.exponents],
        }

    def __str__(self) -> str:
        kind = "gradient" if self.raw else "relative gradient"
        return f"angle {self.angle:+.2f}, {kind} {self.gradient:+.2f}"


@dataclass(frozen=True)
class Change:
    """One matrix (or bias, or norm gain) that gets new values: its place, how it is drawn, and why.

    draw: normal, uniform, orthogonal, delta-orthogonal (only the filter's center, an orthogonal matrix), mirrored (in
    pairs of opposite rows, columns or both), zero, or constant (every entry is `new_std`).
    The standard deviation is the root mean square over all entries.
    """

    projection: Projection
    old_std: float | None
    new_std: float
    draw: str
    reason: str
    groups: int = 1  # of a grouped convolution
    zero_row: int | None = None  # of an embedding: its padding
    offset: float = 0.0  # what the module adds to the stored value: one for the gains of Gemma's norms

    @property
    def role(self) -> str:
        return self.projection.role

    @property
    def gain(self) -> float:
        """new_std sqrt(fan_in)."""
        return self.new_std * math.sqrt(self.projection.fan_in)

    def json(self) -> dict[str, Any]:
        place, rows = self.projection, self.projection.rows
        return {
            "parameters": list(place.parameters),
            "role": place.role,
            "fan_in": place.fan_in,
            "rows": None if rows is None else [rows.groups, rows.size, rows.start, rows.stop],
            "old_std": finite(self.old_std),
            "new_std": self.new_std,
            "draw": self.draw,
            "reason": self.reason,
        }


class Measured(NamedTuple):
    """What totals were read on: a batch, the layers, and how."""

    batch: object
    layers: Any  # `edgewise.repair.layers.LayerStack`
    raw: bool


@dataclass(frozen=True)
class Plan(Shown):
    """The changes of one goal, the total changes of the network as it is, and those expected after the change."""

    goal: str
    changes: tuple[Change, ...]
    before: TotalChanges | None
    expected: TotalChanges | None
    depth: int
    width: int
    limit: float
    source: str  # what `expected` rests on
    passes: int = 0  # forward-backward passes of the whole model that the plan took
    reached: bool = True
    diagnosis: str = ""
    notes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()  # where else to look, if the start is not the reason
    kept: tuple[str, ...] = ()  # frozen parameters (requires_grad=False) that stay as they are
    frozen: bool = False  # whether frozen parameters are written too
    measured: Measured | None = field(default=None, compare=False, repr=False)  # what `before` was read on

    @property
    def parameters(self) -> tuple[str, ...]:
        """Every parameter that would be written."""
        return tuple(dict.fromkeys(name for change in self.changes for name in change.projection.parameters))

    @property
    def kept_in_words(self) -> str:
        """A sentence on frozen parameters that stay as they are, and how to write them; empty if there are none."""
        advice = "frozen=True (in the shell --frozen) writes them too."
        return f"{frozen_in_words(self.kept)} {advice}" if self.kept else ""

    def json(self) -> dict[str, Any]:
        return {
            "goal": self.goal,
            "depth": self.depth,
            "width": self.width,
            "limit": self.limit,
            "before": None if self.before is None else self.before.json(),
            "expected": None if self.expected is None else self.expected.json(),
            "source": self.source,
            "passes": self.passes,
            "reached": self.reached,
            "diagnosis": self.diagnosis,
            "notes": list(self.notes),
            "findings": list(self.findings),
            "kept": list(self.kept),
            "frozen": self.frozen,
            "changes": [change.json() for change in self.changes],
        }

    def __repr__(self) -> str:
        reached = "" if self.reached else ", not reached"
        return (
            f"<Plan {self.goal!r}: {len(self.parameters)} parameters, {self.depth} layers{reached}; print it>"
        )

    def report(self, path: str | Path) -> Path:
        """Write a page that needs nothing else: the matrices and why, the totals before and after, what repeats it.

        path  an .html file
        """
        from edgewise import present

        return present.write_plan(self, path)

    def __str__(self) -> str:
        from edgewise import present

        return present.as_text(present.card_of(self))


def by_pattern(changes: Sequence[Change]) -> dict[tuple[str, str, str, str], list[Change]]:
    """Changes by the pattern of their names, their role, way of drawing and reason."""
    groups: dict[tuple[str, str, str, str], list[Change]] = {}
    for change in changes:
        key = (_pattern(change.projection.parameter), change.role, change.draw, change.reason)
        groups.setdefault(key, []).append(change)
    return groups


def spell(names: Sequence[str]) -> str:
    """`layers.0.w` ... `layers.47.w` as `layers.{0..47}.w`; the first name and a count if that does not fit."""
    names = list(dict.fromkeys(names))
    if len(names) == 1:
        return names[0]
    words = [name.split(".") for name in names]
    differ = [i for i in range(len(words[0])) if len({tuple(w)[i : i + 1] for w in words}) > 1]
    if len(differ) == 1 and all(len(w) == len(words[0]) for w in words):
        inside = [w[differ[0]] for w in words]
        return ".".join(
            [*words[0][: differ[0]], f"{{{inside[0]}..{inside[-1]}}}", *words[0][differ[0] + 1 :]]
        )
    return f"{names[0]} and {len(names) - 1} more"


def frozen_in_words(names: Sequence[str]) -> str:
    """Say how many frozen parameters stay as they are, and which.

    >>> frozen_in_words(["layers.0.w", "layers.1.w"])
    '2 frozen parameters (requires_grad=False) stay as they are: layers.{0..1}.w.'
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        blocks = "".join("#" if word.isdecimal() else f".{word}" for word in name.split("."))
        groups.setdefault(blocks, []).append(name)
    listed = [spell(group) for group in groups.values()]
    more = f" and {len(listed) - SHOWN} more kinds" if len(listed) > SHOWN else ""
    many = (
        "1 frozen parameter (requires_grad=False) stays as it is"
        if len(names) == 1
        else (f"{len(names)} frozen parameters (requires_grad=False) stay as they are")
    )
    return f"{many}: {', '.join(listed[:SHOWN])}{more}."


def counting_word(names: Sequence[str]) -> int | None:
    """Find the word of dotted names that counts the blocks: the first number that differs, else the first number.

    >>> counting_word(["1.layers.0.w", "1.layers.1.w"])
    2
    """
    words = list(zip(*(name.split(".") for name in names), strict=False))
    numbers = [i for i, column in enumerate(words) if all(word.isdecimal() for word in column)]
    differing = [i for i in numbers if len(set(words[i])) > 1]
    return next(iter(differing or numbers), None)


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def spread_of(values: Sequence[float | None]) -> str:
    """One number, or lowest to highest if they differ by more than 2 %."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "–"
    low, high = min(numbers), max(numbers)
    return f"{low:.4g}" if high - low <= 0.02 * abs(high) else f"{low:.3g}..{high:.3g}"


UNLESS = (
    "If this network does not train,"  # whether it does is what a verdict says, by more than these totals
)
ELSEWHERE = (
    "Check the learning rate, the data and the precision; judge(measure(model)) says what the layers do."
)


def diagnose(
    before: TotalChanges, after: TotalChanges | None, limit: float, changed: bool, skip: bool = True
) -> tuple[str, tuple[str, ...]]:
    """(diagnosis, where else to look) of a network, given its totals before and after the change, if there is one."""
    if not changed and before.worst <= limit + TOLERANCE:
        text = (
            f"Nothing to change: neither total exceeds {limit:g} by more than {TOLERANCE:g}. {UNLESS} its angle and "
            "gradient are not the reason."
        )
        return text, (ELSEWHERE,)
    sentences = [_cause(before)]
    if after is not None and not after.worst <= limit + TOLERANCE:
        which, value = _larger(after)
        if skip:
            why = (
                "the gains of these matrices do not move it, the multipliers of the skips would; if those are below "
                "one and the MLP is gated, smaller branches only let the stream die"
            )
        elif which == "angle":
            why = "without a skip this activation merges inputs at any gain: add a skip, or use an odd one such as tanh"
        else:
            why = "no common gain of the matrices moves it"
        sentences.append(
            f"No gain brings both totals within {limit:g}; the {which} still changes by {value:+.2f}: {why}."
        )
    return " ".join(sentences), ()


def with_frozen(before: TotalChanges, after: TotalChanges | None, limit: float) -> str:
    """The diagnosis where frozen weights stand in the way; `after` is None if nothing else can be written."""
    if after is None:
        return f"{_cause(before)} Nothing can be changed: the weights that would help are frozen."
    which, value = _larger(after)
    return (
        f"{_cause(before)} The weights that are not frozen do not bring both totals within {limit:g}; the {which} "
        f"still changes by {value:+.2f}."
    )


def _cause(before: TotalChanges) -> str:
    """Return what the limits of a verdict say of the network as it is: they are about the second half of its depth."""
    if before.exponents is None:
        return "The start is the reason: the signal leaves the range of floating point."
    changes = [abs(exponent.change or 0.0) for exponent in before.exponents]
    size, both = max(changes), sum(changes)
    rate = f"at the rate of the second half of the depth, the whole depth changes angle or gradient by e^{size:.1f}"
    match severity(*(LateChange(e.change or 0.0, e.change_error or 0.0) for e in before.exponents)):
        case Severity.FAILS:
            return f"{UNLESS} the start is the likely reason: {rate}, more than e^{SEVERITY_LIMITS.fails:g}."
        case Severity.RISKY:
            return f"{UNLESS} the start may be the reason: {rate}, more than e^{SEVERITY_LIMITS.risky:g}."
        case Severity.UNDECIDED:
            wide = "but one network of this width scatters too much to tell"
            return f"{UNLESS} the start may be the reason: {rate}, {wide}."
    risky = SEVERITY_LIMITS.risky
    if both > risky:  # a verdict counts the two together
        return f"{UNLESS} the start may be part of the reason: {rate}, both together by e^{both:.1f}."
    rest = " The rest of the totals is a jump or a power law in the first half." * (before.worst >= risky)
    return f"{UNLESS} its angle and gradient are not the reason: {rate}, less than e^{risky:g}.{rest}"


def _larger(totals: TotalChanges) -> tuple[str, float]:
    """The total that changes more, by name."""
    angle = abs(totals.angle) >= abs(totals.gradient)
    return ("angle", totals.angle) if angle else ("gradient", totals.gradient)
