"""HTML: elements in which no text can become markup, cards, panels in SVG, and the frame of a page that loads nothing.

Every name in a page may come from a stranger's file. All text is escaped where it is put in, and a content security
policy allows the page's own style by its hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import platform
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgewise import __version__
from edgewise.errors import BadInput
from edgewise.files import whole_file
from edgewise.nouns.card import Card, CardTable, Curve, Panel
from edgewise.nouns.verdict import Outcome
from edgewise.present.wording import capitalised, whole_sentence

VOID = ("br", "link", "meta")


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | float | None


def escape(text: str) -> str:
    """Text for an element or a quoted attribute; what is not text (a lone surrogate, a control letter) is a mark."""
    whole = text.encode("utf-8", "replace").decode()
    return html.escape(_CONTROL.sub("\ufffd", whole), quote=True)


def element(name: str, *children: Child, **attributes: Child) -> Html:
    """Return one element; `class_` is class, `stroke_width` is stroke-width, an attribute of None is left out.

    >>> element("p", "a < b", class_="lead")
    '<p class="lead">a &lt; b</p>'
    """
    pairs = (
        (key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None
    )
    start = "".join(f' {key}="{_text(value)}"' for key, value in pairs)
    if name in VOID:
        return Html(f"<{name}{start}>")
    return Html(f"<{name}{start}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Pieces one after the other; None is nothing."""
    return Html(
        "".join(child if isinstance(child, Html) else _text(child) for child in children if child is not None)
    )


def prose(sentence: str) -> str:
    """Return a sentence in which no line breaks before a per-cent sign."""
    return sentence.replace(" %", "\u00a0%")


def sentence_case(text: str) -> str:
    """Return the shell's half sentences as whole ones."""
    return prose(whole_sentence(text))


def _text(value: Child) -> str:
    return escape(f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value))


STYLE = "page.css"


LARGEST = 1_500_000  # bytes


def document(title: str, sections: Iterable[Html | None]) -> str:
    """Return the whole file."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", style()),
    )
    body = element("body", element("main", *sections), class_="edgewise sheet")
    return "<!doctype html>\n" + element("html", head, body, lang="en")


def save(path: str | Path, text: str) -> Path:
    """Write the file, whole or not at all."""
    place = Path(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"a report is an .html file, got {place.name!r}. Name it report.html, for example.")
    if not place.parent.is_dir():
        raise BadInput(
            f"the folder {str(place.parent)!r} for the report does not exist. Create it, or name another."
        )
    content = text.encode()
    if len(content) > LARGEST:
        raise BadInput(
            f"the report would have {len(content):,} bytes, more than {LARGEST:,}: it has names or notes of "
            "unusual length. Shorten them."
        )
    with whole_file(place) as file:
        file.write(content)
    return place


@cache
def style() -> Html:
    """Return the stylesheet, our own file."""
    return Html(files("edgewise.present").joinpath(STYLE).read_text(encoding="utf-8"))


def policy() -> str:
    """Nothing is loaded, sent or run; only the stylesheet of this page counts."""
    return (
        f"default-src 'none'; style-src {digest(style())}; img-src data:; base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """Return 'sha256-...', by which a policy allows a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def header(name: str, about: str) -> Html:
    """Return the line above the answer: what the report is about, and what wrote it."""
    return element(
        "header",
        element("span", element("b", name)),
        element("span", f"{about} · edgewise {__version__}"),
        class_="meta",
    )


def section(title: str, *content: Html | None) -> Html:
    return element("section", element("h2", title), *content)


def foot(packages: Iterable[str], *more: str) -> Html:
    """Versions, in one line at the end."""
    versions = [f"edgewise {__version__}", f"Python {platform.python_version()}"]
    for package in packages:
        with suppress(PackageNotFoundError):
            versions.append(f"{package} {version(package)}")
    return element("p", " · ".join([*versions, *more]), class_="meta foot")


WIDTH, HEIGHT = 210.0, 150.0  # of one picture
LEFT, RIGHT, TOP, BOTTOM = 2.0, 158.0, 28.0, 122.0  # of its axes
SHAPES = {"points": 13, "hollow": 13}  # of one curve: more cannot be told apart
MOST_POINTS = 400  # of a line
CLASSES = {"line": "curve", "second": "after"}
DECADES = 1.3  # from this span on a scale is logarithmic


@dataclass(frozen=True)
class HeightScale:
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
            (10.0**power, f"1e{power:.0f}" if abs(power) > 4 else f"{10.0**power:g}")
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
    scale = around(numbers)
    if panel.y_range:
        low, high = (_log(end) if panel.log_y else end for end in panel.y_range)
        scale = HeightScale(low, high, panel.log_y)
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


def around(numbers: Sequence[float]) -> HeightScale:
    """Return whole decades if the numbers span many; else round numbers around them.

    >>> around([0.2, 30.0])
    HeightScale(low=-1.0, high=2.0, logarithmic=True)
    >>> around([1.7, 2.3])
    HeightScale(low=1.7, high=2.3, logarithmic=False)
    """
    low, high = min(numbers), max(numbers)
    if low > 0 and math.log10(high) - math.log10(low) > DECADES:
        return HeightScale(float(math.floor(math.log10(low))), float(math.ceil(math.log10(high))))
    span = high - low or abs(high) or 1.0
    unit = 10.0 ** math.floor(math.log10(span))
    unit *= next(share for share in (0.2, 0.5, 1.0) if span / (unit * share) <= 5 or share == 1.0)
    low, high = math.floor(low / unit + 1e-9) * unit, math.ceil(high / unit - 1e-9) * unit
    return HeightScale(float(f"{low:.6g}"), float(f"{max(high, low + unit):.6g}"), logarithmic=False)


