"""Weight-gradient norms of theory against recorded simulation, matrix by matrix and layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgewise.nouns.trace import Trace

MATRICES = {
    "W_Q": "query",
    "W_K": "key",
    "W_V": "value",
    "W_O": "output",
    "W_1": "mlp_in",
    "W_linear": "mlp_linear",
    "W_2": "mlp_out",
}
LIMIT = 0.05  # of |dL/dW|^2, besides two standard errors and the bias of finite width


def width_bias(record: dict[str, Any]) -> float:
    """Squared norms of random products are biased by O(L/d): twice that is allowed, in either direction."""
    return 2 * record["knobs"]["depth"] / record["knobs"]["width"]


def excess_allowed(matrix: str, record: dict[str, Any]) -> np.ndarray:
    """How far simulation may lie above theory because the width is finite, per layer.

    Query and key gradients go with sum_bb' (C_bb' - p)^2 over pairs of keys: theory has the n diagonal terms,
    width d adds n^2 random overlaps of order l/d after l layers, a relative l n / d.
    """
    knobs = record["knobs"]
    layers = np.arange(1, knobs["depth"] + 1)
    return layers * knobs["tokens"] / knobs["width"] * (matrix in ("W_Q", "W_K"))


def weight_ratios(record: dict[str, Any], trace: Trace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per matrix: simulation over theory of |dL/dW|^2, minus 1, per layer; and its standard error."""
    ratios = {}
    for matrix, name in MATRICES.items():
        if matrix in record:
            logs = trace.statistics[f"weight_gradient.{name}"][0]
            mean = np.array(record[matrix]["mean"])
            theory = np.exp(logs[~np.isnan(logs)])
            ratios[matrix] = mean / theory - 1, np.array(record[matrix]["error"]) / theory
    return ratios
