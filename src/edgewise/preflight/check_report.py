"""What a check says: findings, what holds, what is open, and the screen of all of it."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from edgewise.nouns.card import Line
from edgewise.preflight.catalog import CheckFinding

SCHEMA = "check-1"
OPEN = "are the labels the right ones, and is the rate a good one? No test of the start can know."
STYLES = {"error": "will not train", "warning": "risky", "note": "dim"}
SHOWN_NOTES = 3
HTML_STYLE = (
    ".ew-check{font:14px/1.5 system-ui,sans-serif;max-width:60em}"
    ".ew-check .e{color:#b00020}.ew-check .w{color:#9a6700}.ew-check .n{color:#666}"
    ".ew-check code{background:#8882;padding:0 .2em}.ew-check li{margin:.4em 0}"
)


@dataclass
class CheckReport:
    """The answer of `edgewise.check`.

    findings   facts that do not hold, worst first
    held       names of the facts that hold
    undecided  fact and reason, if the evidence does not tell
    not_asked  fact and reason, where a fact is about something that was not given or does not occur
    facts      numbers that were read
    cost       seconds, and as many training steps as they would have given
    """

    findings: list[CheckFinding] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    undecided: list[tuple[str, str]] = field(default_factory=list)
    not_asked: list[tuple[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = {
            kind: sum(f.severity == kind for f in self.findings) for kind in ("error", "warning", "note")
        }
        named = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in counts.items())
        return f"<CheckReport: {named}; {len(self.held)} facts hold; print it>"

    @property
    def ok(self) -> bool:
        """Tell if there is nothing but notes."""
        return not self.problems

    @property
    def problems(self) -> list[CheckFinding]:
        """Errors and warnings."""
        return [f for f in self.findings if f.severity != "note"]

    @property
    def exit_code(self) -> int:
        """0: nothing but notes; 1: warnings; 2: errors."""
        severities = {f.severity for f in self.findings}
        return 2 if "error" in severities else 1 if "warning" in severities else 0

    def json(self) -> dict[str, Any]:
        """Return the report as the schema `check-1` has it."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "exit": self.exit_code,
            "findings": [_plain(f.json()) for f in self.findings],
            "held": self.held,
            "undecided": [{"fact": name, "why": why} for name, why in self.undecided],
            "facts": _plain(self.facts),
            "cost": _plain(self.cost),
        }

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        return json.dumps(self.json(), allow_nan=False)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the report as one HTML page, and write it to `path` if one is given."""
        text = _page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _repr_html_(self) -> str:
        return _card(self)

    def __str__(self) -> str:
        return "\n".join(line.text for line in self.lines())

    def lines(self, width: int = 100) -> Iterator[Line]:
        """Yield the lines of the screen."""
        yield from _headline(self, width)
        if self.ok:
            yield from _summary(self, width)
        for number, item in enumerate(self.problems, 1):
            yield from _finding(item, f"{number} {item.severity}", width)
        notes = [f for f in self.findings if f.severity == "note"]
        for item in notes[:SHOWN_NOTES]:
            yield from _wrapped(f"  note      {item.sentence} {_places(item)}".rstrip(), width, " " * 12)
        if len(notes) > SHOWN_NOTES:
            yield Line(f"  note      and {len(notes) - SHOWN_NOTES} more: report.findings", "dim")
        for name, why in self.undecided[:3]:
            yield from _wrapped(f"  unchecked {name}: {why}", width, " " * 12)
        if self.ok:
            yield from _wrapped(f"  open      {OPEN}", width, " " * 12)
        else:
            yield Line("  Nothing was changed: weights, optimizer and random numbers are as before.", "dim")


def _headline(report: CheckReport, width: int) -> Iterator[Line]:
    errors = sum(f.severity == "error" for f in report.findings)
    warnings = sum(f.severity == "warning" for f in report.findings)
    seconds = report.cost.get("seconds", 0.0)
    steps = report.cost.get("steps")
    cost = f"{seconds:.1f} s" + (f", as long as {steps:.0f} steps" if steps and report.ok else "")
    if report.ok:
        text = f"READY   {len(report.held)} facts hold" + (
            f", {len(report.undecided)} undecided" if report.undecided else ""
        )
    else:
        counts = [_count(errors, "error"), _count(warnings, "warning")]
        word = "STOP" if errors else "LOOK"
        text = f"{word:8}{', '.join(c for c in counts if c)}; {len(report.held)} facts hold"
    style = "will not train" if errors else "risky" if warnings else "trains"
    yield Line(text + " " * max(2, width - len(text) - len(cost)) + cost, style, 6)


def _count(number: int, word: str) -> str:
    return "" if not number else f"{number} {word}{'s' if number > 1 else ''}"


def _finding(item: CheckFinding, label: str, width: int) -> Iterator[Line]:
    indent = " " * 13
    yield from _wrapped(
        f"  {label:11}{item.sentence}   {_places(item)}".rstrip(), width, indent, item.severity
    )
    if item.evidence:
        yield from _wrapped(indent + _capital(item.evidence) + ".", width, indent)
    if item.advice:
        yield from _wrapped(f"{indent}-> {item.advice}", width, indent + "   ")
    if item.follows:
        yield from _wrapped(f"{indent}from it: {', '.join(item.follows)}", width, indent, "dim")


def _wrapped(text: str, width: int, indent: str, style: str = "") -> Iterator[Line]:
    rows = textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    lead = text[: len(text) - len(text.lstrip())]
    for i, row in enumerate(rows):
        row = lead + row.lstrip() if i == 0 else row
        yield Line(
            row,
            STYLES.get(style, style) if i == 0 and style else "",
            12 if i == 0 and style in STYLES else None,
        )


def _places(item: CheckFinding) -> str:
    names = [n for n in item.places if not any(m.startswith(f"{n}, ") for m in item.places)]
    return ", ".join(names[:2]) + (f" (+{len(names) - 2})" if len(names) > 2 else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _summary(report: CheckReport, width: int) -> Iterator[Line]:
    facts = report.facts
    tensors = f"{facts.get('tensors', 0)}, {facts.get('state', 'not inspected')}, all written"
    yield Line(f"  tensors   {tensors}")
    if "first loss" in facts:
        chance = f", guessing gives {facts['chance']:.2f}" if "chance" in facts else ""
        after = (
            f"; {facts['loss after']:.2f} after {facts.get('steps', 0)} steps"
            if "loss after" in facts
            else ""
        )
        yield Line(f"  loss      {facts['first loss']:.2f} at the start{chance}{after}")
    if facts.get("label offset") is not None:
        ahead = "next token" if facts["label offset"] == 1 else f"token i{facts['label offset']:+d}"
        sees = "; no output sees its own" if facts.get("causal") else ""
        yield Line(f"  labels    {ahead}{sees}")
    if "gradient exponent per block" in facts:
        one, other = facts["cosine of tokens"]
        change = math.exp(facts["gradient exponent per block"])
        text = f"a block changes the gradient {change:.3g} times; cosine of tokens {one:.2f} before, {other:.2f} after"
        yield from _wrapped(f"  theory    {text}", width, " " * 12)
    if facts.get("steps") and "update ratio" in facts:
        text = (
            f"every parameter that has a gradient moves, by {facts['update ratio']:.2%} of its size (median)"
        )
        yield from _wrapped(f"  steps     {text}", width, " " * 12)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)


def _card(report: CheckReport) -> str:
    """Return the report as one element."""
    head = escape(next(iter(report.lines())).text)
    rows = "".join(_item(f) for f in report.findings)
    open_ = "".join(f"<li class=n>{escape(n)}: {escape(w)}</li>" for n, w in report.undecided)
    parts = [f"<style>{HTML_STYLE}</style><h3>{head}</h3>", f"<ol>{rows}</ol>" if rows else ""]
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


def _page(report: CheckReport) -> str:
    """Return the report as one HTML document."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>edgewise check</title>'
        f"<body>{_card(report)}</body></html>\n"
    )
