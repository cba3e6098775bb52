"""Weight-gradient norms of theory against recorded simulation, matrix by matrix and layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgewise.trace import Trace

MATRICES = {"W_Q": "query", "W_K": "key", "W_V": "value", "W_O": "output",
            "W_1": "mlp_in", "W_linear": "mlp_linear", "W_2": "mlp_out"}  # fmt: skip
LIMIT = 0.05  # of |dL/dW|^2, besides two standard errors


def allowed(matrix: str, record: dict[str, Any]) -> float:
    """Relative limit of one matrix.

    Query and key gradients go with sum_bb' (C_bb' - p)^2 over pairs of keys: theory has the n diagonal terms,
    a network of finite width adds n^2 random overlaps of order 1/d, a relative n/d that grows with depth.
    """
    tokens, width = record["knobs"]["tokens"], record["knobs"]["width"]
    return LIMIT + 2 * tokens / width if matrix in ("W_Q", "W_K") else LIMIT


def weight_ratios(record: dict[str, Any], trace: Trace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per matrix: theory over simulation of |dL/dW|^2, minus 1, per layer; and its standard error."""
    ratios = {}
    for matrix, name in MATRICES.items():
        if matrix in record:
            logs = trace.statistics[f"weight_gradient.{name}"][0]
            mean = np.array(record[matrix]["mean"])
            theory = np.exp(logs[~np.isnan(logs)])
            ratios[matrix] = theory / mean - 1, np.array(record[matrix]["error"]) / mean
    return ratios
