"""Does the gradient's phase boundary fall with attention, and the angle's rise? Several planes, by theory.

In each plane the MLP's weights at which an exponent vanishes are traced over the strength of attention: the angle
exponent, and the gradient exponent of a loss per token and of a pooled one, linearised near collapse.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import edgewise
from edgewise.critical.phase_diagram import compute_diagram
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .common import paper_block

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NEAR = 1e-8  # 1 - overlap of the tokens at the start
ATTENTION = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
FIELDS = {
    "angle": "near_angle",
    "token": "relative_gradient",
    "pooled": "near_gradient",
}  # of a phase diagram
NAMES = {"angle": "angle", "token": "gradient, loss per token", "pooled": "gradient, pooled loss"}
# what goes up the plane, from where to where; the others are fixed: MLP strength 0.5, input gain 2
AXES = {"MLP strength": ("mlp_strength", 0.02, 0.98), "MLP input gain": ("mlp_in_gain", 0.05, 6.0)}
RESOLVED = 0.1  # of the spacing up the plane: a boundary that moves by less, from end to end, is level


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Both axes, two activations, with and without a bias; small: the talk's block over the input gain."""
    if scale != "full":
        return [{"axis": "MLP input gain", "activation": "tanh", "bias": 0.0, "points": 7, "depth": 8}]
    return [
        {"axis": axis, "activation": activation, "bias": bias, "points": 41, "depth": 12}
        for axis in AXES
        for activation in ("tanh", "relu")
        for bias in (0.0, 0.5)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """For each exponent and strength of attention: the lowest zero going up the plane; None where it has no zero."""
    name, low, high = AXES[case["axis"]]
    network = edgewise.transformer(**_knobs(case))
    axes = {
        "attention_strength": (ATTENTION[0], ATTENTION[-1], len(ATTENTION)),
        name: (low, high, case["points"]),
    }
    diagram = compute_diagram(network, axes, start_overlap=1 - NEAR)
    y = np.linspace(low, high, case["points"])
    found: dict[str, Any] = {
        exponent: [_zero(y, column) for column in getattr(diagram, field).T]
        for exponent, field in FIELDS.items()
    }
    return found | {"signs": {e: _signs(getattr(diagram, f)) for e, f in FIELDS.items()}}


def _knobs(case: dict[str, Any]) -> dict[str, Any]:
    block = paper_block(
        0.3, 0.5, mlp_in_gain=2.0, depth=case["depth"], tokens=16, width=256, mlp_bias=case["bias"]
    )
    return block | {"activation": case["activation"]}


def _zero(y: np.ndarray, values: np.ndarray) -> float | None:
    """Where the values change sign first, by interpolation."""
    places = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    if not len(places):
        return None
    k = int(places[0])
    return round(float(y[k] - values[k] * (y[k + 1] - y[k]) / (values[k + 1] - values[k])), 4)


def _signs(values: np.ndarray) -> str:
    """Which signs an exponent takes in the plane."""
    return "both" if values.min() < 0 < values.max() else "positive" if values.max() > 0 else "negative"


def direction(result: Result, exponent: str) -> str:
    """What the boundary does from the weakest attention to the strongest, where it is known at three strengths."""
    zeros = [zero for zero in result.value[exponent] if zero is not None]
    if len(zeros) < 3:
        return "no boundary"
    _, low, high = AXES[result.case["axis"]]
    change, spacing = zeros[-1] - zeros[0], (high - low) / (result.case["points"] - 1)
    return "level" if abs(change) < RESOLVED * spacing else "rises" if change > 0 else "falls"


def claim(results: list[Result]) -> Claim:
    return Claim.all([_rises(results), _falls(results)])


def _scale(results: list[Result]) -> str:
    return f"theory, n = 16, {results[0].case['depth']} blocks, pre-norm, {len(results)} planes: " + (
        "MLP strength or input gain over attention strength, tanh and ReLU, bias 0 or 0.5"
    )


def _count(results: list[Result], exponent: str) -> dict[str, int]:
    words = [direction(r, exponent) for r in results]
    return {word: words.count(word) for word in dict.fromkeys(words)}


def _rises(results: list[Result]) -> Claim:
    found = _count(results, "angle")
    return Claim(
        "The larger the attention weights, the larger the MLP weights need to be: the angle's phase boundary goes up "
        "[talk].",
        f"Planes in which the angle's boundary {', '.join(f'{k}: {v}' for k, v in found.items())}. Held: it falls in "
        "none, "
        "and rises in most of those where it exists.",
        _scale(results),
        found.get("falls", 0) == 0 and found.get("rises", 0) > found.get("level", 0),
        {"angle": found},
        rows=("C29", "C30"),
    )


def _falls(results: list[Result]) -> Claim:
    found = {name: _count(results, name) for name in ("token", "pooled")}
    words = "; ".join(
        f"{NAMES[name]}: {', '.join(f'{k} {v}' for k, v in row.items())}" for name, row in found.items()
    )
    level = "; ".join(
        f"{NAMES[name]} from {zeros[0]:.2f} to {zeros[-1]:.2f} ({r.case['axis']}, bias {r.case['bias']:g})"
        for r in results
        for name in ("token", "pooled")
        if direction(r, name) == "level" and (zeros := [z for z in r.value[name] if z is not None])
    )
    return Claim(
        "For the back-propagated gradient the phase boundary goes down as attention grows [talk].",
        f"Number of planes by what the boundary does: {words}. Level: {level or 'none'}. Where the pooled "
        "gradient never vanishes there is no "
        "boundary: its rate exceeds the angle's by log(1 + a²/((1 − a²) q)). Smallest counterexample: "
        "edgewise.phase_diagram(edgewise.transformer(activation='tanh', heads=1, tokens=16), {'attention_strength': "
        "(0.1, 0.6, 6), 'mlp_in_gain': (0.05, 6, 11)}, start_overlap=1 - 1e-8). Held: it falls in a plane where the "
        "angle's rises.",
        _scale(results),
        any(
            direction(r, "angle") == "rises" and direction(r, name) == "falls"
            for r in results
            for name in ("token", "pooled")
        ),
        found,
        rows=("C30",),
    )


def draw(results: list[Result]) -> Figure:
    panels = tuple(
        panel for r in results if (panel := _panel(r)).curves
    )  # ReLU has no boundary in these planes
    title = "Where the exponents vanish, over the strength of attention\n(theory, linearised near collapse)"
    foot = f"{_scale(results)}; ReLU: no boundary" if len(panels) < len(results) else _scale(results)
    return Sheet(title, panels, foot, columns=min(2, len(panels))).draw()


def _panel(result: Result) -> Panel:
    curves, notes = [], []
    for group, (name, label) in enumerate(NAMES.items()):
        zeros = np.array([math.nan if z is None else z for z in result.value[name]])
        if np.isfinite(zeros).any():
            curves.append(Curve(label, np.array(ATTENTION), zeros, group, "orbit"))
        else:
            notes.append(f"{label}: {result.value['signs'][name]} everywhere")
    case = result.case
    bias = f", bias {case['bias']:g}" if case["bias"] else ""
    return Panel(
        f"{case['activation']}{bias}",
        "attention strength a, skip √(1−a²)",
        f"{case['axis']} at the edge",
        tuple(curves),
        "\n".join(notes),
    )
