"""Exact finite-n moments, the large-n closure, the random-energy closure and frozen attention against simulation.

The recursion is the same for all; only the softmax moments differ. Frozen attention has the exact moments forward and
leaves the gradient through the softmax out (R2 = T11 = 0).
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

import edgewise
from benchmarks.report import Findings, Table, Tell
from edgewise.theory.simplex.drive import CLOSURES, follow, output_gradient, pull_back
from edgewise.theory.simplex.state import Moments, Setting, SimplexState
from tests.agreement.simulation.simulate import simulate

DEPTH = 12
BASE = {"depth": DEPTH, "width": 512, "heads": 8, "activation": "relu", "mlp_in_gain": sqrt(2)}
SHALLOW = {"attention_branch": sqrt(1 / DEPTH), "mlp_branch": sqrt(1 / DEPTH)}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "pre, n 64, score gain 1": {"tokens": 64},
    "pre, n 64, score gain 1.5": {"tokens": 64, "score_gain": 1.5},
    "pre, n 128, score gain 2": {"tokens": 128, "score_gain": 2.0},
    "pre gelu, n 64, score gain 3": {"tokens": 64, "score_gain": 3.0, "activation": "gelu"},
    "pre one head, n 64, score gain 4": {"tokens": 64, "score_gain": 4.0, "heads": 1},
    "pre 1/sqrt(L), n 256, score gain 2.5": {"tokens": 256, "width": 1024, "score_gain": 2.5, **SHALLOW},
    "post, n 64, score gain 1.5": {"tokens": 64, "norm": "post", "score_gain": 1.5},
    "post gelu, n 128, score gain 2.5": {
        "tokens": 128,
        "norm": "post",
        "score_gain": 2.5,
        "activation": "gelu",
    },
}
QUICK = ("pre, n 64, score gain 1", "pre one head, n 64, score gain 4")
ERRORS = ("norm", "1 - overlap", "angle exponent", "gradient exponent")


THEORIES: dict[str, Moments] = {
    "exact at finite n": CLOSURES["exact"],
    "large n": CLOSURES["large_n"],
    "random energy": CLOSURES["random_energy"],
    "frozen attention": CLOSURES["frozen"],
}


def theory(knobs: dict[str, Any], moments: Moments) -> dict[str, np.ndarray]:
    """norm and separation after every block, and both exponents."""
    network = edgewise.transformer(**knobs)
    start = SimplexState(np.array(1.0), np.array(1.0))
    with np.errstate(all="ignore"):  # a closure may overflow: that is its result
        steps = list(follow(start, network.blocks, Setting(network.tokens, network.width, moments)))
        ends = [start, *(step.state for step in steps[1::2])]
        gradient = list(pull_back(steps, output_gradient("token", ())))[-1][1]
        separation = np.array([end.separation for end in ends])
        return {
            "norm": np.array([end.norm for end in ends]),
            "separation": separation,
            "angle": np.log(separation[-1]) / DEPTH,
            "gradient": gradient / DEPTH,
        }


def measured(knobs: dict[str, Any], seeds: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """Means over seeds, and the standard error of each of the four ERRORS."""
    runs = simulate(knobs, seeds)
    angle = np.log(runs["separation"][:, -1] / runs["separation"][:, 0]) / DEPTH
    gradient = np.log(runs["gradient_norm"][:, 0]) / DEPTH
    norm, separation = runs["norm"], runs["separation"]
    found = {
        "norm": norm.mean(0),
        "separation": separation.mean(0),
        "angle": angle.mean(),
        "gradient": gradient.mean(),
    }
    scatter = [
        (norm.std(0, ddof=1) / norm.mean(0)).max(),
        separation.std(0, ddof=1).max(),
        angle.std(ddof=1),
        gradient.std(ddof=1),
    ]
    return found, [float(value) / sqrt(seeds) for value in scatter]


def errors(predicted: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> list[float]:
    """Relative for the norm and absolute for 1 - overlap, at the worst block; absolute for the exponents."""
    with np.errstate(all="ignore"):
        gaps = [
            np.abs(predicted["norm"] / found["norm"] - 1).max(),
            np.abs(predicted["separation"] - found["separation"]).max(),
            np.abs(predicted["angle"] - found["angle"]),
            np.abs(predicted["gradient"] - found["gradient"]),
        ]
    return [float(gap) if np.isfinite(gap) else np.inf for gap in gaps]


def run(quick: bool, tell: Tell) -> Findings:
    chosen = {name: BASE | ARCHITECTURES[name] for name in (QUICK if quick else ARCHITECTURES)}
    seeds, noise = 3 if quick else 16, []
    gaps: dict[str, list[list[float]]] = {name: [] for name in THEORIES}
    values: list[list[Any]] = []
    for place, (name, knobs) in enumerate(chosen.items()):
        tell(place / len(chosen), name)
        found, scatter = measured(knobs, seeds if knobs["width"] < 1024 else seeds // 2)
        noise.append(scatter)
        predicted = {label: theory(knobs, moments) for label, moments in THEORIES.items()}
        for label in THEORIES:
            gaps[label].append(errors(predicted[label], found))
        for kind in ("angle", "gradient"):
            values.append(
                [f"{name}: {kind}", float(found[kind]), *(float(p[kind]) for p in predicted.values())]
            )
    return (
        [_summary(gaps, noise), Table("Both exponents", ("network", "simulation", *THEORIES), values)],
        [],
        [
            f"{len(chosen)} networks of {DEPTH} layers, width 512 (1,024 at n = 256), {seeds} seeds "
            f"({seeds // 2} at width 1,024), tokens that start orthogonal, a loss per token.",
            "Errors at the worst block: of the norm relative, of 1 - overlap absolute; of the exponents absolute, per "
            "block. The last two rows are the standard errors of the simulation itself: smaller errors mean nothing.",
            "The recursion and the average over the length of a query are the same for all: only the moments differ.",
        ],
    )


def _summary(gaps: dict[str, list[list[float]]], noise: list[list[float]]) -> Table:
    rows: list[list[Any]] = []
    for label, table in (*gaps.items(), ("standard error of the simulation", noise)):
        for how, function in (("worst", np.max), ("median", np.median)):
            rows.append([f"{label}, {how}", *(float(value) for value in function(np.array(table), axis=0))])
    return Table("Error against simulated random networks", ("softmax moments", *ERRORS), rows)
