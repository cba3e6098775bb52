"""The cards of a plan and of the proof that it helps, and the screen of `edgewise fix`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edgewise.nouns.card import Card, CardTable, Curve, Line, Panel
from edgewise.nouns.verdict import Outcome, Verdict
from edgewise.present import text as screen
from edgewise.present import wording
from edgewise.present.figures import Sheet
from edgewise.present.text import INDENT
from edgewise.present.wording import group, whole_sentence
from edgewise.repair.plan import Change, Plan, TotalChanges, by_pattern, spell, spread_of
from edgewise.study.proof import Arm, Proof, spread

LOSSES_SHOWN = 5  # steps of a loss curve on the screen
POINTS = 200  # of a curve
ANSWERS = {"helps": ("the plan helps", Outcome.TRAINS), "hurts": ("the plan hurts", Outcome.FAILS)}


def answers(
    name: str, plan: Plan, now: Verdict | None, then: Verdict | None, width: int, seconds: float
) -> Iterator[Line]:
    """Yield the two outcomes with their sentences; of a model that was not measured, the totals of the plan."""
    if now is None or then is None:
        yield Line(f"{name} · {plan.depth} layers · {seconds:.1f} s", "bold", len(name))
        for label, totals in (("Now", plan.before), ("Then", plan.expected)):
            if totals is not None:
                yield from screen.wrapped(f"{label}: {totals_in_words(totals)}", width, "")
        return
    yield from screen.headline(wording.title(now), wording.method(now, seconds), width)
    for label, verdict in (("Now", now), ("Then", then)):
        outcome = f"{label.ljust(6)}{verdict.outcome.value.upper()}  "
        first, *rest = screen.wrapped(outcome + wording.why(verdict), width, "", INDENT)
        yield Line(first.text, verdict.outcome.value, len("Then  ") + len(verdict.outcome.value))
        yield from rest
        for sentence in list(wording.sentences(verdict))[:2]:
            yield from screen.wrapped(sentence, width, INDENT)


def totals_in_words(totals: TotalChanges) -> str:
    """Return how much differences and gradients change over the whole depth."""
    angle, gradient = (_times(change) for change in (totals.angle, totals.gradient / 2))
    return f"from input to output differences {angle}; from output to input gradients {gradient}."


def _times(log: float) -> str:
    if not math.isfinite(log):
        return "leave the range of numbers"
    ratio = math.exp(min(abs(log), 700.0))
    if ratio < 1.5:
        return "keep their size"
    return f"{'grow' if log > 0 else 'shrink'} {wording.number(ratio) if ratio < 1e6 else 'more than a million'} times"


def plan_table(plan: Plan, width: int) -> Iterator[Line]:
    """Yield one row per kind of matrix: its group, its standard deviation now and then, how it is drawn."""
    rows = []
    for changes in by_pattern(plan.changes).values():
        names = [name for change in changes for name in change.projection.parameters]
        part = f" ({changes[0].role})" if changes[0].projection.rows is not None else ""
        old, new = (spread_of([getattr(change, key) for change in changes]) for key in ("old_std", "new_std"))
        rows.append((group(names) + part, old, new, changes[0].draw))
    stack = _shared([row[0] for row in rows])
    head = (f"Plan for {stack}" if stack else "Plan", "std now", "then", "drawn")
    cut = len(stack) + 1 if stack else 0
    yield from _aligned([head, *((INDENT + name[cut:], *cells) for name, *cells in rows)], width)


def _shared(names: Sequence[str]) -> str:
    """Return the part of the model in which all of them lie: what their names have in common up to a dot."""
    words = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return ".".join(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, words))


def _aligned(rows: Sequence[Sequence[str]], width: int) -> Iterator[Line]:
    """Columns where every row fits, else a line for the name and one for its numbers."""
    first, second, third, last = (max(map(len, column)) for column in zip(*rows, strict=True))
    fits = len(INDENT) + first + second + third + last + 9 <= width
    for number, (name, old, new, draw) in enumerate(rows):
        numbers = f"{old.rjust(second)}   {new.rjust(third)}   {draw}"
        style = "" if number else "bold"
        if fits:
            yield Line(f"{INDENT}{name.ljust(first)}   {numbers}", style)
        else:
            yield Line(f"{INDENT}{name}", style)
            yield Line(f"{2 * INDENT}{numbers}" if number else f"{2 * INDENT}std now, then, drawn", style)


def code(plan: Plan, module: Path | None, command: str) -> Iterator[Line]:
    """Yield the lines to paste."""
    yield Line(f"{INDENT}Code", "bold")
    if module is not None:
        yield Line(f"{2 * INDENT}from {module.stem} import initialize_")
        yield Line(f"{2 * INDENT}initialize_(model)")
        return
    yield Line(f"{2 * INDENT}import edgewise")
    yield Line(f"{2 * INDENT}edgewise.initialize_(model{', frozen=True' if plan.frozen else ''})")
    yield Line(f"{INDENT}The same as a file that does not need edgewise:")
    yield Line(f"{2 * INDENT}{command}")


def proof_lines(proof: Proof, width: int) -> Iterator[Line]:
    """Yield what training showed, and the loss of both arms at a few steps."""
    yield from screen.wrapped(f"Proof: {proof}", width, INDENT)
    steps = screen.columns(proof.steps, LOSSES_SHOWN if width >= screen.NARROW else 3)
    arms = {"as it is": proof.plain, "with plan": proof.planned}
    yield Line(f"{INDENT}{'loss at step':<12}" + "".join(f" {step:>7}" for step in steps))
    for label, arm in arms.items():
        yield Line(f"{INDENT}{label:<12}" + "".join(f" {loss:>7.3f}" for loss in curve(arm, steps)))


def curve(arm: Arm, steps: Sequence[int]) -> list[float]:
    """Return the mean loss over seeds at these steps; a run that diverged stays at its last."""
    return [
        sum(seed[min(max(step - 1, 0), len(seed) - 1)] for seed in arm.losses) / len(arm.losses)
        for step in steps
    ]


def notes(plan: Plan, width: int) -> Iterator[Line]:
    """Return what the plan does not reach, what was found, what stays, and where to read on."""
    for sentence in (plan.diagnosis if not plan.reached else "", *plan.findings, plan.kept_in_words):
        if sentence:
            yield from screen.wrapped(sentence, width, "")
    yield Line("The model itself is not changed. What the plan rests on: docs/fix.md", "dim")


def plan_card(plan: Plan) -> Card:
    """Return the matrices that are redrawn and why, the totals before and after, and what else there is to say."""
    count = len(plan.parameters)
    answer = f"{count} parameter{'' if count == 1 else 's'} to redraw" if count else "nothing to redraw"
    rows = tuple(_row(group) for group in by_pattern(plan.changes).values())
    totals = (
        ("Total log-changes over the depth now", plan.before),
        ("Expected after the change", plan.expected if plan.changes else None),
    )
    said = (f"{label}: {total}" for label, total in totals if total is not None)
    sentences = (*said, plan.diagnosis, *plan.findings, plan.kept_in_words, *plan.notes)
    short = "" if plan.reached else "Even so the totals would not come within the limit."
    return Card(
        f"Plan for goal {plan.goal!r}: {plan.depth} layers of width {plan.width}",
        answer,
        Outcome.TRAINS if plan.reached else Outcome.RISKY,
        reasons=(short,) if short else (),
        source=f"by {plan.source}",
        sentences=tuple(map(whole_sentence, filter(None, sentences))),
        tables=(CardTable(("parameter", "old std", "new std", "reason"), rows, "plan"),) if rows else (),
    )


def _row(group: list[Change]) -> tuple[str, ...]:
    """Return the same matrix of all layers: its names, its range of standard deviations, how it is drawn and why."""
    first = group[0]
    name = spell([name for change in group for name in change.projection.parameters])
    part = f" ({first.role})" if first.projection.rows is not None else ""
    old, new = (spread_of([getattr(change, key) for change in group]) for key in ("old_std", "new_std"))
    return name + part, old, new, f"{first.draw}; {first.reason}"


def proof_card(proof: Proof) -> Card:
    """Return what training showed, and both arms seed by seed."""
    answer, outcome = ANSWERS.get(proof.verdict, ("no difference is shown", Outcome.UNDECIDED))
    arms = (proof.plain, proof.planned)
    rows = tuple(
        (
            arm.name,
            f"{arm.trained(proof.chance)} of {len(arm.finals)}",
            ", ".join(f"{loss:.3f}" for loss in arm.finals),
        )
        for arm in arms
    )
    return Card(
        f"{proof.task} · {proof.steps} steps · {len(proof.plain.finals)} seeds",
        answer,
        outcome,
        sentences=(str(proof),),
        tables=(CardTable(("Start", "Trained", "Final loss of every seed"), rows, "arms"),),
        figures=(_losses(proof),),
        notes=(
            "Mean loss over the seeds, smoothed over a tenth of the run. "
            f"Line: {proof.plain.name}. Dashed: with the plan ({proof.planned.name}). Chance is {proof.chance:.3f}.",
        ),
    )


def _losses(proof: Proof) -> Panel:
    """Both arms, with at most `POINTS` points each."""
    curves = []
    for curve, role in zip(proof_sheet(proof).panels[0].curves, ("line", "second"), strict=True):
        every = max(1, len(curve.x) // POINTS)
        curves.append(Curve("", np.asarray(curve.x[::every]), np.asarray(curve.y[::every]), role=role))
    return Panel("Loss", "step", "", tuple(curves), legend=False)


def proof_sheet(proof: Proof, title: str = "", scale: str = "", stride: float = 1.0) -> Sheet:
    """Return the figure as data; `stride` is the number of steps between two stored losses."""
    curves = []
    for color, arm in ((1, proof.plain), (0, proof.planned)):
        whole = np.array([[*seed, *[seed[-1]] * (proof.steps - len(seed))] for seed in arm.losses])
        window = max(1, proof.steps // 10)
        # Every seed smoothed over a tenth of the run; what diverged stays at its last loss.
        padded = np.pad(whole, ((0, 0), (window - 1, 0)), mode="edge")
        smooth = np.array([np.convolve(seed, np.ones(window) / window, "valid") for seed in padded])
        low, middle, high = smooth.min(0), smooth.mean(0), smooth.max(0)
        steps = stride * np.arange(1.0, len(middle) + 1)
        curves.append(Curve(f"{arm.name}: {spread(arm.finals)}", steps, middle, color, band=(low, high)))
    panel = Panel("", "step", "loss", tuple(curves), levels=(proof.chance,))
    seeds = f"{proof.task}, {len(proof.plain.finals)} seeds (band: lowest to highest), rates tuned per arm"
    return Sheet(title, (panel,), scale or f"{seeds}; dotted: chance")
