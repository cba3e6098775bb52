"""Make the theory page that `edgewise explore` serves from docs/theory.md: one HTML file, equations as MathML.

python tools/theory_page.py          write it
python tools/theory_page.py --check  say whether it is the one that docs/theory.md gives
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import markdown
from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = ROOT / "docs" / "theory.md", ROOT / "src" / "edgewise" / "explorer" / "static" / "theory.html"
EQUATION = re.compile(r"\\\[(?P<block>.*?)\\\]|\\\((?P<inline>.*?)\\\)", re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\((?!#)[^)]+\)")  # pages that are not served here
FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Theory · edgewise</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="style.css">
</head>
<body>
<header class="top">
<a class="mark" href="/">edgewise</a>
<p class="back"><a class="why" href="/">Back to the map</a></p>
</header>
<main class="reading">
{body}
</main>
</body>
</html>
"""


def page() -> str:
    """Markdown must not see the equations: it would take their underscores for emphasis."""
    equations: list[str] = []

    def keep(match: re.Match[str]) -> str:
        display = "block" if match["block"] is not None else "inline"
        equations.append(convert((match["block"] or match["inline"]).strip(), display=display))
        return f"EQUATION{len(equations) - 1}END"

    text = LINK.sub(r"\1", EQUATION.sub(keep, SOURCE.read_text(encoding="utf-8")))
    body = markdown.markdown(text, extensions=["tables", "toc"])
    body = re.sub(r"EQUATION(\d+)END", lambda match: equations[int(match[1])], body)
    return FRAME.format(body=body)


if __name__ == "__main__":
    if "--check" in sys.argv:
        stale = PAGE.read_text(encoding="utf-8") != page()
        sys.exit(
            "docs/theory.md has changed: run `python tools/theory_page.py` and commit the page."
            if stale
            else 0
        )
    PAGE.write_text(page(), encoding="utf-8")
