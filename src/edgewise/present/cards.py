"""What a notebook shows: a card for every noun, by the templates of the report.

The records do not know who draws them: the doors (`edgewise`, `edgewise.study`) call `give_html` with every name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.nouns.architecture import Architecture
    from edgewise.nouns.trace import Trace
    from edgewise.nouns.verdict import Verdict
    from edgewise.present.markup import Html
    from edgewise.repair.plan import Plan
    from edgewise.study.proof import Proof

SHOWN = 20  # rows of a plan


def notebook_card(record: Any) -> str:
    """The card of a noun, its style inside it."""
    from edgewise.present.markup import element, style

    parts: dict[str, Callable[[Any], Iterator[Html | None]]] = {
        "Architecture": _architecture,
        "Trace": _trace,
        "Verdict": _verdict,
        "Plan": plan_parts,
        "Proof": proof_parts,
    }
    return element(
        "div", element("style", style()), *parts[type(record).__name__](record), class_="edgewise card"
    )


def _architecture(network: Architecture) -> Iterator[Html | None]:
    from edgewise.present.html import description
    from edgewise.present.markup import element, prose

    yield element(
        "p", element("b", network.name or "transformer"), f" · {network.depth} blocks", class_="meta"
    )
    yield description(network)
    for kind, notes in (("Assumed", network.assumed), ("Not modelled", network.unmodelled)):
        if notes:
            yield element("p", prose(f"{kind}: {'; '.join(notes)}."), class_="meta")


def _trace(trace: Trace) -> Iterator[Html | None]:
    """The curves and their table; what they mean is the verdict's to say."""
    from edgewise.present.html import through_depth
    from edgewise.present.markup import element
    from edgewise.present.svg import rows, three_curves
    from edgewise.verbs import judge

    verdict = judge(trace)
    name = getattr(trace.architecture, "name", "") or "trace"
    yield element("p", element("b", name), f" · {trace.depth} blocks · {trace.source}", class_="meta")
    first = rows(verdict, trace)
    if trace.depth > 1:
        yield element("figure", three_curves(verdict, first))
    yield through_depth(verdict, first)


def _verdict(verdict: Verdict) -> Iterator[Html | None]:
    from edgewise.present import html as pieces
    from edgewise.present import wording
    from edgewise.present.markup import element
    from edgewise.present.svg import rows, three_curves

    yield element("p", f"{wording.title(verdict)} · {wording.method(verdict)}", class_="meta")
    yield pieces.answer(verdict, "h3")
    yield pieces.happening(verdict)
    yield pieces.fixes(verdict)
    if verdict.depth > 1:
        yield element("figure", three_curves(verdict, rows(verdict)))


def plan_parts(plan: Plan, shown: int = SHOWN) -> Iterator[Html | None]:
    """The matrices that are drawn anew, the totals before and after, and what else there is to say."""
    from edgewise.present.html import table
    from edgewise.present.markup import element, prose
    from edgewise.repair.plan import by_pattern, spell

    yield element(
        "p",
        f"Plan for goal {plan.goal!r}: {plan.depth} layers of width {plan.width}, by {plan.source}.",
        class_="meta",
    )
    rows = [
        (
            spell([name for change in group for name in change.projection.parameters]),
            _span([change.old_std for change in group]),
            _span([change.new_std for change in group]),
            f"{group[0].draw}; {group[0].reason}",
        )
        for group in by_pattern(plan.changes).values()
    ]
    if rows:
        yield table(("Parameter", "Old std", "New std", "Reason"), rows[:shown], "plan")
    if len(rows) > shown:
        yield element("p", f"and {len(rows) - shown} more; print(plan) lists them all", class_="meta")
    for label, totals in (
        ("Total log-changes over the depth now", plan.before),
        ("Expected after", plan.expected),
    ):
        if totals is not None:
            yield element("p", f"{label}: {totals}")
    for sentence in (plan.diagnosis, *plan.findings, plan.kept_in_words, *plan.notes):
        yield element("p", prose(sentence)) if sentence else None


def proof_parts(proof: Proof) -> Iterator[Html | None]:
    """The paragraph, and both arms seed by seed."""
    from edgewise.present.html import table
    from edgewise.present.markup import element, prose

    yield element("p", f"{proof.task} · {proof.steps} steps · {len(proof.plain.finals)} seeds", class_="meta")
    yield element("p", prose(str(proof)), class_="lead")
    rows = [
        (
            arm.name,
            f"{arm.trained(proof.chance)} of {len(arm.finals)}",
            ", ".join(f"{loss:.3f}" for loss in arm.finals),
        )
        for arm in (proof.plain, proof.planned)
    ]
    yield table(("Start", "Trained", "Final loss of every seed"), rows, "arms")


def _span(deviations: Sequence[float | None]) -> str:
    """One standard deviation, or the smallest and the largest of several layers."""
    numbers = sorted({f"{value:.4g}" for value in deviations if value is not None}, key=float)
    return "–" if not numbers else numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