def _grid(scale: HeightScale) -> list[Html]:
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
        "text", name, class_="label", x=RIGHT - 2, y=height - 6 if above else height + 14, text_anchor="end"
    )


def _spoken(panel: Panel, steps: bool) -> str:
    """Return the picture in a sentence, for those who do not see it."""
    curve = next((curve for curve in panel.curves if curve.role in SHAPES), panel.curves[0])
    values = [float(y) for y in curve.y if not math.isnan(y)]
    first, last = (
        f"{value:.3g}" if math.isfinite(value) else "beyond the range of numbers"
        for value in (values[0], values[-1])
    )
    where = ("at first", "at the end") if steps or panel.log_x else ("at the input", "at the output")
    return f"{panel.title}: {first} {where[0]}, {last} {where[1]}"


def _line(curve: Curve, scale: HeightScale, first: float, last: float) -> Html:
    """Move over a gap; a point alone is a short dash, so that it is seen."""
    points = _thinned(curve, MOST_POINTS)
    parts, pen = [], False
    for (x, y), (_, following) in pairwise([*points, (0.0, math.nan)]):
        if not math.isnan(y):
            parts.append(f"{'L' if pen else 'M'}{_across(x, first, last):.1f} {scale.place(y):.1f}")
            parts.append("h.01" if not pen and math.isnan(following) else "")
        pen = not math.isnan(y)
    return element("path", class_=CLASSES[curve.role], d="".join(parts))


def _shapes(curve: Curve, scale: HeightScale, first: float, last: float) -> Html:
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


KINDS = {outcome: outcome.name.lower() for outcome in Outcome}
SHOWN = 20  # rows of a plan in a notebook


def as_html(card: Card) -> str:
    """Return the card as HTML with its style inside it, the way a notebook shows a result."""
    about = f"{card.title} · {card.source}" if card.source else card.title
    parts = [
        element("p", about, class_="meta"),
        answer(card, "h3"),
        sentences(card),
        *(table_html(table, SHOWN) for table in card.tables if table.kind != "numbers" or not card.answer),
        element("p", prose(card.advice)) if card.advice else None,
        figure(card),
        *(element("p", prose(note), class_="meta") for note in card.notes if not card.sentences),
    ]
    return element("div", element("style", style()), *parts, class_="edgewise card")


def glyph(outcome: Outcome) -> Html:
    """Return a shape for every outcome, so that color is never alone: disc, half disc, barred ring, dashed ring."""
    ring = {"cx": 10.0, "cy": 10.0, "r": 8.0}
    shapes = {
        Outcome.TRAINS: element("circle", class_="full", cx=10.0, cy=10.0, r=8.6),
        Outcome.RISKY: join(
            element("circle", **ring), element("path", class_="full", d="M10 2a8 8 0 0 1 0 16z")
        ),
        Outcome.FAILS: join(element("circle", **ring), element("path", d="M4.6 15.4 15.4 4.6")),
        Outcome.UNDECIDED: element("circle", stroke_dasharray="3 3", **ring),
    }
    return element("svg", shapes[outcome], class_="glyph", viewBox="0 0 20 20", aria_hidden="true")


def answer(card: Card, heading: str = "h1") -> Html | None:
    """Return the answer with its shape, and the reasons beside it as a paragraph."""
    if not card.answer:
        return None
    kind = f"outcome {KINDS[card.outcome]}"
    words = sentence_case(card.answer).removesuffix(".")
    reasons = " ".join(map(sentence_case, card.reasons))
    lead = element("p", reasons, class_="lead chance") if reasons else None
    return join(element(heading, glyph(card.outcome), words, class_=kind), lead)


def sentences(card: Card) -> Html:
    """Warnings first, then all other sentences as one paragraph."""
    kind = "undecided" if card.outcome is Outcome.UNDECIDED else "error"
    warnings = [element("p", prose(sentence), class_=f"lead {kind}") for sentence in card.warnings]
    text = prose(" ".join(card.sentences))
    return join(*warnings, element("p", text, class_="lead") if text else None)


def table_html(given: CardTable, most: int | None = None) -> Html:
    """Return a table of a card; changes as code with a shape for what each leads to."""
    if given.kind == "fixes":
        rows = [
            (
                element("code", change),
                note,
                element("span", glyph(outcome), prose(then), class_=f"then {KINDS[outcome]}"),
            )
            for (change, then, note), outcome in zip(given.rows, given.outcomes, strict=True)
        ]
        return table(("Change", "What it changes", "Then"), rows, "fixes")
    rest = len(given.rows) - (most or len(given.rows))
    shown: list[Sequence[Any]] = list(given.rows[:most])
    if given.kind == "knobs":
        shown = [(element("code", row[0]), *row[1:]) for row in given.rows]
    header = given.header if given.kind == "numbers" else tuple(map(capitalised, given.header))
    label = {"numbers": "Through the blocks", "knobs": "Description"}.get(given.kind, "")
    more = element("p", f"and {rest} more; print(plan) lists them all", class_="meta") if rest > 0 else None
    return join(table(header, shown, given.kind, label), more)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "", label: str = "") -> Html:
    """Return a table that scrolls in itself if the page is narrow."""
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in cells))
        for first, *cells in rows
    ]
    whole = element("table", element("thead", head), element("tbody", *body), class_=kind or None)
    return element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=label or header[0])


def figure(card: Card, caption: str = "") -> Html | None:
    """Return the panels of a card side by side, with a caption that says what every mark means."""
    pictures = [drawn for drawn in map(picture, card.figures) if drawn is not None]
    if not pictures:
        return None
    below = element("figcaption", prose(caption)) if caption else None
    return element("figure", element("div", *pictures, class_="three"), below)
