"""The reports of a plan and of a proof: the parts of their cards, with a headline, the losses and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.nouns.verdict import Outcome
from edgewise.page import sheet
from edgewise.page.markup import Html, element
from edgewise.page.notebook import plan_parts, proof_parts
from edgewise.page.pieces import KINDS, glyph
from edgewise.page.sheet import section
from edgewise.page.step_curves import Line, step_picture

if TYPE_CHECKING:
    from edgewise.repair.plan import Plan
    from edgewise.study.proof import Proof

SHOWN = 1000  # rows of a plan
POINTS = 200  # of a curve
PACKAGES = ("numpy", "torch")
ANSWERS = {"helps": ("The plan helps", Outcome.TRAINS), "hurts": ("The plan hurts", Outcome.FAILS)}


def plan_report(plan: Plan, path: str | Path) -> Path:
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


def proof_report(proof: Proof, path: str | Path) -> Path:
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
