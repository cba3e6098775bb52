"""The reports of a network, a plan and a proof, each one file: the parts of its card, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.errors import BadInput
from edgewise.nouns.card import Card
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Outcome, Verdict
from edgewise.present import html, wording
from edgewise.present.cards import DepthRows, code_lines, depth_rows, description_card, verdict_card
from edgewise.present.html import Html, element, join, prose, section

if TYPE_CHECKING:
    from edgewise.repair.plan import Plan
    from edgewise.study.proof import Proof

PACKAGES = ("numpy", "torch", "transformers")


@dataclass(frozen=True)
class ReportSubject:
    """What a report is about: a verdict, and what else there is of its network."""

    verdict: Verdict
    trace: Trace | None = None
    theory: tuple[Trace, Verdict] | None = None  # from the same start, beside a measurement
    after: tuple[str, DepthRows] | None = None  # the change, and the curves it leads to
    lead: Sequence[str] = ()  # errors in the weights
    audit: Sequence[str] = ()
    command: str = ""  # that writes this report again


def write(path: str | Path, subject: ReportSubject) -> Path:
    """Write the report, whole or not at all."""
    return html.save(path, page(subject))


def page(subject: ReportSubject) -> str:
    """Return the whole document."""
    verdict = subject.verdict
    title = f"{verdict.name or 'this network'}: {verdict.outcome.value} · edgewise report"
    return html.document(title, _sections(subject))


def _sections(subject: ReportSubject) -> Iterator[Html | None]:
    verdict = subject.verdict
    theory = None if subject.theory is None else depth_rows(subject.theory[1], subject.theory[0])
    after = None if subject.after is None else subject.after[1]
    card = verdict_card(verdict, subject.trace, theory=theory, after=after, lead=subject.lead, more="")
    yield html.header(card.title, card.source)
    yield html.answer(card)
    yield html.sentences(card)
    fixes = [html.table_html(table) for table in card.tables if table.kind == "fixes"]
    if fixes or card.advice:
        yield section("Fixes", *fixes, element("p", prose(card.advice)) if card.advice else None)
    if verdict.depth > 1:
        numbers = (html.table_html(table) for table in card.tables if table.kind == "numbers")
        blocks = f"Through the {wording.nouns(verdict).blocks}"
        yield section(blocks, html.figure(card, _caption(subject)), *numbers)
    if subject.audit:
        yield section("The weights", *(element("p", prose(line.strip())) for line in subject.audit))
    numbers = (element("p", prose(line.text.strip()), class_="number") for line in wording.explain(verdict))
    yield section("The numbers", join(*numbers))
    network = None if subject.trace is None else subject.trace.architecture
    if network is not None:
        yield section("The description", *map(html.table_html, description_card(network).tables))
    repeat = subject.command or (network and code_lines(network, verdict.readout or "token"))
    alone = element("p", "This report was written from a verdict alone, without its trace.")
    yield section("Repeat it", element("pre", repeat, tabindex="0") if repeat else alone)
    yield html.foot(PACKAGES[: 3 if verdict.profile.measured else 1], verdict.source)


def _caption(subject: ReportSubject) -> str:
    """Return what every mark means."""
    names = wording.nouns(subject.verdict)
    parts = []
    if subject.theory is not None:
        parts.append("Circles: the measured model. Lines: theory from the same input.")
    else:
        parts.append(f"Lines: {'the measured model' if subject.verdict.profile.measured else 'theory'}.")
    if subject.after is not None:
        parts.append(f"Dashed: theory after {subject.after[0]}.")
    parts.append(
        f"The overlap is the mean cosine of two {names.things}; the gradient is the size that reaches a {names.block}, "
        f"of what the last {names.block} gets{'' if subject.verdict.perceptron else ', relative to the stream'}."
    )
    if subject.trace is None:
        parts.append("The norm is in the trace: verdict.report(path, trace) draws it too.")
    return " ".join(parts)


def write_verdict(verdict: Verdict, path: str | Path, trace: Trace | None = None) -> Path:
    """Write the report of a verdict; its trace adds the norm, the description and what the first fix leads to."""
    if trace is not None and not isinstance(trace, Trace):
        raise BadInput(f"trace must be the Trace that was judged, got a {type(trace).__name__}.")
    if trace is not None and trace.depth != verdict.depth:
        raise BadInput(
            f"the trace has {trace.depth} blocks and the verdict {verdict.depth}. Give the trace it judges."
        )
    return write(
        path, ReportSubject(verdict, trace, after=None if trace is None else after_fix(verdict, trace))
    )


def after_fix(verdict: Verdict, trace: Trace) -> tuple[str, DepthRows] | None:
    """Return the first remedy and its curves, by theory from the same start; None if there is nothing to fix."""
    network = trace.architecture
    if network is None or verdict.outcome in (Outcome.TRAINS, Outcome.UNDECIDED) or not verdict.remedies:
        return None
    from edgewise import verbs

    remedy = verdict.remedies[0]
    readout = verdict.readout or "token"
    overlap = float(trace.overlap[:, 0].mean())
    changed = verbs.predict(
        network.replace(**remedy.changes), start_overlap=max(overlap, 0.0), readout=readout
    )
    return remedy.sentence, depth_rows(verbs.judge(changed), changed)


def write_plan(plan: Plan, path: str | Path) -> Path:
    """Write the report of a plan."""
    from edgewise.present.plan_card import plan_card

    lines = f"plan = edgewise.critical_plan(model, batch, goal={plan.goal!r}, limit={plan.limit:g}"
    lines += f"{', frozen=True' if plan.frozen else ''})\nprint(plan)"
    return _write_card(path, plan_card(plan), "plan", lines, "The plan")


def write_proof(proof: Proof, path: str | Path) -> Path:
    """Write the report of a proof."""
    from edgewise.present.plan_card import proof_card

    seeds = len(proof.plain.finals)
    lines = f"proof = edgewise.study.prove(factory, plan, batches, steps={proof.steps}, seeds={seeds})\nprint(proof)"
    plan = section("The plan", element("pre", proof.plan, tabindex="0"))
    return _write_card(path, proof_card(proof), "both arms trained", lines, "The losses", plan)


def _write_card(path: str | Path, card: Card, about: str, code: str, title: str, *more: Html) -> Path:
    """Return a page from a card, its figure or its tables under a title of their own."""
    tables = [html.table_html(table) for table in card.tables]
    figure = html.figure(card, " ".join(card.notes))
    sections = (
        html.header(card.title, about),
        html.answer(card),
        html.sentences(card),
        *(tables if figure is not None else ()),
        section(title, *([figure] if figure is not None else tables)),
        *more,
        section("Repeat it", element("pre", code, tabindex="0")),
        html.foot(PACKAGES[:2]),
    )
    heading = html.sentence_case(card.answer).removesuffix(".")
    return html.save(path, html.document(f"{heading} · edgewise report", sections))
