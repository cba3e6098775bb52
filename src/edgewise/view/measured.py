"""Theory as lines, measurement as points with bars, per block.

Shapes: S seeds, L blocks; a row and its standard error are (L + 1,).
"""

from __future__ import annotations

import math

import numpy as np

from edgewise.arrays import Array
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Verdict
from edgewise.view.panel import Curve, Panel
from edgewise.view.profiles import within_blocks
from edgewise.view.sheet import Sheet

Rows = dict[str, tuple[Array, Array]]
TITLES = {
    "norm": ("stream norm", "q, mean square per coordinate"),
    "separation": ("token separation", "1 − overlap"),
    "relative_gradient_norm": ("gradient, over its value at the output", "relative |g|²q, {readout} readout"),
    "attention_entropy": ("attention entropy", "nats, mean over rows and heads"),
}


def rows_with_errors(trace: Trace) -> Rows:
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
    panels = tuple(_panel(name, measured[name], predicted.get(name), readout) for name in names)
    title = f"{verdict.name or 'model'}, {verdict.depth} blocks, measured: {verdict.outcome.value}"
    return Sheet(title, panels, _scale(trace), columns=2 if len(panels) == 4 else None)


def _panel(
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


def _scale(trace: Trace) -> str:
    """Where the points come from and at which size; theory is given the measured input and nothing else."""
    width = f", width {trace.architecture.width:,}" if isinstance(trace.architecture, Architecture) else ""
    return f"{trace.source.partition(';')[0]}{width}"
