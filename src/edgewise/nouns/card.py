"""What is said about one result, written once: every renderer shows these words and these numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from edgewise.nouns.figure import Panel
from edgewise.nouns.verdict import Outcome


class Line(NamedTuple):
    """One line; the first `length` characters (all, if None) have the style: an outcome, `dim`, `bold` or none."""

    text: str
    style: str = ""
    length: int | None = None


@dataclass(frozen=True)
class CardTable:
    """Rows of text below a header. The kind says how they are laid out: fixes, numbers, rates, plan or knobs."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    kind: str = ""
    outcomes: tuple[Outcome, ...] = ()  # what each row leads to, for its color and shape

    def json(self) -> dict[str, Any]:
        return {"header": list(self.header), "rows": [list(row) for row in self.rows]}


@dataclass(frozen=True, eq=False)
class Card:
    """A result as it is shown: in the shell, in a notebook, in a report, as JSON and as a figure.

    >>> Card("gpt2 · 12 blocks", "trains", Outcome.TRAINS, sentences=("Tokens stay distinct.",)).json()["answer"]
    'trains'
    """

    title: str  # what the result is about
    answer: str  # in a few words
    outcome: Outcome = Outcome.UNDECIDED  # its color and shape
    reasons: tuple[str, ...] = ()  # beside the answer
    source: str = ""  # theory or measured, and how long it took
    warnings: tuple[str, ...] = ()  # before all other sentences: errors, and what could not be observed
    sentences: tuple[str, ...] = ()
    advice: str = ""  # what to do
    tables: tuple[CardTable, ...] = ()
    figures: tuple[Panel, ...] = ()
    notes: tuple[str, ...] = ()  # what the numbers do not vouch for, and what they cost

    def __repr__(self) -> str:
        return f"<Card {self.title[:120]}: {self.answer[:120]}, {len(self.sentences)} sentences>"

    def json(self) -> dict[str, Any]:
        """Return the card as plain values, its figures left out."""
        names = ("title", "answer", "source", "advice")
        lists = ("reasons", "warnings", "sentences", "notes")
        return {
            **{name: getattr(self, name) for name in names},
            "outcome": self.outcome.value,
            **{name: list(getattr(self, name)) for name in lists},
            "tables": [table.json() for table in self.tables],
        }
