"""The card of every result, made once for all renderers; a description as Python code; the audit of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import edgewise.present.wording as wording
from edgewise.audit.finding import AuditFinding, AuditSeverity, NotAudited
from edgewise.errors import BadInput
from edgewise.nouns.architecture import PERCEPTRON_KNOBS, Architecture, Perceptron, transformer
from edgewise.nouns.card import Card, CardTable, Curve, Panel
from edgewise.nouns.knobs import KNOBS
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Outcome, Verdict
from edgewise.present.text import columns
from edgewise.present.wording import capitalised, group

if TYPE_CHECKING:
    from edgewise.judgement.comparison import Comparison


MORE = "Numbers: verdict.findings, verdict.json()."
LONGEST = 80  # letters of a value in a table
MOST_DECADES = 300


def card_of(record: Any) -> Card:
    """Return the card of a result: a verdict, trace, description, comparison, plan, proof, rate, run or audit.

    >>> import edgewise
    >>> card_of(edgewise.judge(edgewise.predict({"depth": 6, "tokens": 16}))).answer
    'trains'
    """
    if isinstance(record, Verdict):
        return verdict_card(record)
    if isinstance(record, Trace):
        return trace_card(record)
    if isinstance(record, Architecture | Perceptron):
        return description_card(record)
    kind = type(record).__name__
    if kind == "Comparison":
        return comparison_card(record)
    if kind in ("Plan", "Proof"):
        from edgewise.present import plan_card

        return plan_card.plan_card(record) if kind == "Plan" else plan_card.proof_card(record)
    if kind == "Rate":
        from edgewise.present.rate_card import rate_card

        return rate_card(record)
    if kind == "Run":
        from edgewise.present.run_report import run_card

        return run_card(record)
    if isinstance(record, Sequence) and all(type(each).__name__ == "AuditFinding" for each in record):
        return audit_card(record)
    raise BadInput(
        f"a card shows a Verdict, Trace, Architecture, Comparison, Plan, Proof, Rate, Run or a list of audit "
        f"findings, got a {kind}."
    )


@dataclass(frozen=True)
class DepthRows:
    """Per block (L + 1), the input first; a row that was not observed is empty."""

    overlap: tuple[float, ...]
    gradient: tuple[float, ...] = ()  # of the last block's
    norm: tuple[float, ...] = ()  # root mean square of the stream


def depth_rows(verdict: Verdict, trace: Trace | None = None) -> DepthRows:
    """Return what a verdict holds, and the norm if its trace is given."""
    norm = () if trace is None else tuple(np.sqrt(trace.blocks("norm")).tolist())
    return DepthRows(verdict.profile.overlap, verdict.profile.gradient, norm)


def verdict_card(
    verdict: Verdict,
    trace: Trace | None = None,
    *,
    theory: DepthRows | None = None,
    after: DepthRows | None = None,
    seconds: float | None = None,
    lead: Sequence[str] = (),
    more: str = MORE,
    fixes: bool = True,
) -> Card:
    """Return the card of a verdict.

    trace    adds the norm to the table and the figures
    theory   beside a measurement
    after    what the first fix leads to
    seconds  how long it took
    lead     before all other sentences, such as errors in the weights
    more     the last note
    fixes    False to leave the remedies out, which take a search
    """
    remedies = fixes_table(verdict) if fixes else None
    first = depth_rows(verdict, trace)
    depth = verdict.depth > 1
    return Card(
        wording.title(verdict),
        verdict.outcome.value,
        verdict.outcome,
        reasons=tuple(filter(None, (wording.why(verdict), wording.unlike(verdict), wording.steps(verdict)))),
        source=wording.method(verdict, seconds),
        warnings=tuple(lead or wording.errors(verdict)),
        sentences=tuple(filter(None, (verdict.departure, *wording.sentences(verdict)))),
        advice=wording.no_remedy(verdict) if fixes and remedies is None else "",
        tables=tuple(filter(None, (remedies, depth_table(verdict, first, theory) if depth else None))),
        figures=depth_panels(verdict, first, theory, after) if depth else (),
        notes=tuple(filter(None, (*wording.vouched(verdict), wording.unseen(verdict), more))),
    )


def fixes_table(verdict: Verdict) -> CardTable | None:
    """Return the changes with the outcome each leads to; None if none is needed or proven."""
    healthy = verdict.outcome in (Outcome.TRAINS, Outcome.UNDECIDED)
    remedies = () if healthy else verdict.remedies
    if not remedies:
        return None
    rows = tuple((remedy.sentence, wording.then(remedy), remedy.note) for remedy in remedies)
    return CardTable(
        ("Change", "Then", "What it changes"), rows, "fixes", tuple(remedy.outcome for remedy in remedies)
    )


def depth_table(verdict: Verdict, first: DepthRows, theory: DepthRows | None = None) -> CardTable:
    """Return overlap, gradient and norm at the input, the quarters and the end; measured above theory."""
    blocks = columns(verdict.depth, 5)
    sources = [("", first)] if theory is None else [(", measured", first), (", theory", theory)]
    separations = {"": verdict.profile.separation, ", measured": verdict.profile.separation}
    rows = []
    for name in ("overlap", "gradient", "norm"):
        for source, values in sources:
            row = getattr(values, name)
            if row and name == "overlap":
                apart = separations.get(source) or tuple(1 - value for value in row)
                rows.append((name + source, *(wording.overlap(row[b], apart[b]) for b in blocks)))
            elif row:
                rows.append((name + source, *(wording.size(row[b]) for b in blocks)))
    return CardTable((f"after {wording.nouns(verdict).block}", *map(str, blocks)), tuple(rows), "numbers")


def depth_panels(
    verdict: Verdict, first: DepthRows, theory: DepthRows | None = None, after: DepthRows | None = None
) -> tuple[Panel, ...]:
    """Return overlap, gradient and norm through depth; `first` as points if there is a theory beside it."""
    names = wording.nouns(verdict)
    titles = {
        "overlap": f"Overlap of two {names.things}",
        "gradient": f"Gradient, last {names.block} = 1",
        "norm": "Norm of the stream, rms",
    }
    panels = []
    for name, title in titles.items():
        rows = {
            "line": getattr(first if theory is None else theory, name),
            "points": () if theory is None else getattr(first, name),
            "second": () if after is None else getattr(after, name),
        }
        if getattr(first, name):
            labels = {"second": "after the fix" if name == "overlap" else ""}
            curves = tuple(
                Curve(labels.get(role, ""), np.arange(len(row), dtype=float), np.array(row, float), role=role)
                for role, row in rows.items()
                if row
            )
            log_y = name != "overlap"
            bounds = (0.0, 1.0)
            # a decade or two to each side, or what the curves need: networks can be compared by eye
            if log_y:
                values = [
                    abs(math.log10(y)) for curve in curves for y in curve.y if math.isfinite(y) and y > 0
                ]
                reach = max([2 if name == "gradient" else 1, *(math.ceil(value - 1e-9) for value in values)])
                bounds = 10.0 ** -min(reach, MOST_DECADES), 10.0 ** min(reach, MOST_DECADES)
            panels.append(Panel(title, names.blocks, "", curves, legend=False, log_y=log_y, y_range=bounds))
    return tuple(panels)


def trace_card(trace: Trace) -> Card:
    """Return the curves of a trace and their table; what they mean is the verdict's to say."""
    from edgewise.verbs import judge

    verdict = judge(trace)
    first = depth_rows(verdict, trace)
    name = getattr(trace.architecture, "name", "") or "trace"
    return Card(
        f"{name} · {trace.depth} blocks",
        "",
        source=trace.source,
        tables=(depth_table(verdict, first),),
        figures=depth_panels(verdict, first) if trace.depth > 1 else (),
    )


