"""Norm, overlap and gradient through depth as three small pictures in SVG, for print and for both themes.

Lines are theory, open circles a measured model, dashed lines what a fix leads to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Verdict
from edgewise.present import wording
from edgewise.present.markup import Html, element, join

WIDTH, HEIGHT = 210.0, 150.0  # of one picture
LEFT, RIGHT, TOP, BOTTOM = 2.0, 158.0, 28.0, 122.0  # of its axes
POINTS = 121  # of one curve: more cannot be told apart
CIRCLES = 13


@dataclass(frozen=True)
class Rows:
    """Per block (L + 1), the input first; a row that was not observed is empty."""

    overlap: tuple[float, ...]
    gradient: tuple[float, ...] = ()  # of the last block's
    norm: tuple[float, ...] = ()  # root mean square of the stream


@dataclass(frozen=True)
class Axis:
    """A fixed scale, so that two networks can be compared by eye; logarithmic ones grow by whole decades."""

    low: float
    high: float
    logarithmic: bool = True

    def place(self, value: float) -> float:
        """Height of a value; what lies outside is drawn at the border."""
        value = _log(value) if self.logarithmic else value
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return BOTTOM - share * (BOTTOM - TOP)

    def ticks(self) -> list[tuple[float, str]]:
        """Three places with their labels."""
        middle = (self.low + self.high) / 2
        if not self.logarithmic:
            return [(value, f"{value:.3g}") for value in (self.low, middle, self.high)]
        return [
            (10.0**power, power_text(power)) for power in (self.low, middle, self.high) if power == int(power)
        ]


OVERLAP = Axis(0.0, 1.0, logarithmic=False)


def rows(verdict: Verdict, trace: Trace | None = None) -> Rows:
    """What a verdict holds, and the norm where its trace is at hand."""
    norm = () if trace is None else tuple(np.sqrt(trace.blocks("norm")).tolist())
    return Rows(verdict.profile.overlap, verdict.profile.gradient, norm)


def three_curves(
    verdict: Verdict, first: Rows, *, theory: Rows | None = None, after: Rows | None = None
) -> Html:
    """The pictures side by side; `first` is drawn as circles where there is a theory beside it."""
    names = wording.nouns(verdict)
    titles = {
        "overlap": f"Overlap of two {names.things}",
        "gradient": f"Gradient, last {names.block} = 1",
        "norm": "Norm of the stream, rms",
    }
    pictures = []
    for name, title in titles.items():
        series = {
            kind: getattr(each, name)
            for kind, each in (("line", theory), ("first", first), ("after", after))
            if each is not None and getattr(each, name)
        }
        if "first" in series:
            series = series if theory is not None else {"line": series.pop("first")} | series
            pictures.append(_picture(title, names.blocks, axis(name, series.values()), series))
    return element("div", *pictures, class_="three")


def axis(name: str, curves: Iterable[Sequence[float]]) -> Axis:
    """Overlap from 0 to 1; others one or two decades to each side, or as many as the curves need."""
    if name == "overlap":
        return OVERLAP
    least = 2 if name == "gradient" else 1
    values = [_log(v) for curve in curves for v in curve if math.isfinite(v) and v > 0]
    reach = max([least, *(math.ceil(abs(value) - 1e-9) for value in values)])
    return Axis(-float(min(reach, 300)), float(min(reach, 300)))


def _picture(title: str, blocks: str, scale: Axis, series: dict[str, Sequence[float]]) -> Html:
    depth = len(next(iter(series.values()))) - 1
    shape = {"line": _line("curve"), "after": _line("after"), "first": _circles}
    drawn = [shape[kind](scale, series[kind]) for kind in ("after", "line", "first") if kind in series]
    if scale is OVERLAP and "after" in series:
        drawn.append(_label(scale.place(series["after"][-1]), scale.place(next(iter(series.values()))[-1])))
    return framed(title, scale, ("0", f"{depth} {blocks}"), drawn, _spoken(title, series))


def framed(title: str, scale: Axis, ends: tuple[str, str], drawn: Iterable[Html], spoken: str) -> Html:
    """A picture: its title, its axes with what stands at both ends, and what is drawn on them."""
    grid = [
        join(
            element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=scale.place(value), y2=scale.place(value)),
            element("text", label, class_="tick", x=RIGHT + 6, y=scale.place(value) + 4),
        )
        for value, label in scale.ticks()
    ]
    feet = (
        element("text", ends[0], class_="tick", x=LEFT, y=BOTTOM + 18),
        element("text", ends[1], class_="tick", x=RIGHT, y=BOTTOM + 18, text_anchor="end"),
    )
    return element(
        "svg",
        element("text", title, class_="title", x=0.0, y=12.0),
        *grid,
        *feet,
        *drawn,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=spoken,
    )


def _label(height: float, other: float) -> Html:
    """A name on the dashed line, on the side where the other line is not."""
    above = other > height or height > BOTTOM - 12
    return element(
        "text",
        "after the fix",
        class_="label",
        x=RIGHT - 2,
        y=height - 6 if above else height + 14,
        text_anchor="end",
    )


def _spoken(title: str, series: dict[str, Sequence[float]]) -> str:
    values = series.get("first") or series["line"]
    return f"{title}: {words_of(values[0])} at the input, {words_of(values[-1])} at the output"


def words_of(value: float) -> str:
    """A number on a picture: three digits."""
    return f"{value:.3g}" if math.isfinite(value) else "beyond the range of numbers"


def _line(kind: str) -> Callable[[Axis, Sequence[float]], Html]:
    def draw(scale: Axis, values: Sequence[float]) -> Html:
        steps = "L".join(f"{x:.1f} {scale.place(y):.1f}" for x, y in _thinned(values, POINTS))
        return element("path", class_=kind, d=f"M{steps}")

    return draw


def _circles(scale: Axis, values: Sequence[float]) -> Html:
    dots = (
        element("circle", class_="point", cx=x, cy=scale.place(y), r=2.4)
        for x, y in _thinned(values, CIRCLES)
    )
    return join(*dots)


def _thinned(values: Sequence[float], count: int) -> list[tuple[float, float]]:
    """At most `count` of the points that are numbers, evenly, both ends among them."""
    last = max(len(values) - 1, 1)
    chosen = sorted(
        {round(last * k / (count - 1)) for k in range(count)} if last >= count else range(len(values))
    )
    return [(LEFT + (RIGHT - LEFT) * i / last, values[i]) for i in chosen if not math.isnan(values[i])]


def _log(value: float) -> float:
    return -300.0 if value <= 0 else 300.0 if math.isinf(value) else math.log10(value)


def power_text(power: float) -> str:
    """0.01, 1, 100; beyond six digits the power."""
    if abs(power) > 4:
        return f"1e{power:.0f}"
    return f"{10.0**power:g}"


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
    scale = step_axis(numbers)
    first, last = min(line.steps[0] for line in lines), max(line.steps[-1] for line in lines)
    drawn = [_mark(_across(step, first, last)) for step in marks if first <= step <= last]
    drawn += [element("path", class_=line.kind, d=_path(line, scale, first, last)) for line in lines]
    values = seen(lines[0].values) or numbers
    spoken = f"{title}: {words_of(values[0])} at first, {words_of(values[-1])} at the end"
    return framed(title, scale, (f"step {first:g}", f"{last:g}"), drawn, spoken)


def seen(values: Values) -> list[float]:
    """What was observed."""
    return [value for value in values if value is not None and math.isfinite(value)]


def step_axis(numbers: Sequence[float]) -> Axis:
    """Whole decades where the numbers span many; else round numbers around them.

    >>> step_axis([0.2, 30.0])
    Axis(low=-1.0, high=2.0, logarithmic=True)
    >>> step_axis([1.7, 2.3])
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
