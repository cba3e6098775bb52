"""HTML from nested calls, in which no text can become markup, and the frame of a page: one file that loads nothing.

Every name in a page may come from a stranger's file. All text is escaped where it is put in, and a content security
policy allows the page's own style by its hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import platform
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from edgewise import __version__
from edgewise.errors import BadInput
from edgewise.files import whole_file
from edgewise.present.wording import whole_sentence

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
    return prose(whole_sentence(text))


def _text(value: Child) -> str:
    return escape(f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value))


STYLE = "page.css"


LARGEST = 1_500_000  # bytes


def document(title: str, sections: Iterable[Html | None]) -> str:
    """The whole file."""
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
    """The file, whole or not at all."""
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
    """The stylesheet, our own file."""
    return Html(files("edgewise.present").joinpath(STYLE).read_text(encoding="utf-8"))


def policy() -> str:
    """Nothing is loaded, sent or run; only the stylesheet of this page counts."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def header(name: str, about: str) -> Html:
    """The line above the answer: what the report is about, and what wrote it."""
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
    return element("p", " · ".join([*_versions(packages), *more]), class_="meta foot")


def _versions(packages: Iterable[str]) -> Iterator[str]:
    yield f"edgewise {__version__}"
    yield f"Python {platform.python_version()}"
    for package in packages:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
