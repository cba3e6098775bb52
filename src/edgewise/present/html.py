"""The parts of a page about one network: answer, fixes, table through depth, numbers, description."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edgewise.nouns.architecture import Architecture
from edgewise.nouns.knobs import KNOBS
from edgewise.nouns.perceptron import PERCEPTRON_KNOBS, Perceptron
from edgewise.nouns.verdict import Outcome, Verdict
from edgewise.present import text as screen
from edgewise.present import wording
from edgewise.present.markup import Html, element, join, prose, sentence_case
from edgewise.present.python_code import unusual_knobs
from edgewise.present.svg import Rows

KINDS = {
    Outcome.TRAINS: "trains",
    Outcome.RISKY: "risky",
    Outcome.FAILS: "fails",
    Outcome.UNDECIDED: "undecided",
}


LONGEST = 80  # letters of a value in a table


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


def answer(verdict: Verdict, heading: str = "h1") -> Html:
    """The outcome, how many of such networks trained, and in which ways this one is unlike them."""
    outcome = element(
        heading,
        glyph(verdict.outcome),
        sentence_case(verdict.outcome.value).removesuffix("."),
        class_=f"outcome {KINDS[verdict.outcome]}",
    )
    shares = [sentence_case(wording.why(verdict)), prose(wording.unlike(verdict))]
    return join(outcome, element("p", " ".join(filter(None, shares)), class_="lead chance"))


def happening(verdict: Verdict, lead: Sequence[str] = ()) -> Html:
    """Errors first, then what happens to tokens and gradients, as one paragraph."""
    errors = [
        element("p", prose(sentence), class_="lead error") for sentence in lead or wording.errors(verdict)
    ]
    sentences = [verdict.departure, *wording.sentences(verdict)]
    return join(*errors, element("p", prose(" ".join(filter(None, sentences))), class_="lead"))


def fixes(verdict: Verdict) -> Html | None:
    """The changes with the outcome each leads to; general advice where none is proven; nothing where all is well."""
    healthy = verdict.outcome in (Outcome.TRAINS, Outcome.UNDECIDED)
    remedies = () if healthy else verdict.remedies
    if not remedies:
        advice = wording.no_remedy(verdict)
        return element("p", prose(advice)) if advice else None
    rows = [
        (
            element("code", remedy.sentence),
            remedy.note,
            element(
                "span",
                glyph(remedy.outcome),
                prose(wording.then(remedy)),
                class_=f"then {KINDS[remedy.outcome]}",
            ),
        )
        for remedy in remedies
    ]
    return table(("Change", "What it changes", "Then"), rows, "fixes")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "", label: str = "") -> Html:
    """A table that scrolls in itself where the page is narrow."""
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in cells))
        for first, *cells in rows
    ]
    whole = element("table", element("thead", head), element("tbody", *body), class_=kind or None)
    return element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=label or header[0])


def through_depth(verdict: Verdict, first: Rows, theory: Rows | None = None) -> Html:
    """Overlap, gradient and norm at the input, the quarters and the end; measured above theory where both are."""
    blocks = screen.columns(verdict.depth, 5)
    lines = [("measured", first), ("theory", theory)] if theory is not None else [("", first)]
    rows = []
    for name in ("overlap", "gradient", "norm"):
        for source, values in lines:
            row = getattr(values, name)
            if values is not None and row:
                rows.append((f"{name}, {source}".removesuffix(", "), *(_cell(name, row[b]) for b in blocks)))
    header = (wording.nouns(verdict).block, *map(str, blocks))
    return table(header, rows, "numbers", "Through the blocks")


def _cell(name: str, value: float) -> str:
    if name != "overlap":
        return screen.size(value)
    digits = 2 if value < 0.99 else 4
    return ">0.9999" if value > 0.9999 else f"{value + 0.0:.{digits}f}".replace("-0.00", "0.00")


def numbers(verdict: Verdict) -> Html:
    """What `--explain` prints, one paragraph each."""
    return join(
        *(element("p", prose(line.text.strip()), class_="number") for line in wording.explain(verdict))
    )


def description(network: Architecture | Perceptron) -> Html:
    """The knobs that are not at their defaults, with what they mean, and what was assumed."""
    meanings = PERCEPTRON_KNOBS if isinstance(network, Perceptron) else KNOBS
    knobs = unusual_knobs(network)
    rows = [(element("code", name), _value(value), meanings[name].meaning) for name, value in knobs.items()]
    return table(("Knob", "Value", "Meaning"), rows, "knobs", "Description")


def _value(value: Any) -> str:
    """A knob's value in a cell; a list by its first, its last and its length."""
    if isinstance(value, tuple):
        return f"{_value(value[0])} … {_value(value[-1])} ({len(value)} values)"
    if callable(value):
        return str(getattr(value, "__qualname__", "function"))[:LONGEST]
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:LONGEST]
