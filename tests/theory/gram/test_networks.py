"""The Gram recursion against the simplex recursion and against real random networks with autograd."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edgewise.nouns.architecture import transformer
from edgewise.theory.gram.drive import propagate_gram
from edgewise.theory.simplex.drive import propagate_simplex
from tests.agreement.simulation.simulate import simulate
from tests.support.covering import covering

READOUTS = ("token", "pooled")

# The two recursions on symmetric networks.

SYMMETRIC: dict[str, dict[str, Any]] = {
    "pre": {"activation": "gelu", "mlp_bias": 0.3},
    "sharp": {"score_gain": 4.0, "activation": "relu"},
    "gated": {"qk_norm": True, "score_gain": 2.0, "gated": True, "activation": "silu", "parallel": True},
    "post": {"norm": "post", "activation": "tanh", "mlp_in_gain": 1.5, "position_bias": 1.0},
    "elementwise": {"norm": "sandwich", "norm_kind": "tanh", "norm_slope": 0.7, "attention_branch": 0.5},
}


@pytest.mark.parametrize(("network", "readout"), covering([*SYMMETRIC], READOUTS))
def test_both_recursions_agree(network: str, readout: str) -> None:
    """The simplex recursion knows finite heads only through the query's length: wide heads."""
    made = transformer(depth=4, tokens=48, width=512, heads=2, head_width=256, **SYMMETRIC[network])
    exact = propagate_simplex(made, 0.2, readout)
    dense = propagate_gram(made, start_overlap=0.2, readout=readout, samples=48, draws=3, seed=1)
    assert dense.norm.mean(0) == pytest.approx(exact.norm[0], rel=0.01)
    assert np.log(dense.separation).mean(0) == pytest.approx(np.log(exact.separation[0]), abs=0.01)
    assert dense.log_gradient is not None
    assert exact.log_gradient is not None
    assert dense.log_gradient[0].mean(0) == pytest.approx(exact.log_gradient[0, 0], abs=0.06)
    for name, tolerance in {
        "value": 0.03,
        "mlp_in": 0.03,
        "mlp_out": 0.03,
        "query": 0.15,
        "key": 0.15,
    }.items():
        name = f"weight_gradient.{name}"
        seen = dense.statistics[name].mean(0)
        assert seen == pytest.approx(exact.statistics[name][0], abs=tolerance, nan_ok=True), name
    assert dense.attention_entropy is not None
    assert exact.attention_entropy is not None
    entropy = dense.attention_entropy.mean(0)[:, 0]
    assert entropy == pytest.approx(exact.attention_entropy[0, :, 0], abs=0.05, nan_ok=True)


# Real random networks.

WEIGHTS = {
    "query": "W_Q",
    "key": "W_K",
    "value": "W_V",
    "output": "W_O",
    "mlp_in": "W_1",
    "mlp_linear": "W_linear",
    "mlp_out": "W_2",
}


REAL: dict[str, dict[str, Any]] = {
    "llama": {
        "causal": True,
        "rope": True,
        "gated": True,
        "activation": "silu",
        "norm_kind": "rms",
        "score_gain": 2.0,
    },
    "alibi": {
        "causal": True,
        "window": 5,
        "alibi": True,
        "activation": "gelu",
        "mlp_bias": 0.5,
        "score_gain": 1.5,
        "position_bias": 1.0,
    },
    "qk-norm": {
        "qk_norm": True,
        "rope": 0.5,
        "score_gain": 2.0,
        "key_gain": 1.0,
        "norm": "post",
        "activation": "tanh",
    },
    "no-norm": {
        "causal": True,
        "norm": "none",
        "activation": "gelu",
        "attention_branch": 0.7,
        "mlp_branch": 0.5,
    },
    "parallel": {"causal": True, "norm": "sandwich", "parallel": True, "activation": "relu", "kv_heads": 2},
    "derf": {"causal": True, "norm_kind": "erf", "norm_slope": 0.6, "activation": "silu", "gated": True},
    "branch-norm": {
        "window": 4,
        "rope": True,
        "norm": "branch",
        "output_gain": 2.0,
        "value_gain": 0.5,
        "mlp_skip": 0.8,
    },
}


@pytest.mark.parametrize(("network", "readout"), covering([*REAL], READOUTS))
def test_real_networks(network: str, readout: str) -> None:
    """Norm, separation, gradients and every weight gradient by autograd; 24 tokens, width 512, 8 heads, 3 blocks."""
    shape = {
        "depth": 3,
        "tokens": 24,
        "width": 512,
        "heads": 8,
        "mlp_width": 768,
        "activation": "gelu",
    } | REAL[network]
    made = transformer(**shape)
    real = simulate(shape, seeds=6, start_overlap=0.2, readout=readout, weight_gradients=True)
    dense = propagate_gram(made, start_overlap=0.2, readout=readout, draws=2)
    ends = dense.block_ends()
    assert dense.log_gradient is not None
    close(np.log(dense.norm[:, ends]), np.log(real["norm"]), 0.03)
    close(np.log(dense.separation[:, ends]), np.log(real["separation"]), 0.03)
    close(dense.log_gradient[0][:, ends], np.log(real["gradient_norm"]), 0.05)
    for name, matrix in WEIGHTS.items():
        values = dense.statistics[f"weight_gradient.{name}"]
        values = values[:, ~np.isnan(values).all(0)]
        if matrix in real:
            close(values, np.log(real[matrix]), 0.12)
        else:
            assert values.size == 0


def close(theory: np.ndarray, real: np.ndarray, tolerance: float) -> None:
    """Within the tolerance plus three standard errors of the seeds."""
    error = real.std(0, ddof=1) / math.sqrt(len(real))
    assert np.all(np.abs(theory.mean(0) - real.mean(0)) < tolerance + 3 * error), (
        theory.mean(0),
        real.mean(0),
        error,
    )
