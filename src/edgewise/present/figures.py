"""Figures as plain numbers, drawn when they are shown; curves of norm, overlap and gradients through depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.card import Card, Curve, Panel
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Exponent, Verdict
from edgewise.present.json_documents import Rows, block_numbers, rows_with_errors
from edgewise.stability.lyapunov import SEVERITY_LIMITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Sheet:
    """A whole figure: panels side by side (or `columns` to a row), a headline above, the scale stated below."""

    title: str
    panels: tuple[Panel, ...]
    scale: str = ""
    columns: int | None = None

    def curve(self, panel: int, label: str) -> Curve:
        """Return the curve of that label, for reading numbers back."""
        return next(curve for curve in self.panels[panel].curves if curve.label == label)

    def draw(self) -> Figure:
        """Return a matplotlib figure, without touching pyplot's global state."""
        from edgewise.present.draw import draw_sheet

        return draw_sheet(self.title, self.panels, self.scale, self.columns)

    def save(self, path: str | Path) -> Path:
        """Write a .png, .svg or .pdf, whole or not at all."""
        from edgewise.present.draw import check_path, save_figure

        return save_figure(self.draw(), check_path(path))

    def _repr_png_(self) -> bytes:
        from edgewise.present.draw import figure_png

        return figure_png(self.draw())


def as_figure(card: Card) -> Sheet:
    """Return the card as a figure: its panels below the answer, its sentences at the foot."""
    if not card.figures:
        raise BadInput(
            f"this card has no numbers to draw: {card.title}. Its text is edgewise.present.as_text(card)."
        )
    title = f"{card.title}: {card.answer}" if card.answer else card.title
    return Sheet(title, card.figures, "\n".join((*card.warnings, *card.sentences)), min(len(card.figures), 3))


def finite_limit(values: Sequence[Array], share: float = 98.0) -> float:
    """Return a color limit that a few extreme points do not spoil: a percentile of the finite sizes."""
    sizes = np.concatenate([np.abs(array[np.isfinite(array)]) for array in values])
    return float(np.percentile(sizes, share)) if sizes.size and sizes.max() > 0 else 1.0


LONGEST = 32  # letters of a name
FLOOR = 1e-300  # a smaller separation is not drawn: a logarithmic axis has no place for zero


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
    """Return a name for every trace, told apart by a number where two are the same."""
    if names is not None and len(names) != len(traces):
        raise BadInput(f"{len(names)} names for {len(traces)} traces; give one name for each trace.")
    own = (
        getattr(trace.architecture, "name", "") or trace.source.partition(":")[0] or "trace"
        for trace in traces
    )
    labels = [name if len(name) <= LONGEST else "…" + name[1 - LONGEST :] for name in names or own]
    return [f"{label} ({i + 1})" if labels.count(label) > 1 else label for i, label in enumerate(labels)]


def _headline(label: str, verdict: Verdict) -> str:
    """Return the verdict in one line, with the numbers it was read from."""
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
    """Return the straight line whose slope the outcome is read from: change / L per block over the second half."""
    depth = len(y) - 1
    if depth < 2 or exponent.change is None or not (math.isfinite(exponent.change) and np.isfinite(y[-1])):
        return []
    x = np.array([depth // 2, depth], dtype=float)
    slope = exponent.change / depth * (-1 if towards_input else 1)
    return [Curve(f"{label}, second half", x, y[-1] * np.exp(slope * (x - depth)), group, "fit")]


def _ruled(notes: Sequence[str]) -> str:
    """Return the numbers the outcome is read from, and the limits they are compared with."""
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
    """Return the sources of the curves and their size, said once if traces agree."""
    scales: list[str] = []
    for trace in traces:
        words = [trace.source.partition(":")[0] or "unknown source"]
        if isinstance(trace.architecture, Architecture):
            words += [f"n = {trace.architecture.tokens:,} tokens", f"d = {trace.architecture.width:,}"]
        elif trace.architecture is not None:
            words.append("infinite width")
        scales.append(", ".join(words) + (" (extrapolated)" if trace.extrapolated else ""))
    return " | ".join(dict.fromkeys(scales))


TITLES = {
    "norm": ("stream norm", "q, mean square per coordinate"),
    "separation": ("token separation", "1 − overlap"),
    "relative_gradient_norm": ("gradient, over its value at the output", "relative |g|²q, {readout} readout"),
    "attention_entropy": ("attention entropy", "nats, mean over rows and heads"),
}


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