def description_card(network: Architecture | Perceptron) -> Card:
    """Return the knobs that are not at their defaults, with what they mean, and what was assumed."""
    meanings = PERCEPTRON_KNOBS if isinstance(network, Perceptron) else KNOBS
    rows = tuple(
        (name, _value(value), meanings[name].meaning) for name, value in unusual_knobs(network).items()
    )
    kind = "perceptron" if isinstance(network, Perceptron) else "transformer"
    notes = (("Assumed", "assumed"), ("Not modelled", "unmodelled"))
    stated = ((label, getattr(network, name, ())) for label, name in notes)
    return Card(
        f"{network.name or kind} · {network.depth} blocks",
        "",
        tables=(CardTable(("Knob", "Value", "Meaning"), rows, "knobs"),),
        notes=tuple(f"{label}: {'; '.join(said)}." for label, said in stated if said),
    )


def _value(value: Any) -> str:
    """Return a knob's value in a cell; a list by its first, its last and its length."""
    if isinstance(value, tuple):
        return f"{_value(value[0])} … {_value(value[-1])} ({len(value)} values)"
    if callable(value):
        return str(getattr(value, "__qualname__", "function"))[:LONGEST]
    if value is None:
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:LONGEST]


def comparison_card(comparison: Comparison) -> Card:
    """Return two networks side by side: both outcomes, the sentences of each, and the knobs that differ."""
    pairs = list(zip(comparison.names, comparison.verdicts, strict=True))
    worst = max((verdict.outcome for verdict in comparison.verdicts), key=lambda outcome: outcome.exit_code)
    rows = tuple((knob, str(a), str(b)) for knob, a, b in comparison.differences)
    sentences = (f"{name}: {sentence}" for name, verdict in pairs for sentence in wording.sentences(verdict))
    return Card(
        " against ".join(comparison.names),
        "; ".join(f"{name}: {verdict.outcome.value}" for name, verdict in pairs),
        worst,
        source="compared",
        sentences=tuple(sentences),
        tables=(CardTable(("They differ in", *comparison.names), rows or (("nothing", "", ""),), "columns"),),
    )


