"""The Gram recursion for 32 causal layers at 1,024 tokens, and one real random network of that size beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import edgewise
from benchmarks.clock import Timing, once
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise.theory.gram import propagate_gram
from tests.simulation.simulate import simulate

LIMIT = 60.0  # seconds
NETWORK: dict[str, Any] = {"depth": 32, "tokens": 1024, "width": 2048, "heads": 16, "activation": "gelu",
                           "norm": "pre", "causal": True}  # fmt: skip
SMALL = {"depth": 8, "tokens": 128, "width": 512, "heads": 8}


def run(quick: bool, tell: Tell) -> Findings:
    knobs = NETWORK | (SMALL if quick else {})
    tell(0.0, "Gram recursion")
    trace, theory_time = once(lambda: _recursion(knobs, lambda done: tell(0.3 * done, "Gram recursion")))
    tell(0.3, "one real network")
    real, real_time = once(lambda: simulate(knobs, 1))
    rates = _rates(trace.separation[:, trace.block_ends()], trace.log_gradient[0][:, trace.block_ends()])
    real_rates = _rates(real["separation"], np.log(real["gradient_norm"]))
    theory_row, theory_error = _theory_row(rates, theory_time)
    rows = [theory_row, _network_row(real_rates, rates, real_time, knobs["width"])]
    columns = ("32 causal layers at 1,024 tokens, float32" if not quick else "quick", "CPU s", "wall s",
               "angle exponent", "error", "gradient exponent", "error")  # fmt: skip
    draws = len(trace.norm)
    goal = Goal(
        f"under {LIMIT:g} s on one core in float32, sampling error printed",
        f"{theory_time.cpu:.1f} s of one core for {draws} draws ({theory_time.cpu / draws:.1f} s each), "
        f"standard errors {theory_error[0]:.1g} (angle) and {theory_error[1]:.1g} (gradient)",
        not quick and theory_time.cpu < LIMIT,
    )
    return [Table("Gram recursion against one real network", columns, rows)], [goal], [
        f"{trace.source}; no weight matrix exists. Its error is the standard error over draws. The network's error is "
        "the scatter of one network's exponent: the standard deviation over blocks of its growth minus the theory's, "
        "divided by the square root of the depth.",
        f"Equal errors by averaging networks would take {_times(real_rates, rates, theory_error)} of them, "
        f"{real_time.cpu / theory_time.cpu:.1f} times the recursion's CPU time each "
        f"(and {_weights(knobs):.1f} GB of float32 weights, drawn block by block).",
    ]  # fmt: skip


def _recursion(knobs: dict[str, Any], progress: Any) -> edgewise.Trace:
    return propagate_gram(edgewise.transformer(**knobs), dtype=torch.float32, progress=progress)


def _rates(separation: np.ndarray, log_gradient: np.ndarray) -> np.ndarray:
    """Growth per block of both quantities (2, seed, depth); an exponent is the mean over blocks."""
    return np.stack([np.diff(np.log(separation)), -np.diff(log_gradient)])


def _theory_row(rates: np.ndarray, time: Timing) -> tuple[list[Any], np.ndarray]:
    exponents = rates.mean(-1)
    error = exponents.std(1, ddof=1) / np.sqrt(exponents.shape[1])
    mean = exponents.mean(1)
    return ["Gram recursion", time.cpu, time.wall, *_pairs(mean, error)], error


def _network_row(real: np.ndarray, theory: np.ndarray, time: Timing, width: int) -> list[Any]:
    numbers = _pairs(real[:, 0].mean(-1), _scatter(real, theory))
    return [f"one network of width {width:,}", time.cpu, time.wall, *numbers]


def _scatter(real: np.ndarray, theory: np.ndarray) -> np.ndarray:
    rest = real[:, 0] - theory.mean(1)
    return rest.std(-1, ddof=1) / np.sqrt(rest.shape[-1])


def _pairs(values: np.ndarray, errors: np.ndarray) -> list[float]:
    return [float(number) for pair in zip(values, errors, strict=True) for number in pair]


def _times(real: np.ndarray, theory: np.ndarray, error: np.ndarray) -> str:
    """How many networks: the larger of the squared ratios of both errors."""
    return f"{max(1, round(float(np.max((_scatter(real, theory) / error) ** 2)))):,}"


def _weights(knobs: dict[str, Any]) -> float:
    return 12 * knobs["depth"] * knobs["width"] ** 2 * 4 / 1e9
