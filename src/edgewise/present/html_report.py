"""The report of a network: answer, fixes, curves, numbers, description, in the words of the shell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.errors import BadInput
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Outcome, Verdict
from edgewise.present import html as pieces
from edgewise.present import markup as sheet
from edgewise.present import wording
from edgewise.present.cards import plan_parts, proof_parts
from edgewise.present.html import KINDS, glyph
from edgewise.present.markup import Html, element, prose, section
from edgewise.present.python_code import code_lines
from edgewise.present.svg import Line, Rows, rows, step_picture, three_curves

if TYPE_CHECKING:
    from edgewise.repair.plan import Plan
    from edgewise.study.proof import Proof

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
    yield sheet.header(wording.title(verdict), wording.method(verdict))
    yield pieces.answer(verdict)
    yield pieces.happening(verdict, subject.lead)
    if (fixes := pieces.fixes(verdict)) is not None:
        yield section("Fixes", fixes)
    if verdict.depth > 1:
        yield section(f"Through the {wording.nouns(verdict).blocks}", *_depth(subject))
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
    if not first.norm:
        parts.append("The norm is in the trace: verdict.report(path, trace) draws it too.")
    return " ".join(parts)


def _repeat(subject: Subject) -> Iterator[Html]:
    """The command, or the lines that make this network."""
    network = None if subject.trace is None else subject.trace.architecture
    if subject.command:
        yield element("pre", subject.command, tabindex="0")
    elif network is not None:
        yield element("pre", code_lines(network, subject.verdict.readout or "token"), tabindex="0")
    else:
        yield element("p", "This report was written from a verdict alone, without its trace.")


def write_verdict(verdict: Verdict, path: str | Path, trace: Trace | None = None) -> Path:
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


SHOWN = 1000  # rows of a plan
POINTS = 200  # of a curve
ANSWERS = {"helps": ("The plan helps", Outcome.TRAINS), "hurts": ("The plan hurts", Outcome.FAILS)}


def write_plan(plan: Plan, path: str | Path) -> Path:
    """What `plan.report` writes."""
    return sheet.save(path, sheet.document(f"{_plan_title(plan)} · edgewise report", _plan_sections(plan)))


def _plan_title(plan: Plan) -> str:
    count = len(plan.parameters)
    if not count:
        return "Nothing to draw anew"
    return f"{count} parameter{'' if count == 1 else 's'} to draw anew"


def _plan_sections(plan: Plan) -> Iterator[Html | None]:
    yield sheet.header(f"plan · {plan.depth} layers of width {plan.width}", f"goal {plan.goal}")
    outcome = Outcome.TRAINS if plan.reached else Outcome.RISKY
    yield element("h1", glyph(outcome), _plan_title(plan), class_=f"outcome {KINDS[outcome]}")
    if not plan.reached:
        yield element("p", "Even so the totals would not come within the budget.", class_="lead")
    yield section("The plan", *plan_parts(plan, SHOWN))
    lines = f"plan = edgewise.critical_plan(model, batch, goal={plan.goal!r}, budget={plan.budget:g}"
    lines += f"{', frozen=True' if plan.frozen else ''})\nprint(plan)"
    yield section("Repeat it", element("pre", lines, tabindex="0"))
    yield sheet.foot(PACKAGES)


def write_proof(proof: Proof, path: str | Path) -> Path:
    """What `proof.report` writes."""
    title = f"{_answer(proof)[0]} · edgewise report"
    return sheet.save(path, sheet.document(title, _proof_sections(proof)))


def _answer(proof: Proof) -> tuple[str, Outcome]:
    return ANSWERS.get(proof.verdict, ("No difference is shown", Outcome.UNDECIDED))


def _proof_sections(proof: Proof) -> Iterator[Html | None]:
    headline, outcome = _answer(proof)
    yield sheet.header(f"proof · {proof.task}", "both arms trained")
    yield element("h1", glyph(outcome), headline, class_=f"outcome {KINDS[outcome]}")
    yield from proof_parts(proof)
    picture = step_picture("Loss", _losses(proof))
    if picture is not None:
        words = (
            f"Mean loss over the seeds, smoothed over a tenth of the run. Line: {proof.plain.name}. Dashed: "
        )
        caption = f"{words}with the plan ({proof.planned.name}). Chance is {proof.chance:.3f}."
        yield section(
            "The losses",
            element("figure", element("div", picture, class_="three"), element("figcaption", caption)),
        )
    yield section("The plan", element("pre", proof.plan, tabindex="0"))
    seeds = len(proof.plain.finals)
    lines = f"proof = edgewise.study.prove(factory, plan, batches, steps={proof.steps}, seeds={seeds})\nprint(proof)"
    yield section("Repeat it", element("pre", lines, tabindex="0"))
    yield sheet.foot(PACKAGES)


def _losses(proof: Proof) -> list[Line]:
    """Both arms, with at most `POINTS` points each."""
    lines = []
    for curve, kind in zip(proof.sheet("").panels[0].curves, ("curve", "after"), strict=True):
        every = max(1, len(curve.x) // POINTS)
        lines.append(Line(curve.x[::every].tolist(), curve.y[::every].tolist(), kind))
    return lines
