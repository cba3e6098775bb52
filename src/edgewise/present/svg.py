"""A panel as a small picture in SVG, for print and for both themes: lines, circles, dashed lines, upright marks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from edgewise.nouns.figure import Curve, Panel
from edgewise.present.markup import Html, element, join

WIDTH, HEIGHT = 210.0, 150.0  # of one picture
LEFT, RIGHT, TOP, BOTTOM = 2.0, 158.0, 28.0, 122.0  # of its axes
SHAPES = {"points": 13, "hollow": 13}  # of one curve: more cannot be told apart
MOST_POINTS = 400  # of a line
CLASSES = {"line": "curve", "second": "after"}
DECADES = 1.3  # from this span on a scale is logarithmic


@dataclass(frozen=True)
class Scale:
    """A scale of heights; a logarithmic one is in powers of ten."""

    low: float
    high: float
    logarithmic: bool = True

    def place(self, value: float) -> float:
        """Return the height of a value; what lies outside is drawn at the border."""
        value = _log(value) if self.logarithmic else value
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return BOTTOM - share * (BOTTOM - TOP)

    def ticks(self) -> list[tuple[float, str]]:
        """Return both ends and the middle with their labels."""
        middle = (self.low + self.high) / 2
        if not self.logarithmic:
            return [(value, f"{value:.3g}") for value in (self.low, middle, self.high)]
        return [
            (10.0**power, _power_text(power))
            for power in (self.low, middle, self.high)
            if power == int(power)
        ]


def picture(panel: Panel) -> Html | None:
    """Draw a panel; None if it has nothing to draw. Over steps a number that is not finite is a gap."""
    steps = panel.x_label == "step"
    if steps or panel.log_x:
        gaps = (replace(c, y=np.where(np.isfinite(c.y), c.y, np.nan)) for c in panel.curves if len(c.x))
        panel = replace(panel, curves=tuple(gaps))
    if panel.log_x:
        logs = (replace(curve, x=np.log10(curve.x)) for curve in panel.curves)
        panel = replace(panel, curves=tuple(logs), places=tuple(map(math.log10, panel.places)))
    numbers = [float(y) for curve in panel.curves for y in curve.y if math.isfinite(y)]
    if not numbers:
        return None
    scale = _given(panel) if panel.y_range else around(numbers)
    first, last = (end(float(end(curve.x)) for curve in panel.curves) for end in (min, max))
    marks = [
        element("line", class_="alarm" if steps else "after", x1=x, x2=x, y1=TOP, y2=BOTTOM)
        for x in (_across(place, first, last) for place in panel.places if first <= place <= last)
    ]
    drawn = [
        (_shapes if curve.role in SHAPES else _line)(curve, scale, first, last)
        for curve in sorted(panel.curves, key=lambda curve: curve.role in SHAPES)
    ]
    names = [
        name_beside(scale.place(float(curve.y[-1])), scale.place(float(panel.curves[0].y[-1])), curve.label)
        for curve in panel.curves
        if curve.role == "second" and curve.label
    ]
    ends = (f"step {first:g}", f"{last:g}") if steps else (f"{first:g}", f"{last:g} {panel.x_label}")
    if panel.log_x:
        ends = (f"{10**first:.2g}", f"{10**last:.2g}")
    return element(
        "svg",
        element("text", panel.title, class_="title", x=0.0, y=12.0),
        *_grid(scale),
        element("text", ends[0], class_="tick", x=LEFT, y=BOTTOM + 18),
        element("text", ends[1], class_="tick", x=RIGHT, y=BOTTOM + 18, text_anchor="end"),
        *marks,
        *drawn,
        *names,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=_spoken(panel, steps),
    )


def _given(panel: Panel) -> Scale:
    assert panel.y_range is not None
    low, high = panel.y_range
    return Scale(_log(low), _log(high)) if panel.log_y else Scale(low, high, logarithmic=False)


def around(numbers: Sequence[float]) -> Scale:
    """Return whole decades if the numbers span many; else round numbers around them.

    >>> around([0.2, 30.0])
    Scale(low=-1.0, high=2.0, logarithmic=True)
    >>> around([1.7, 2.3])
    Scale(low=1.7, high=2.3, logarithmic=False)
    """
    low, high = min(numbers), max(numbers)
    if low > 0 and math.log10(high) - math.log10(low) > DECADES:
        return Scale(float(math.floor(math.log10(low))), float(math.ceil(math.log10(high))))
    span = high - low or abs(high) or 1.0
    unit = 10.0 ** math.floor(math.log10(span))
    unit *= next(share for share in (0.2, 0.5, 1.0) if span / (unit * share) <= 5 or share == 1.0)
    low, high = math.floor(low / unit + 1e-9) * unit, math.ceil(high / unit - 1e-9) * unit
    return Scale(float(f"{low:.6g}"), float(f"{max(high, low + unit):.6g}"), logarithmic=False)


def _grid(scale: Scale) -> list[Html]:
    return [
        join(
            element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=scale.place(value), y2=scale.place(value)),
            element("text", label, class_="tick", x=RIGHT + 6, y=scale.place(value) + 4),
        )
        for value, label in scale.ticks()
    ]


def name_beside(height: float, other: float, name: str) -> Html:
    """Write a name at the end of a line, on the side where the other line is not."""
    above = other > height or height > BOTTOM - 12
    return element(
        "text",
        name,
        class_="label",
        x=RIGHT - 2,
        y=height - 6 if above else height + 14,
        text_anchor="end",
    )


def _spoken(panel: Panel, steps: bool) -> str:
    """The picture in a sentence, for those who do not see it."""
    curve = next((curve for curve in panel.curves if curve.role in SHAPES), panel.curves[0])
    values = [float(y) for y in curve.y if not math.isnan(y)]
    first, last = (
        f"{value:.3g}" if math.isfinite(value) else "beyond the range of numbers"
        for value in (values[0], values[-1])
    )
    where = ("at first", "at the end") if steps or panel.log_x else ("at the input", "at the output")
    return f"{panel.title}: {first} {where[0]}, {last} {where[1]}"


def _line(curve: Curve, scale: Scale, first: float, last: float) -> Html:
    """Move over a gap; a point alone is a short dash, so that it is seen."""
    points = _thinned(curve, MOST_POINTS)
    parts, pen = [], False
    for (x, y), (_, following) in pairwise([*points, (0.0, math.nan)]):
        if not math.isnan(y):
            parts.append(f"{'L' if pen else 'M'}{_across(x, first, last):.1f} {scale.place(y):.1f}")
            parts.append("h.01" if not pen and math.isnan(following) else "")
        pen = not math.isnan(y)
    return element("path", class_=CLASSES[curve.role], d="".join(parts))


def _shapes(curve: Curve, scale: Scale, first: float, last: float) -> Html:
    """Open circles, or open squares for what is hollow in a figure."""
    points = [
        (_across(x, first, last), scale.place(y)) for x, y in _thinned(curve, SHAPES[curve.role]) if y == y
    ]
    if curve.role == "points":
        return join(*(element("circle", class_="point", cx=x, cy=y, r=2.4) for x, y in points))
    size = {"width": 4.4, "height": 4.4}
    return join(*(element("rect", class_="point", x=x - 2.2, y=y - 2.2, **size) for x, y in points))


def _thinned(curve: Curve, count: int) -> list[tuple[float, float]]:
    """At most `count` points, evenly, both ends among them."""
    last = len(curve.x) - 1
    chosen = (
        range(last + 1) if last < count else sorted({round(last * k / (count - 1)) for k in range(count)})
    )
    return [(float(curve.x[i]), float(curve.y[i])) for i in chosen]


def _across(x: float, first: float, last: float) -> float:
    return LEFT + (RIGHT - LEFT) * (x - first) / ((last - first) or 1.0)


def _log(value: float) -> float:
    return -300.0 if value <= 0 else 300.0 if math.isinf(value) else math.log10(value)


def _power_text(power: float) -> str:
    """0.01, 1, 100; beyond six digits the power."""
    return f"1e{power:.0f}" if abs(power) > 4 else f"{10.0**power:g}"
