"""The numbers of a trace at the embedding and after every block: what tables, figures and JSON all show.

Shapes: S seeds, N sites, H heads, L blocks; every row is (L + 1,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgewise.trace import Trace

Array = NDArray[np.float64]


def block_numbers(trace: Trace) -> dict[str, Array]:
    """The rows this trace knows, mean over seeds: norm, overlap, separation, gradients, attention."""
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
    log_norm = np.log(trace.norm[:, ends])
    logs = trace.log_gradient[0][:, ends] + log_norm - log_norm[:, -1:]
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(logs).mean(axis=0))


def within_blocks(trace: Trace, values: Array) -> Array:
    """Mean over seeds, heads and the sites of a block that know the quantity (S, N, ...); nan where none."""
    per_site = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)  # (N, S * H)
    ends = trace.block_ends()
    starts = [0, *(end + 1 for end in ends[:-1])]
    parts = [per_site[start : end + 1] for start, end in zip(starts, ends, strict=True)]
    return np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts])
