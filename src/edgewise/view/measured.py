"""Theory as lines, measurement as points with bars, per block.

Shapes: S seeds, L blocks; a row and its standard error are (L + 1,).
"""

from __future__ import annotations

import math

import numpy as np

from edgewise.trace import Trace
from edgewise.verdict import Verdict
from edgewise.view.per_block import Array, within_blocks
from edgewise.view.sheet import Curve, Marker, Panel, Sheet

Rows = dict[str, tuple[Array, Array]]
NAMES = {"norm": "q, mean square per coordinate", "separation": "1 − overlap",
         "relative_gradient_norm": "relative |g|²q, over its value at the output"}  # fmt: skip


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
    """Three panels: norm, separation and relative gradient; bars are two standard errors over seeds."""
    measured = rows_with_errors(trace)
    predicted = {} if theory is None else rows_with_errors(theory)
    panels = tuple(_panel(name, measured[name], predicted.get(name)) for name in NAMES if name in measured)
    name = verdict.name or "measured"
    return Sheet(f"{name}, {verdict.depth} blocks: {verdict.outcome.value}", panels, trace.source.partition(";")[0])


def _panel(name: str, measured: tuple[Array, Array], predicted: tuple[Array, Array] | None) -> Panel:
    y, error = measured
    x = np.arange(len(y), dtype=float)
    curves = [] if predicted is None else [Curve("theory", x, predicted[0])]
    if np.isfinite(error).any():
        curves.append(_bars(x, y, error))
    pairs = [(float(a), float(b)) for a, b in zip(x, y, strict=True) if np.isfinite(b)]
    points = tuple(Marker("measured", a, b, "stable") for a, b in pairs)
    worst = "" if predicted is None else f"largest gap {100 * _gap(y, predicted[0]):.1f} %"
    title = {"norm": "stream norm", "separation": "token separation"}.get(name, "gradient")
    return Panel(title, "block", NAMES[name], tuple(curves), worst, log_y=True, markers=points)


def _bars(x: Array, y: Array, error: Array) -> Curve:
    """Vertical strokes of two standard errors each way, parted by gaps."""
    low, high = np.maximum(y - 2 * error, 1e-300), y + 2 * error
    gaps = np.full(len(x), np.nan)
    across, along = np.stack([x, x, gaps], 1).ravel(), np.stack([low, high, gaps], 1).ravel()
    return Curve("± 2 standard errors", across, along, 1, "fit")


def _gap(measured: Array, predicted: Array) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.abs(measured / predicted - 1)
    return float(np.nanmax(ratios))
