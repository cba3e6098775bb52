"""Why softmax transformers are not described right, and why some are not measured: counts by cause.

A cause is known by words of the message, or by the fact that is wrong; the first that fits counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from .overruled import OUTSIDE, OVERRULED, RIGHTLY

REFUSED = {  # words of a refusal, and what they mean
    "which tokens its blocks attend to": "the input chooses which tokens attention sees, or which weights it uses",
    "mix tokens without softmax": "tokens are also mixed without softmax (state space, convolution, a shift)",
    "no attention found": "the stack that was read has no attention (a convolutional stage)",
    " sees ": "attention sees blocks, gaps or all but the token itself",
    "not joined by residual sums": "several streams, or weights on the stream between blocks",
    "which no residual sums join": "several streams, or weights on the stream between blocks",
    "residual streams of their own inside": "several streams, or weights on the stream between blocks",
    "outside the residual branches": "several streams, or weights on the stream between blocks",
    "vector": "a learned vector weighs stream and branch",
    "the number of tokens changes": "the number of tokens changes along the stack",
    "different numbers of residual sums": "blocks that are not one attention and one MLP",
    "mixes no tokens": "blocks that are not one attention and one MLP",
    "the theory has blocks of": "blocks that are not one attention and one MLP",
    "norms of some branches stand": "norms in places that the theory does not have",
    "stand in no position": "norms in places that the theory does not have",
    "are elementwise": "norms in places that the theory does not have",
    "no formula fits its activation": "an activation or MLP for which no formula fits",
    "its activation is": "an activation or MLP for which no formula fits",
    "not act on a product": "scores that are not a product of queries and keys",
    "of its stream are tokens and features": "the layout of the stream could not be proven",
    "which axis of its stream is the batch": "the layout of the stream could not be proven",
    "expected the axes": "the layout of the stream could not be proven",
    "fewer than two tokens": "images laid end to end whose sizes are not a table",
    "how strong the scores": "images laid end to end whose sizes are not a table",
    "its skip is not the stream times a number": "a gate that depends on the input weighs stream and branch",
    "did not come through": "the model did not run as it was read",
    "too few": "too few tokens to see who depends on whom",
    "by its gradient": "gradients and changed tokens do not agree on who sees whom",
    "heads or hidden width": "heads or hidden width not found",
    "it covers": "the residual sums cover a part of the blocks only",
    "did not run": "the model did not run as it was read",
    "runs and cannot be read": "the model did not run as it was read",
    "not with its stream edited": "the model did not run as it was read",
    "zero where it starts": "the stream starts at zero",
    "embedding_norm": "the stream starts at zero",
}
FACTS = {  # a fact that is wrong, and what is behind it
    "positions": "a relative bias, or positions that act in another way inside attention: no knob has them",
    "attention": "weights of attention that do not sum to one: no knob has them",
    "prediction": "theory and measurement part, and a note says so",
    "heads": "several products of queries and keys for one head",
    "causal": "masks that change with the input (prefixes), or of streams side by side",
    "window": "masks that change with the input (prefixes), or of streams side by side",
    "depth": "several stages, of which one is described",
    "branch": "multipliers of experts or of two streams",
}
COLUMNS = (
    "silently wrong",
    RIGHTLY,
    "refused wrongly",
    "refused for a wrong reason",
    "wrong with a note",
    "not judged",
)


def cause_of(record: dict[str, Any]) -> str:
    """Of a record that is not right."""
    facts = [text.partition(":")[0] for text in record.get("wrong") or ()]
    if record["outcome"] in ("silently wrong", "wrong with a note"):
        facts = [fact.removeprefix("structure, ") for fact in facts]
        return next((FACTS[fact] for fact in facts if fact in FACTS), facts[0])
    if record["outcome"] == "not judged":
        return "neither label nor checker knows it"
    text = f"{record['why']} {' '.join(record.get('wrong') or ())}"
    return next((cause for words, cause in REFUSED.items() if words in text), "other")


def lines(softmax: list[dict[str, Any]]) -> Iterator[str]:
    """Two tables in Markdown: what keeps softmax transformers from being described right, and from being measured."""
    missed = [r for r in softmax if r["outcome"] not in ("right", OVERRULED, OUTSIDE)]
    by_cause = Counter((cause_of(r), r["outcome"]) for r in missed)
    totals = Counter(cause_of(r) for r in missed)
    used = [column for column in COLUMNS if any(outcome == column for _, outcome in by_cause)]
    yield from ("## Why not all", "")
    neither = "are neither described right nor of the right structure outside the theory:"
    yield from (f"Of {len(softmax)} softmax transformers that build, {len(missed)} {neither}", "")
    yield from _header("cause", *used, "all")
    for cause, total in totals.most_common():
        yield _row(cause, *(by_cause[cause, column] for column in used), total)
    yield _row("**all**", *(sum(r["outcome"] == column for r in missed) for column in used), len(missed))
    yield from _unmeasured([r for r in softmax if not r.get("measured")])


def _unmeasured(records: list[dict[str, Any]]) -> Iterator[str]:
    causes = Counter(_why_unmeasured(record) for record in records)
    yield from ("", f"{len(records)} of them are not measured:", "")
    yield from _header("cause", "models")
    for cause, count in causes.most_common():
        yield _row(cause, count)


def _why_unmeasured(record: dict[str, Any]) -> str:
    text = record.get("not measured") or record["why"]
    if "which of its axes" in text:
        return "which axes of the stream are tokens and which are features was not certain"
    return next((cause for words, cause in REFUSED.items() if words in text), "other")


def _header(*names: str) -> Iterator[str]:
    yield "| " + " | ".join(names) + " |"
    yield "|---" * len(names) + "|"


def _row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell or "") for cell in cells) + " |"


def share(part: int, whole: int) -> str:
    """In percent, to a tenth: whole ones would round 89.6 up to a goal of 90."""
    return f"{100 * part / whole:.1f} %" if whole else "none"


def count(records: Iterable[dict[str, Any]], *outcomes: str) -> int:
    """How many records have one of these outcomes."""
    return sum(record["outcome"] in outcomes for record in records)
