"""HTML from nested calls, in which no text can become markup: every child and attribute is escaped once."""

from __future__ import annotations

import html
import re

VOID = ("br", "link", "meta")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | float | None


def escape(text: str) -> str:
    """Text for an element or a quoted attribute; what is no text (a lone surrogate, a control letter) is a mark."""
    whole = text.encode("utf-8", "replace").decode()
    return html.escape(_CONTROL.sub("\ufffd", whole), quote=True)


def element(name: str, *children: Child, **attributes: Child) -> Html:
    """One element; `class_` is class, `stroke_width` is stroke-width, an attribute of None is left out.

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
    """A sentence in which no line breaks before a per-cent sign."""
    return sentence.replace(" %", "\u00a0%")


def sentence_case(text: str) -> str:
    """The shell's half sentences as whole ones."""
    text = prose(text[:1].upper() + text[1:])
    return text if not text or text[-1] in ".!?:" else f"{text}."


def _text(value: Child) -> str:
    return escape(f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value))
