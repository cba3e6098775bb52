"""A card as HTML: what a notebook shows of a result, and the parts of its report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from edgewise.nouns.card import Card, CardTable
from edgewise.nouns.verdict import Outcome
from edgewise.present.markup import Html, element, join, prose, sentence_case, style
from edgewise.present.svg import picture

KINDS = {
    Outcome.TRAINS: "trains",
    Outcome.RISKY: "risky",
    Outcome.FAILS: "fails",
    Outcome.UNDECIDED: "undecided",
}
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
    """A shape for every outcome, so that colour is never alone: disc, half disc, barred ring, dashed ring."""
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
    """The answer with its shape, and the reasons beside it as a paragraph."""
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
    """A table of a card; changes as code with a shape for what each leads to."""
    if given.kind == "fixes":
        rows = [
            (element("code", change), note, _then(then, outcome))
            for (change, then, note), outcome in zip(given.rows, given.outcomes, strict=True)
        ]
        return table(("Change", "What it changes", "Then"), rows, "fixes")
    rest = len(given.rows) - (most or len(given.rows))
    shown: list[Sequence[Any]] = list(given.rows[:most])
    if given.kind == "knobs":
        shown = [(element("code", row[0]), *row[1:]) for row in given.rows]
    header = given.header if given.kind == "numbers" else tuple(map(_capital, given.header))
    label = {"numbers": "Through the blocks", "knobs": "Description"}.get(given.kind, "")
    more = element("p", f"and {rest} more; print(plan) lists them all", class_="meta") if rest > 0 else None
    return join(table(header, shown, given.kind, label), more)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _then(text: str, outcome: Outcome) -> Html:
    return element("span", glyph(outcome), prose(text), class_=f"then {KINDS[outcome]}")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "", label: str = "") -> Html:
    """A table that scrolls in itself where the page is narrow."""
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in cells))
        for first, *cells in rows
    ]
    whole = element("table", element("thead", head), element("tbody", *body), class_=kind or None)
    return element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=label or header[0])


def figure(card: Card, caption: str = "") -> Html | None:
    """The panels of a card side by side, with a caption that says what every mark means."""
    pictures = list(_pictures(card))
    if not pictures:
        return None
    below = element("figcaption", prose(caption)) if caption else None
    return element("figure", element("div", *pictures, class_="three"), below)


def _pictures(card: Card) -> Iterator[Html]:
    yield from (drawn for drawn in map(picture, card.figures) if drawn is not None)
