"""Knob values at which both exponents vanish over the given depth, by bracketing; or the nearest, with what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from edgewise.architecture import Architecture
from edgewise.arrays import Array
from edgewise.blocks import attentions
from edgewise.critical.asymptotics import collapsed_norms
from edgewise.critical.block_map import BlockMap
from edgewise.critical.exponents import evaluate, refuse_structural, totals
from edgewise.errors import BadInput
from edgewise.knobs import KNOBS, refuse_unknown
from edgewise.theory.predict import refuse_start
from edgewise.verdict import finite

REACHED = 0.05  # a total log-change over the depth below this counts as none
_DOUBLINGS = 8  # a knob is sought within a factor 2^8 of where it stands
_FACTORS: Array = 2.0 ** np.arange(-_DOUBLINGS, _DOUBLINGS + 1, dtype=np.float64)

Both = Callable[[Mapping[str, Array]], tuple[Array, Array]]  # knobs to (angle, gradient)


@dataclass(frozen=True)
class CriticalPoint:
    """Values of the free knobs, and what is left per block: angle of near tokens, relative gradient."""

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

    Every root is bracketed by doubling away from the present value and closed inside its bracket.
    """
    _refuse(free)
    refuse_start(start_overlap, readout)
    start = {name: _start(architecture, name) for name in free}

    def exponents(values: Mapping[str, Array]) -> tuple[Array, Array]:
        arrays = np.broadcast_arrays(*values.values())
        flat = {name: array.ravel() for name, array in zip(values, arrays, strict=True)}
        rates = evaluate(architecture, flat, readout, start_overlap)
        return rates.near_angle.reshape(arrays[0].shape), rates.relative_gradient.reshape(arrays[0].shape)

    values = _one(exponents, start) if len(free) == 1 else _two(exponents, start, tuple(free))
    angle, gradient = (float(x[0]) for x in exponents({k: np.array([v]) for k, v in values.items()}))
    reached = max(abs(angle), abs(gradient)) * architecture.depth < REACHED
    changed = architecture.replace(**values)
    if not architecture.symmetric:
        return _with_positions(CriticalPoint(values, angle, gradient, False, "", changed), readout, start_overlap)
    return CriticalPoint(values, angle, gradient, reached, _note(changed, reached), changed)


def _with_positions(found: CriticalPoint, readout: str, start_overlap: float) -> CriticalPoint:
    """What is left by the theory that knows mask and positions; the search does without, so it is only near."""
    per_block = [total / found.architecture.depth for total in totals(found.architecture, readout, start_overlap)]
    reached = max(map(abs, per_block)) * found.architecture.depth < REACHED
    note = (
        f"Sought without mask and positions (there it leaves angle {found.angle:+.5f}, relative gradient "
        f"{found.gradient:+.5f}); what is left is said by the theory that has them."
    )
    return replace(found, angle=per_block[0], gradient=per_block[1], reached=reached, note=note)


def _refuse(free: Sequence[str]) -> None:
    if len(free) not in (1, 2) or len(set(free)) != len(free):
        raise BadInput(f"free = {list(free)!r}: name one or two different knobs.")
    refuse_unknown(free, KNOBS)
    refuse_structural(dict.fromkeys(free))


def _start(architecture: Architecture, name: str) -> float:
    value = getattr(architecture, name)
    value = float(np.mean(value)) if isinstance(value, tuple) else value
    return value if value else 1.0


def _one(exponents: Both, start: Mapping[str, float]) -> dict[str, float]:
    """The best among the roots of angle, gradient, their sum and their difference, and the best end of the search.

    Where the larger of two sizes is smallest, either one vanishes alone or both have the same size.
    """
    ((name, value),) = start.items()
    combinations: list[Callable[[Array, Array], Array]] = [
        lambda a, g: a, lambda a, g: g, lambda a, g: a + g, lambda a, g: a - g,
    ]  # fmt: skip
    candidates = list(value * _FACTORS)
    for combine in combinations:
        root = bracketed_root(lambda x, f=combine: f(*exponents({name: x})), np.array([value]))  # type: ignore[misc]
        candidates += list(root[np.isfinite(root)])
    angle, gradient = exponents({name: np.array(candidates)})
    return {name: float(candidates[int(np.argmin(np.maximum(np.abs(angle), np.abs(gradient))))])}


