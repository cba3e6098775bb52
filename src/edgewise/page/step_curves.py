"""Curves over the steps of a training, in SVG: a line or two, a mark where an alarm was raised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgewise.page.curves import BOTTOM, LEFT, RIGHT, TOP, Axis, framed, words_of
from edgewise.page.markup import Html, element

DECADES = 1.3  # from this span on a scale is logarithmic
Values = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """Values at steps; None, or what is not finite, is a gap. kind is "curve", or "after" for a dashed one."""

    steps: Sequence[float]
    values: Values
    kind: str = "curve"


def step_picture(title: str, lines: Sequence[Line], marks: Sequence[float] = ()) -> Html | None:
    """One picture; None where there is nothing to draw."""
    numbers = [value for line in lines for value in seen(line.values)]
    if not numbers:
        return None
    scale = axis(numbers)
    first, last = min(line.steps[0] for line in lines), max(line.steps[-1] for line in lines)
    drawn = [_mark(_across(step, first, last)) for step in marks if first <= step <= last]
    drawn += [element("path", class_=line.kind, d=_path(line, scale, first, last)) for line in lines]
    values = seen(lines[0].values) or numbers
    spoken = f"{title}: {words_of(values[0])} at first, {words_of(values[-1])} at the end"
    return framed(title, scale, (f"step {first:g}", f"{last:g}"), drawn, spoken)


def seen(values: Values) -> list[float]:
    """What was observed."""
    return [value for value in values if value is not None and math.isfinite(value)]


def axis(numbers: Sequence[float]) -> Axis:
    """Whole decades where the numbers span many; else round numbers around them.

    >>> axis([0.2, 30.0])
    Axis(low=-1.0, high=2.0, logarithmic=True)
    >>> axis([1.7, 2.3])
    Axis(low=1.7, high=2.3, logarithmic=False)
    """
    low, high = min(numbers), max(numbers)
    if low > 0 and math.log10(high) - math.log10(low) > DECADES:
        return Axis(float(math.floor(math.log10(low))), float(math.ceil(math.log10(high))))
    span = high - low or abs(high) or 1.0
    unit = 10.0 ** math.floor(math.log10(span))
    unit *= next(share for share in (0.2, 0.5, 1.0) if span / (unit * share) <= 5 or share == 1.0)
    low, high = math.floor(low / unit + 1e-9) * unit, math.ceil(high / unit - 1e-9) * unit
    return Axis(float(f"{low:.6g}"), float(f"{max(high, low + unit):.6g}"), logarithmic=False)


def _across(step: float, first: float, last: float) -> float:
    return LEFT + (RIGHT - LEFT) * (step - first) / max(last - first, 1)


def _path(line: Line, scale: Axis, first: float, last: float) -> str:
    """Moves over a gap; a point alone is a short dash, so that it is seen."""
    parts, pen = [], False
    for step, value in zip(line.steps, line.values, strict=True):
        there = value is not None and math.isfinite(value)
        if there and value is not None:
            parts.append(f"{'L' if pen else 'M'}{_across(step, first, last):.1f} {scale.place(value):.1f}")
            parts.append("" if pen else "h.01")
        pen = there
    return "".join(parts)


def _mark(x: float) -> Html:
    return element("line", class_="alarm", x1=x, x2=x, y1=TOP, y2=BOTTOM)