WIDEST = 88
FIRST = ("depth", "tokens", "width", "heads")  # always written out


def unusual_knobs(network: Architecture | Perceptron) -> dict[str, Any]:
    """Return the knobs that are not at their defaults, sizes in any case."""
    if isinstance(network, Perceptron):
        return {name: getattr(network, name) for name in PERCEPTRON_KNOBS}
    sizes = {name: getattr(network, name) for name in FIRST}
    if network.heads and network.width % network.heads:
        sizes["head_width"] = network.head_width  # does not follow from the others
    usual = transformer(**sizes)
    others = {
        name: getattr(network, name) for name in KNOBS if getattr(network, name) != getattr(usual, name)
    }
    return sizes | others


def call(function: str, arguments: Mapping[str, object]) -> str:
    """Return a call with keywords, on as many lines as it needs.

    >>> call("edgewise.transformer", {"depth": 2, "norm": "post"})
    "edgewise.transformer(depth=2, norm='post')"
    """
    parts = [f"{name}={_written(value)}" for name, value in arguments.items()]
    if len(function) + 2 + sum(len(part) + 2 for part in parts) <= WIDEST:
        return f"{function}({', '.join(parts)})"
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 6 > WIDEST:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{part},"
    inside = "\n".join(f"    {line}" for line in lines)
    return f"{function}(\n{inside}\n)"


def _written(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_written, value)) + "]"
    return repr(value)  # all digits: the same network, not a near one


def code_lines(network: Architecture | Perceptron, readout: str = "token") -> str:
    """Return the description and its verdict in Python; a callable is written by its name."""
    function = "edgewise.Perceptron" if isinstance(network, Perceptron) else "edgewise.transformer"
    knobs = {
        k: getattr(v, "__name__", "function") if callable(v) else v for k, v in unusual_knobs(network).items()
    }
    option = "" if readout == "token" else f", readout={readout!r}"
    return (
        f"import edgewise\n\nnetwork = {call(function, knobs)}\n"
        f"print(edgewise.judge(edgewise.predict(network{option})))\n"
    )


def leading(audit: Sequence[AuditFinding] | NotAudited) -> list[str]:
    """Return errors and warnings, which come before everything else on the screen."""
    if isinstance(audit, NotAudited):
        return []
    return [
        f"{capitalised(finding.kind.value)}: {_place(finding)}. {capitalised(finding.observation)}. "
        "--repair FILE writes the code that fixes it."
        for finding in audit
        if finding.severity is not AuditSeverity.NOTE
    ]


def listing(audit: Sequence[AuditFinding] | NotAudited) -> Iterator[str]:
    """Yield the whole audit, or why there is none."""
    if isinstance(audit, NotAudited):
        yield f"Initialization audit: {audit.reason}"
        return
    if not audit:
        yield "Initialization audit: nothing to report."
        return
    yield "Initialization audit:"
    yield from (f"  {_sentence(finding)}" for finding in audit)


def _place(finding: AuditFinding) -> str:
    """Return the parameters of a finding in few words; one about all of them names none."""
    return group(finding.parameters) if finding.parameters else "the model"


def _sentence(finding: AuditFinding) -> str:
    return (
        f"{finding.severity.value}: {finding.kind.value}: {_place(finding)}. Observed: "
        f"{finding.observation}. Expected: {finding.expected}."
    )


def audit_card(audit: Sequence[AuditFinding]) -> Card:
    """Return what is wrong with the weights of a model, a sentence for every finding."""
    counts = {each: sum(finding.severity is each for finding in audit) for each in AuditSeverity}
    answer = ", ".join(f"{n} {each.value}{'' if n == 1 else 's'}" for each, n in counts.items() if n)
    serious = any(finding.severity is not AuditSeverity.NOTE for finding in audit)
    return Card(
        "Initialization audit",
        answer or "nothing to report",
        Outcome.FAILS if serious else Outcome.TRAINS,
        source="weights",
        sentences=tuple(map(_sentence, audit)),
    )
