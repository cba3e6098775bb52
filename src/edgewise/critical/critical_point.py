"""Knob values at which both exponents vanish over the given depth, by bracketing; or the nearest, with what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from edgewise.architecture import Architecture
from edgewise.critical.asymptotics import collapsed_norms
from edgewise.critical.block_map import BlockMap
from edgewise.critical.exponents import evaluate, refuse_structural
from edgewise.errors import BadInput
from edgewise.knobs import KNOBS, refuse_unknown
from edgewise.verdict import finite

REACHED = 0.05  # a total log-change over the depth below this counts as none
_DOUBLINGS = 14  # a knob is sought within a factor 2^14 of where it stands

Pair = tuple[float, float]


@dataclass(frozen=True)
class CriticalPoint:
    """Values of the free knobs, and the exponents per block left over there (angle of near tokens, relative gradient)."""

    values: Mapping[str, float]
    angle: float
    gradient: float
    reached: bool
    note: str
    architecture: Architecture

    def json(self) -> dict[str, Any]:
        return {
            "values": dict(self.values), "angle": finite(self.angle), "gradient": finite(self.gradient),
            "reached": self.reached, "note": self.note, "architecture": self.architecture.to_dict(),
        }  # fmt: skip

    def __str__(self) -> str:
        knobs = ", ".join(f"{name} = {value:.6g}" for name, value in self.values.items())
        found = "Critical at" if self.reached else "Nearest to critical at"
        left = f"angle {self.angle:+.5f}, relative gradient {self.gradient:+.5f} per block"
        return f"{found} {knobs}: {left}." + (f" {self.note}" if self.note else "")


def solve(
    architecture: Architecture, free: Sequence[str], readout: str = "token", start_overlap: float = 0.0
) -> CriticalPoint:
    """One free knob: the point where the larger of the two exponents is smallest. Two: angle zero, then gradient zero.

    Every root is bracketed by doubling and closed by brentq.
    """
    _refuse(free)
    start = {name: _start(architecture, name) for name in free}

    def exponents(values: Mapping[str, float]) -> Pair:
        rates = evaluate(architecture, {k: np.array([v]) for k, v in values.items()}, readout, start_overlap)
        return float(rates.near_angle[0]), float(rates.relative_gradient[0])

    values = _one(exponents, start) if len(free) == 1 else _two(exponents, start, tuple(free))
    angle, gradient = exponents(values)
    reached = max(abs(angle), abs(gradient)) * architecture.depth < REACHED
    changed = architecture.replace(**values)
    return CriticalPoint(values, angle, gradient, reached, _note(changed, reached, gradient - angle), changed)


def _refuse(free: Sequence[str]) -> None:
    if len(free) not in (1, 2) or len(set(free)) != len(free):
        raise BadInput(f"free = {list(free)!r}: name one or two different knobs.")
    refuse_unknown(free, KNOBS)
    refuse_structural(dict.fromkeys(free))


def _start(architecture: Architecture, name: str) -> float:
    value = getattr(architecture, name)
    value = float(np.mean(value)) if isinstance(value, tuple) else value
    return value if value else 1.0


def _one(exponents: Callable[[Mapping[str, float]], Pair], start: Mapping[str, float]) -> dict[str, float]:
    """The best among the roots of angle, gradient, their sum and their difference.

    Where the larger of two sizes is smallest, either one vanishes alone or both have the same size.
    """
    ((name, value),) = start.items()
    combinations = (lambda a, g: a, lambda a, g: g, lambda a, g: a + g, lambda a, g: a - g)
    candidates = [value]
    for combine in combinations:
        root = bracketed_root(lambda x, f=combine: f(*exponents({name: x})), value)
        candidates += [] if root is None else [root]
    return {name: min(candidates, key=lambda x: max(map(abs, exponents({name: x}))))}


def _two(
    exponents: Callable[[Mapping[str, float]], Pair], start: Mapping[str, float], free: tuple[str, ...]
) -> dict[str, float]:
    """Follow the line of zero angle exponent (inner knob) to where the gradient exponent vanishes (outer knob)."""
    best: tuple[float, dict[str, float]] | None = None
    for outer, inner in (free, free[::-1]):
        line = _line(exponents, outer, inner, start[inner])
        root = bracketed_root(lambda x: line(x)[1], start[outer])
        ends = [start[outer] * 2.0**k for k in (-_DOUBLINGS, -7, 0)] if root is None else [root]
        for value in ends:
            point, gradient = line(value)
            if point is not None and (best is None or abs(gradient) < best[0]):
                best = (abs(gradient), point)
    return dict(start) if best is None else best[1]


def _line(
    exponents: Callable[[Mapping[str, float]], Pair], outer: str, inner: str, guess: float
) -> Callable[[float], tuple[dict[str, float] | None, float]]:
    def at(value: float) -> tuple[dict[str, float] | None, float]:
        root = bracketed_root(lambda x: exponents({outer: value, inner: x})[0], guess)
        if root is None:
            return None, math.nan
        point = {outer: value, inner: root}
        return point, exponents(point)[1]

    return at


def bracketed_root(function: Callable[[float], float], guess: float) -> float | None:
    """A zero of a function of a positive number: double and halve away from the guess until the sign changes."""
    here = function(guess)
    if here == 0:
        return guess
    low, high, f_low, f_high = guess, guess, here, here
    for _ in range(_DOUBLINGS):
        for side in (2.0, 0.5):
            edge, f_edge = (high, f_high) if side > 1 else (low, f_low)
            value = function(edge * side)
            if math.isfinite(value) and math.isfinite(f_edge) and value * f_edge < 0:
                return float(brentq(function, *sorted((edge, edge * side)), xtol=1e-14, rtol=1e-12))
            if side > 1:
                high, f_high = high * 2, value
            else:
                low, f_low = low / 2, value
    return None


def _note(architecture: Architecture, reached: bool, gap: float) -> str:
    """Why the two exponents cannot vanish together while attention is on."""
    if reached:
        return ""
    attention = [layer for b in architecture.blocks[-1] for layer in b.layers if layer.name == "attention"]
    strength = attention[0].branch * attention[0].value_gain if attention else 0.0  # type: ignore[union-attr]
    norms = collapsed_norms(BlockMap.of(architecture))
    if not strength:
        return "These knobs alone do not reach it; free another one."
    skip = architecture.blocks[-1][0].skip
    stated = ""
    if norms and skip:
        value = math.log1p(strength**2 / (skip**2 * norms[0]))
        stated = f" (at collapse by log(1 + branch^2 value_gain^2 / (skip^2 q*)) = {value:.4f} per block)"
    return (
        f"The gradient exponent of a pooled signal exceeds the angle exponent while attention is on{stated}: both vanish "
        "together only in the limit of a small attention branch; free attention_branch, or scale branches by 1/sqrt(depth)."
    )
