"""Numbers per block: curves of norm, overlap and gradients through depth, and the JSON documents of schema/.

`block_numbers` is what tables, figures and JSON all show of a trace, at the embedding and after every block.
Shapes: S seeds, N sites, H heads, L blocks; every row is (L + 1,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.card import Curve, Panel
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import SCHEMA, Exponent, Verdict, finite
from edgewise.present.sheet import Sheet
from edgewise.stability.lyapunov import SEVERITY_LIMITS

if TYPE_CHECKING:
    from edgewise.audit.finding import AuditFinding
    from edgewise.critical.critical_point import CriticalPoint
    from edgewise.judgement.comparison import Comparison


Rows = dict[str, Array]
LONGEST = 32  # letters of a name
FLOOR = 1e-300  # a smaller separation is not drawn: a logarithmic axis has no place for zero


def block_numbers(trace: Trace) -> Rows:
    """Return the rows this trace has, mean over seeds: norm, overlap, separation, gradients, attention."""
    rows = {name: trace.blocks(name) for name in ("norm", "overlap", "separation")}
    if trace.log_gradient is not None:
        rows["gradient_norm"] = trace.blocks("gradient_norm")
        rows["relative_gradient_norm"] = relative_gradient_norm(trace)
    if trace.attention_entropy is not None:
        rows["attention_entropy"] = within_blocks(trace, trace.attention_entropy)
    if "condensation" in trace.statistics:
        rows["condensation"] = within_blocks(trace, trace.statistics["condensation"])
    return rows


def relative_gradient_norm(trace: Trace) -> Array:
    """rho_l / rho_L with rho = |g|^2 q: what the output feels of a relative change of the stream (L + 1,)."""
    assert trace.log_gradient is not None
    ends = trace.block_ends()
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # of a stream that has vanished
        log_norm = np.log(trace.norm[:, ends])
        logs = trace.log_gradient[0][:, ends] + log_norm - log_norm[:, -1:]
        return np.asarray(np.exp(logs).mean(axis=0))


def within_blocks(trace: Trace, values: Array) -> Array:
    """Mean over seeds, heads and the sites of a block that have the quantity (S, N, ...); nan where none."""
    per_site = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)  # (N, S * H)
    ends = trace.block_ends()
    starts = [0, *(end + 1 for end in ends[:-1])]
    parts = [per_site[start : end + 1] for start, end in zip(starts, ends, strict=True)]
    return np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts])


def depth_profile(
    traces: Trace | Sequence[Trace], verdicts: Verdict | Sequence[Verdict], names: Sequence[str] | None = None
) -> Sheet:
    """Return three panels (q, 1 - overlap, gradients), all traces on the same axes, the verdicts in the title."""
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    verdicts = [verdicts] if isinstance(verdicts, Verdict) else list(verdicts)
    if not traces or len(traces) != len(verdicts):
        raise BadInput(f"{len(traces)} traces and {len(verdicts)} verdicts; give one verdict for each trace.")
    labels = _labels(traces, names)
    rows = [block_numbers(trace) for trace in traces]
    title = "\n".join(_headline(label, v) for label, v in zip(labels, verdicts, strict=True))
    panels = (_norm(labels, rows), _separation(labels, rows, verdicts), _gradient(labels, rows, verdicts))
    return Sheet(title, panels, _scale(traces))


def overlap(*traces: Trace, names: Sequence[str] | None = None) -> Sheet:
    """Return the mean cosine between tokens through depth, one curve per trace, theory and measurement alike."""
    if not traces:
        raise BadInput("overlap needs at least one trace.")
    labels = _labels(traces, names)
    pairs = enumerate(zip(labels, traces, strict=True))
    curves = [_curve(label, trace.blocks("overlap"), group) for group, (label, trace) in pairs]
    ends = "\n".join(f"{curve.label} ends at {curve.y[-1]:.4f}" for curve in curves)
    panel = Panel("token overlap", "block", "mean cosine between tokens", tuple(curves), note=ends)
    return Sheet("Overlap through depth", (panel,), _scale(traces))


def _labels(traces: Sequence[Trace], names: Sequence[str] | None) -> list[str]:
    """A name for every trace, told apart by a number where two are the same."""
    if names is not None and len(names) != len(traces):
        raise BadInput(f"{len(names)} names for {len(traces)} traces; give one name for each trace.")
    own = (
        getattr(trace.architecture, "name", "") or trace.source.partition(":")[0] or "trace"
        for trace in traces
    )
    labels = [name if len(name) <= LONGEST else "…" + name[1 - LONGEST :] for name in names or own]
    return [f"{label} ({i + 1})" if labels.count(label) > 1 else label for i, label in enumerate(labels)]


def _headline(label: str, verdict: Verdict) -> str:
    """The verdict in one line, with the numbers it was read from."""
    numbers = [f"token angle {_signed(verdict.angle)}"]
    if verdict.relative_gradient is not None:
        numbers.append(f"relative gradient {_signed(verdict.relative_gradient)}")
    return f"{label}, {verdict.depth} blocks: {verdict.outcome.value} ({', '.join(numbers)} per block)"


def _signed(exponent: Exponent) -> str:
    if not math.isfinite(exponent.at_depth):
        return "−∞"
    error = "" if math.isnan(exponent.error) else f" ± {exponent.error:.3f}"
    return _minus(f"{exponent.at_depth:+.3f}{error}")


def _curve(label: str, y: Array, group: int, role: str = "line") -> Curve:
    return Curve(label, np.arange(len(y), dtype=float), y, group, role)


def _norm(labels: Sequence[str], rows: Sequence[Rows]) -> Panel:
    pairs = enumerate(zip(labels, rows, strict=True))
    curves = [_curve(label, row["norm"], group) for group, (label, row) in pairs]
    note = "\n".join(_prefix(labels, c.label) + f"q {c.y[0]:.3g} → {c.y[-1]:.3g}" for c in curves)
    return Panel("stream norm", "block", "q, mean square per coordinate", tuple(curves), note, log_y=True)


def _separation(labels: Sequence[str], rows: Sequence[Rows], verdicts: Sequence[Verdict]) -> Panel:
    curves, notes = [], []
    for group, (label, row, verdict) in enumerate(zip(labels, rows, verdicts, strict=True)):
        y = np.where(row["separation"] > FLOOR, row["separation"], np.nan)
        curves += [_curve(label, y, group), *_second_half(label, y, verdict.angle, group)]
        notes.append(_prefix(labels, label) + _change(verdict.angle))
    note = _ruled(notes)
    return Panel(
        "token separation",
        "block",
        "1 − overlap",
        tuple(curves),
        note,
        log_y=True,
        complement="overlap (mean cosine)",
    )


def _gradient(labels: Sequence[str], rows: Sequence[Rows], verdicts: Sequence[Verdict]) -> Panel:
    curves, notes = [], []
    for group, (label, row, verdict) in enumerate(zip(labels, rows, verdicts, strict=True)):
        if "gradient_norm" not in row or verdict.relative_gradient is None:
            notes.append(_prefix(labels, label) + "gradients were not observed")
            continue
        relative, raw = row["relative_gradient_norm"], row["gradient_norm"]
        curves.append(_curve(f"{_prefix(labels, label)}relative, |g|²q", relative, group))
        curves.append(_curve(f"{_prefix(labels, label)}raw, |g|²", raw, group, "second"))
        curves += _second_half(label, relative, verdict.relative_gradient, group, towards_input=True)
        notes.append(_prefix(labels, label) + _change(verdict.relative_gradient))
    note, title = _ruled(notes), "gradient, over its value at the output"
    y_label = "relative |g|²q  (dashed: raw |g|²)"
    return Panel(title, "block", y_label, tuple(curves), note, log_y=True, legend=False)


def _second_half(
    label: str, y: Array, exponent: Exponent, group: int, towards_input: bool = False
) -> list[Curve]:
    """The straight line whose slope the outcome is read from: change / L per block over the second half."""
    depth = len(y) - 1
    if depth < 2 or exponent.change is None or not (math.isfinite(exponent.change) and np.isfinite(y[-1])):
        return []
    x = np.array([depth // 2, depth], dtype=float)
    slope = exponent.change / depth * (-1 if towards_input else 1)
    return [Curve(f"{label}, second half", x, y[-1] * np.exp(slope * (x - depth)), group, "fit")]


def _ruled(notes: Sequence[str]) -> str:
    """The numbers the outcome is read from, and the limits they are held against."""
    rule = f"twice the second half (risky ±{SEVERITY_LIMITS.risky:g}, fails ±{SEVERITY_LIMITS.fails:g}):"
    return rule + (" " if len(notes) == 1 else "\n") + "\n".join(notes)


def _change(exponent: Exponent) -> str:
    if exponent.change is None:
        return "not known"
    return _minus(f"{exponent.change:+.2f}") if math.isfinite(exponent.change) else "−∞"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _prefix(labels: Sequence[str], label: str) -> str:
    return f"{label}: " if len(labels) > 1 else ""


def _scale(traces: Sequence[Trace]) -> str:
    """Where the curves come from and at which size, said once where traces agree."""
    scales: list[str] = []
    for trace in traces:
        words = [trace.source.partition(":")[0] or "unknown source"]
        if isinstance(trace.architecture, Architecture):
            words += [f"n = {trace.architecture.tokens:,} tokens", f"d = {trace.architecture.width:,}"]
        elif trace.architecture is not None:
            words.append("infinite width")
        scales.append(", ".join(words) + (" (extrapolated)" if trace.extrapolated else ""))
    return " | ".join(dict.fromkeys(scales))


RowsWithErrors = dict[str, tuple[Array, Array]]
TITLES = {
    "norm": ("stream norm", "q, mean square per coordinate"),
    "separation": ("token separation", "1 − overlap"),
    "relative_gradient_norm": ("gradient, over its value at the output", "relative |g|²q, {readout} readout"),
    "attention_entropy": ("attention entropy", "nats, mean over rows and heads"),
}


def rows_with_errors(trace: Trace) -> RowsWithErrors:
    """Mean over seeds and standard error of it at the embedding and after every block; errors nan for one seed."""
    ends = trace.block_ends()
    values = {name: getattr(trace, name)[:, ends] for name in ("norm", "overlap", "separation")}
    if trace.log_gradient is not None:
        logs = trace.log_gradient[0][:, ends] + np.log(values["norm"]) - np.log(values["norm"][:, -1:])
        with np.errstate(over="ignore"):
            values["relative_gradient_norm"] = np.exp(logs)
    if trace.attention_entropy is not None:
        each = [within_blocks(trace, one[None]) for one in trace.attention_entropy]
        values["attention_entropy"] = np.stack(each)
    return {name: (seeds.mean(axis=0), standard_error(seeds)) for name, seeds in values.items()}


def standard_error(seeds: Array) -> Array:
    """Of the mean over the first axis; nan when there is only one."""
    if len(seeds) < 2:
        return np.full(seeds.shape[1:], math.nan)
    return np.asarray(seeds.std(axis=0, ddof=1) / math.sqrt(len(seeds)))


def beside(trace: Trace, verdict: Verdict, theory: Trace | None = None) -> Sheet:
    """Norm, separation, relative gradient and entropy per block: theory as lines, points with two standard errors."""
    measured = rows_with_errors(trace)
    predicted = {} if theory is None else rows_with_errors(theory)
    readout = trace.readouts[0] if trace.readouts else ""
    names = [name for name in TITLES if name in measured and np.isfinite(measured[name][0]).any()]
    panels = tuple(_measured_panel(name, measured[name], predicted.get(name), readout) for name in names)
    title = f"{verdict.name or 'model'}, {verdict.depth} blocks, measured: {verdict.outcome.value}"
    width = f", width {trace.architecture.width:,}" if isinstance(trace.architecture, Architecture) else ""
    scale = f"{trace.source.partition(';')[0]}{width}"  # theory is given the measured input and nothing else
    return Sheet(title, panels, scale, columns=2 if len(panels) == 4 else None)


def _measured_panel(
    name: str, measured: tuple[Array, Array], predicted: tuple[Array, Array] | None, readout: str
) -> Panel:
    y, error = measured
    x = np.arange(len(y), dtype=float)
    curves = [] if predicted is None else [Curve("theory", x, predicted[0])]
    bars = 2 * error if np.isfinite(error).any() else None
    label = "measured" + ("" if bars is None else " ± 2 standard errors")
    curves.append(Curve(label, x, y, 1, "points", bars))
    title, unit = TITLES[name]
    note = "" if predicted is None else _largest_gap(name, y, predicted[0])
    log_y = name != "attention_entropy"
    complement = "overlap (mean cosine)" if name == "separation" else ""
    return Panel(
        title, "block", unit.format(readout=readout), tuple(curves), note, log_y=log_y, complement=complement
    )


def _largest_gap(name: str, measured: Array, predicted: Array) -> str:
    """In the units that the project's bounds are in: overlap and nats as they are, norms and gradients in per cent."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if name in ("separation", "attention_entropy"):
            unit = " in overlap" if name == "separation" else " nats"
            return f"largest gap {np.nanmax(np.abs(measured - predicted)):.2g}{unit}"
        return f"largest gap {100 * np.nanmax(np.abs(measured / predicted - 1)):.1f} %"


