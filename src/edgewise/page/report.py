"""The report of a network: answer, fixes, curves, numbers, description, in the words of the shell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise import words
from edgewise.errors import BadInput
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Outcome, Verdict
from edgewise.page import code, pieces, sheet
from edgewise.page.curves import Rows, rows, three_curves
from edgewise.page.markup import Html, element, prose
from edgewise.page.sheet import section

PACKAGES = ("numpy", "torch", "transformers")


@dataclass(frozen=True)
class Subject:
    """What a report is about: a verdict, and whatever else there is of its network."""

    verdict: Verdict
    trace: Trace | None = None
    theory: tuple[Trace, Verdict] | None = None  # from the same start, beside a measurement
    after: tuple[str, Rows] | None = None  # the change, and the curves it leads to
    lead: Sequence[str] = ()  # errors in the weights
    audit: Sequence[str] = ()
    command: str = ""  # that writes this report again


def write(path: str | Path, subject: Subject) -> Path:
    """The report, whole or not at all."""
    return sheet.save(path, page(subject))


def page(subject: Subject) -> str:
    """The whole document."""
    verdict = subject.verdict
    title = f"{verdict.name or 'this network'}: {verdict.outcome.value} · edgewise report"
    return sheet.document(title, _sections(subject))


def _sections(subject: Subject) -> Iterator[Html | None]:
    verdict = subject.verdict
    yield sheet.header(words.title(verdict), words.method(verdict))
    yield pieces.answer(verdict)
    yield pieces.happening(verdict, subject.lead)
    if (fixes := pieces.fixes(verdict)) is not None:
        yield section("Fixes", fixes)
    if verdict.depth > 1:
        yield section(f"Through the {words.nouns(verdict).blocks}", *_depth(subject))
    if subject.audit:
        yield section("The weights", *(element("p", prose(line.strip())) for line in subject.audit))
    yield section("The numbers", pieces.numbers(verdict))
    network = None if subject.trace is None else subject.trace.architecture
    if network is not None:
        yield section("The description", pieces.description(network))
    yield section("Repeat it", *_repeat(subject))
    yield sheet.foot(PACKAGES[: 3 if verdict.profile.measured else 1], verdict.source)


def _depth(subject: Subject) -> Iterator[Html]:
    """The three pictures with what their lines mean, then the same numbers as a table."""
    first = rows(subject.verdict, subject.trace)
    theory = None if subject.theory is None else rows(subject.theory[1], subject.theory[0])
    after = None if subject.after is None else subject.after[1]
    pictures = three_curves(subject.verdict, first, theory=theory, after=after)
    yield element("figure", pictures, element("figcaption", prose(_caption(subject, first))))
    yield pieces.through_depth(subject.verdict, first, theory)


def _caption(subject: Subject, first: Rows) -> str:
    """What every mark means."""
    names = words.nouns(subject.verdict)
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
    if not first.norm:
        parts.append("The norm is in the trace: verdict.report(path, trace) draws it too.")
    return " ".join(parts)


def _repeat(subject: Subject) -> Iterator[Html]:
    """The command, or the lines that make this network."""
    network = None if subject.trace is None else subject.trace.architecture
    if subject.command:
        yield element("pre", subject.command, tabindex="0")
    elif network is not None:
        yield element("pre", code.lines(network, subject.verdict.readout or "token"), tabindex="0")
    else:
        yield element("p", "This report was written from a verdict alone, without its trace.")


def report(verdict: Verdict, path: str | Path, trace: Trace | None = None) -> Path:
    """What `verdict.report` writes; with its trace also the norm, the description and what the first fix leads to."""
    if trace is not None and not isinstance(trace, Trace):
        raise BadInput(f"trace must be the Trace that was judged, got a {type(trace).__name__}.")
    if trace is not None and trace.depth != verdict.depth:
        raise BadInput(
            f"the trace has {trace.depth} blocks and the verdict {verdict.depth}. Give the trace it judges."
        )
    return write(path, Subject(verdict, trace, after=None if trace is None else after_fix(verdict, trace)))


def after_fix(verdict: Verdict, trace: Trace) -> tuple[str, Rows] | None:
    """The curves of the first remedy, by theory from the same start; None where there is nothing to mend."""
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
    return remedy.sentence, rows(verbs.judge(changed), changed)