def _two(exponents: Both, start: Mapping[str, float], free: tuple[str, ...]) -> dict[str, float]:
    """Follow the line of zero angle exponent (inner knob) to where the gradient exponent vanishes (outer knob)."""
    outer, inner = free
    values = start[outer] * _FACTORS[_FACTORS <= 4]
    guess = np.full(len(values), start[inner])
    line = bracketed_root(
        lambda x: exponents({outer: values.reshape(-1, *[1] * (x.ndim - 1)), inner: x})[0], guess
    )
    known = np.isfinite(line)
    values, line = values[known], line[known]
    if not len(values):
        return _one(exponents, {inner: start[inner]}) | {outer: start[outer]}
    gradient = exponents({outer: values, inner: line})[1]
    changes = np.flatnonzero(gradient[:-1] * gradient[1:] < 0)
    if not len(changes):
        best = int(np.argmin(np.abs(gradient)))
        return {outer: float(values[best]), inner: float(line[best])}
    return _close(exponents, free, values[changes[-1] :][:2], float(line[changes[-1]]))


def _close(exponents: Both, free: tuple[str, ...], bracket: Array, guess: float) -> dict[str, float]:
    """brentq in the outer knob, the inner one on its zero line."""
    outer, inner = free

    def on_line(value: float) -> float:
        at = np.array([value])
        return float(bracketed_root(lambda x: exponents({outer: at, inner: x})[0], np.array([guess]))[0])

    def gradient(value: float) -> float:
        return float(exponents({outer: np.array([value]), inner: np.array([on_line(value)])})[1][0])

    root = float(brentq(gradient, *bracket, rtol=1e-6))
    return {outer: root, inner: on_line(root)}


def bracketed_root(function: Callable[[Array], Array], guess: Array) -> Array:
    """Zeros of a function of positive numbers, one per guess: the sign change nearest to it among its doublings and
    halvings, closed by Illinois steps; nan where there is none within 2^8. `function` takes (m,) or (m, k)."""
    tried = guess[:, None] * _FACTORS
    values = function(tried)
    changes = values[:, :-1] * values[:, 1:] <= 0
    distance = np.where(changes, np.abs(np.arange(len(_FACTORS) - 1) + 0.5 - _DOUBLINGS), np.inf)
    at = distance.argmin(axis=1)
    rows = np.arange(len(guess))
    found = np.isfinite(distance[rows, at])
    ends = (tried[rows, at], tried[rows, at + 1], values[rows, at], values[rows, at + 1])
    return np.where(found, _illinois(function, *ends), np.nan) if found.any() else np.full(len(guess), np.nan)


def _illinois(
    function: Callable[[Array], Array], low: Array, high: Array, f_low: Array, f_high: Array
) -> Array:
    """Regula falsi in log x with the Illinois correction: superlinear, and never outside the bracket."""
    a, b = np.log(low), np.log(high)
    for _ in range(60):
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(f_low == f_high, a, (a * f_high - b * f_low) / (f_high - f_low))
        x = np.clip(np.where(np.isfinite(x), x, a), np.minimum(a, b), np.maximum(a, b))
        f = function(np.exp(x))
        crossed = f * f_high <= 0
        a, f_low = np.where(crossed, b, a), np.where(crossed, f_high, f_low / 2)
        b, f_high = x, f
        if np.all((np.abs(f) < 1e-13) | (np.abs(b - a) < 1e-12)):
            break
    return np.exp(b)


def _note(architecture: Architecture, reached: bool) -> str:
    """Why the two exponents cannot vanish together while attention is on."""
    if reached and np.max(np.abs(architecture.attention_branch)) > 0.05:
        return ""
    attention = next(attentions(architecture.blocks[-1]), None)
    strength = attention.branch * attention.value_gain if attention else 0.0
    norms = collapsed_norms(BlockMap.of(architecture))
    if not strength:
        return "These knobs alone do not reach it; free another one."
    skip = architecture.blocks[-1][0].skip
    stated = ""
    if norms and skip:
        value = math.log1p(strength**2 / (skip**2 * norms[0]))
        stated = f" (at collapse by log(1 + branch^2 value_gain^2 / (skip^2 q*)) = {value:.4f} per block)"
    if reached:
        return (
            "Only the limit of a small attention branch does it: the values found are already in that limit."
        )
    return (
        f"The gradient exponent of a pooled signal exceeds the angle exponent while attention is on{stated}: "
        "both vanish together only in the limit of a small attention branch; free attention_branch, or scale "
        "branches by 1/sqrt(depth)."
    )