SHOWN = ("norm", "overlap", "gradient_norm", "relative_gradient_norm", "attention_entropy", "condensation")


def prediction(trace: Trace, verdict: Verdict, critical: CriticalPoint | None = None) -> dict[str, Any]:
    """Return one network: its description, numbers per block (length depth + 1, embedding first), and verdict."""
    numbers = block_numbers(trace)
    blocks = {name: listed(numbers[name]) for name in SHOWN if name in numbers}
    document = {
        "architecture": None if trace.architecture is None else trace.architecture.to_dict(),
        "trace": {"blocks": blocks, "source": trace.source, "readout": verdict.readout or None},
        "verdict": verdict.json(),
    }
    return document | ({} if critical is None else {"critical": critical.json()}) | stamp()


def comparison(compared: Comparison, predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return two networks: both documents, and what differs between them."""
    return {"comparison": compared.json(), "predictions": predictions} | stamp()


def listed(values: NDArray[np.float64]) -> list[float | None]:
    """Return a row for JSON; a number that is not finite is null."""
    return [finite(float(value)) for value in values]


def stamp() -> dict[str, Any]:
    """Return the version of the schema and of the library."""
    from edgewise import __version__

    return {"schema": SCHEMA, "version": __version__}


def measurement(
    trace: Trace,
    verdict: Verdict,
    predicted: tuple[Trace, Verdict] | None = None,
    audit: Sequence[AuditFinding] | None = None,
) -> dict[str, Any]:
    """Measured numbers with their errors and statistics, the prediction beside them, the audit of the weights."""
    return {
        "measured": prediction(trace, verdict),
        "standard_errors": {name: listed(error) for name, (_, error) in rows_with_errors(trace).items()},
        "statistics": statistics(trace),
        "predicted": None if predicted is None else prediction(*predicted),
        "audit": None if audit is None else [finding.json() for finding in audit],
    } | stamp()


def statistics(trace: Trace) -> dict[str, list[float | None]]:
    """Per block, means over seeds and heads; growths add up over the sites of a block."""
    rows = {
        name: within_blocks(trace, values)
        for name, values in trace.statistics.items()
        if name != "pair_growth"
    }
    if trace.softmax_condition is not None:
        rows["softmax_condition"] = within_blocks(trace, trace.softmax_condition)
    if "pair_growth" in trace.statistics:
        total = trace.statistics["pair_growth"].mean(axis=0).cumsum()[trace.block_ends()]
        rows["pair_growth"] = total - [0.0, *total[:-1]]
    for readout in trace.readouts:
        rows[f"log_gradient.{readout}"] = trace.blocks("log_gradient", readout)
    return {name: listed(row) for name, row in rows.items()}
