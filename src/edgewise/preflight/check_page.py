"""A check as HTML: one page, or a card in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgewise.preflight.catalog import CheckFinding
    from edgewise.preflight.check_report import CheckReport

STYLE = (
    ".ew-check{font:14px/1.5 system-ui,sans-serif;max-width:60em}"
    ".ew-check .e{color:#b00020}.ew-check .w{color:#9a6700}.ew-check .n{color:#666}"
    ".ew-check code{background:#8882;padding:0 .2em}.ew-check li{margin:.4em 0}"
)


def card(report: CheckReport) -> str:
    """Return the report as one element."""
    head = escape(next(iter(report.lines())).text)
    rows = "".join(_item(f) for f in report.findings)
    open_ = "".join(f"<li class=n>{escape(n)}: {escape(w)}</li>" for n, w in report.undecided)
    parts = [f"<style>{STYLE}</style><h3>{head}</h3>", f"<ol>{rows}</ol>" if rows else ""]
    parts.append(f"<p>Undecided</p><ul>{open_}</ul>" if open_ else "")
    parts.append(
        f"<details><summary>{len(report.held)} facts hold</summary>{escape(', '.join(report.held))}</details>"
    )
    return f'<div class="ew-check">{"".join(parts)}</div>'


def _item(item: CheckFinding) -> str:
    places = " ".join(f"<code>{escape(p)}</code>" for p in item.places[:6])
    follows = f"<br><span class=n>from it: {escape(', '.join(item.follows))}</span>" if item.follows else ""
    advice = f"<br>→ {escape(item.advice)}" if item.advice else ""
    return (
        f"<li><b class={item.severity[0]}>{item.severity}</b> {escape(item.sentence)} {places}"
        f"<br>{escape(item.evidence)}{advice}{follows}</li>"
    )


def page(report: CheckReport) -> str:
    """Return the report as one HTML document."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>edgewise check</title>'
        f"<body>{card(report)}</body></html>\n"
    )
