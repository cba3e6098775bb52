"""Equations become MathML while the site is built: browsers draw it themselves, so no page fetches anything."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(content: str, **_: Any) -> str:
    """mkdocs calls this with each page's HTML, after arithmatex has marked the equations."""
    return _EQUATION.sub(_as_mathml, content)


def _as_mathml(found: re.Match[str]) -> str:
    display = "block" if found["open"] == "[" else "inline"
    return convert(html.unescape(found["latex"]).strip(), display=display)
