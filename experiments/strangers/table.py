"""The table of all verbs from recorded answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .judge import CLASSES
from .verbs import VERBS

Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """Markdown: a line for each verb, over all strangers, and the shares of the softmax transformers."""
    head = ["", *CLASSES, "changed", "right of softmax", "seconds, median and most"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for verb in VERBS:
        counts = summary(rows, verb)
        cells = [str(counts["classes"][name]) for name in CLASSES]
        share = f"{counts['softmax right']} of {counts['softmax']}"
        percent = f" ({counts['softmax right'] / counts['softmax']:.0%})" if counts["softmax"] else ""
        cells += [str(counts["changed"]), share + percent, f"{counts['median']:.1f}, {counts['most']:.1f}"]
        lines.append("| " + " | ".join([verb, *cells]) + " |")
    skipped = sorted({row["name"] for row in rows if row["class"] == "skipped"})
    names = {row["name"] for row in rows} - set(skipped)
    lines += ["", f"{len(names)} models" + (f"; skipped: {', '.join(skipped)}" if skipped else "")]
    return "\n".join(lines)


def table_json(rows: list[Row]) -> dict[str, Any]:
    return {verb: summary(rows, verb) for verb in VERBS}


def summary(rows: list[Row], verb: str) -> dict[str, Any]:
    mine = [row for row in rows if row["verb"] == verb and row["class"] != "skipped"]
    softmax = [row for row in mine if row["softmax"]]
    seconds = sorted(row.get("seconds", 60.0) for row in mine) or [0.0]
    return {
        "classes": dict.fromkeys(CLASSES, 0) | Counter(row["class"] for row in mine),
        "changed": sum(bool(row.get("changed")) for row in mine),
        "softmax": len(softmax),
        "softmax right": sum(row["class"] == "right" for row in softmax),
        "median": seconds[len(seconds) // 2],
        "most": seconds[-1],
    }
