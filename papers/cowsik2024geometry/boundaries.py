"""Does the gradient's phase boundary fall with attention, and the angle's rise? Several planes, by theory.

In each plane the MLP's weights at which an exponent vanishes are traced over the strength of attention: the angle
exponent, and the gradient exponent of a loss per token and of a pooled one, linearised near collapse.

The talk names two axes, attention weights and weights of the MLP, and no more. A referee's list named four planes and
their readings before they were judged: the weights of both MLP matrices over the strength of both branches, or of
attention alone (MLP 0.5), from uncorrelated tokens or nearly equal ones, at 16, 48 and 96 blocks; the gradient raw or
relative to the stream, of a loss per token or pooled. In a reading the sentence holds if from the weakest to the
strongest attention the gradient's zero falls and the angle's rises at 48 and at 96 blocks.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import edgewise
from edgewise.critical.exponents import evaluate
from edgewise.critical.phase_diagram import compute_diagram
from edgewise.present import Curve, Marker, Panel, Sheet
from edgewise.study import Claim, Result, select, simulated

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
STRENGTHS = (0.2, 0.35, 0.5, 0.65, 0.8)
WEAK = (0.02, 0.05, 0.1, 0.15)  # strengths at which the two edges meet: drawn, not judged
PLANES = {
    "both branches": None,
    "attention alone": 0.5,
}  # strength of the MLP's branch; None: that of attention
STARTS = {"uncorrelated": 0.0, "nearly equal": 0.999}  # overlap of the tokens
DEPTHS = (16, 48, 96)
READINGS = {
    f"{kind}, {readout}": (field, readout)
    for (kind, field), readout in product(
        (("raw", "gradient"), ("relative", "relative_gradient")), ("token", "pooled")
    )
}
WEIGHTS = (0.1, 4.0, 157)  # of both MLP matrices
NEAREST = 0.1  # of a weight: how far a network's own zero may be from that of theory
RESOLVED = 0.1  # of the spacing up the plane: a boundary that moves by less, from end to end, is level


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Both axes, two activations, with and without a bias; small: the talk's block over the input gain."""
    if scale != "full":
        return [{"axis": "MLP input gain", "activation": "tanh", "bias": 0.0, "points": 7, "depth": 8}]
    near = [
        {"axis": axis, "activation": activation, "bias": bias, "points": 41, "depth": 12}
        for axis in AXES
        for activation in ("tanh", "relu")
        for bias in (0.0, 0.5)
    ]
    talk = [
        {"plane": plane, "start": start, "depth": depth}
        for plane, start, depth in product(PLANES, STARTS, DEPTHS)
    ]
    for case in talk:
        if (
            case["plane"] == "attention alone"
            and case["start"] == "uncorrelated"
            and case["depth"] in DEPTHS[:2]
        ):
            case["weak"] = list(WEAK)
    return near + talk + [{"strength": a, "depth": 16, "seed": seed} for a in STRENGTHS for seed in range(4)]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    if "plane" in case:
        return _talk(case)
    return _networks(case) if "strength" in case else _near(case)


def _block(attention: float, mlp: float, weight: float, depth: int) -> dict[str, Any]:
    return paper_block(
        attention, mlp, mlp_in_gain=weight, mlp_out_gain=weight, depth=depth, tokens=16, width=128
    )


def _talk(case: dict[str, Any]) -> dict[str, Any]:
    """The lowest zero going up the plane, by reading and by strength of attention; None where there is none."""
    weights, found = np.linspace(*WEIGHTS), {name: [] for name in (*READINGS, "angle")}  # type: ignore[var-annotated]
    for attention in (*case.get("weak", ()), *STRENGTHS):
        mlp = PLANES[case["plane"]] or attention
        network = edgewise.transformer(**_block(attention, mlp, 1.0, case["depth"]))
        knobs = {"mlp_in_gain": weights, "mlp_out_gain": weights}
        by_readout = {
            readout: evaluate(network, knobs, readout, STARTS[case["start"]])
            for readout in ("token", "pooled")
        }
        for name, (field, readout) in READINGS.items():
            found[name].append(_zero(weights, getattr(by_readout[readout], field)))
        found["angle"].append(_zero(weights, by_readout["token"].near_angle))
    ends = len(STRENGTHS)
    judged: dict[str, Any] = {name: zeros[-ends:] for name, zeros in found.items()}
    if "weak" in case:
        judged["weak"] = {name: found[name][:-ends] for name in ("angle", "raw, token")}
    return judged


def _networks(case: dict[str, Any]) -> dict[str, Any]:
    """The raw gradient's zero of random networks from uncorrelated tokens, loss per token, both branches."""
    weights = np.linspace(0.4, 2.4, 9)
    rates = [
        simulated(
            edgewise.transformer(**_block(case["strength"], case["strength"], w, case["depth"])),
            seed=case["seed"],
        ).token_gradient[0]
        / case["depth"]
        for w in weights
    ]
    return {"zero": _zero(weights, np.array(rates))}


def _near(case: dict[str, Any]) -> dict[str, Any]:
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


def _first(results: list[Result]) -> list[Result]:
    """The eight planes near collapse."""
    return [r for r in results if "axis" in r.case]


def direction(result: Result, exponent: str) -> str:
    """What the boundary does from the weakest attention to the strongest, where it is known at three strengths."""
    zeros = [zero for zero in result.value[exponent] if zero is not None]
    if len(zeros) < 3:
        return "no boundary"
    _, low, high = AXES[result.case["axis"]]
    change, spacing = zeros[-1] - zeros[0], (high - low) / (result.case["points"] - 1)
    return "level" if abs(change) < RESOLVED * spacing else "rises" if change > 0 else "falls"


def claim(results: list[Result]) -> Claim:
    first = _first(results)
    planes = PLANES if len(first) < len(results) else ()  # the small scale has none of the talk's
    talk = [_reading(results, plane, kind) for plane in planes for kind in ("raw", "relative")]
    return Claim.all([_rises(first), _falls(first), *talk])


def moves(results: list[Result], plane: str, start: str, name: str, depth: int) -> float | None:
    """By how much a zero moves from the weakest attention to the strongest; None where one of them has no zero."""
    (run,) = select(results, plane=plane, start=start, depth=depth)
    ends = [run.value[name][0], run.value[name][-1]]
    return None if None in ends else float(ends[1] - ends[0])


def falls(results: list[Result], plane: str, start: str, name: str) -> bool | None:
    """Whether the gradient's zero falls and the angle's rises at both larger depths; None without a boundary."""
    found = [moves(results, plane, start, each, depth) for each in (name, "angle") for depth in DEPTHS[1:]]
    if None in found:
        return None
    return max(found[:2]) < -0.01 and min(found[2:]) > 0.01  # type: ignore[type-var,operator]


def _reading(results: list[Result], plane: str, kind: str) -> Claim:
    """One plane and one measure of the gradient: from uncorrelated tokens it decides, the others are beside it."""
    names = [name for name in READINGS if name.startswith(kind)]
    table = {f"{name}, {start}": falls(results, plane, start, name) for name in names for start in STARTS}
    words = {True: "falls", False: "does not fall", None: "has no zero at an end"}
    (run,) = select(results, plane=plane, start="uncorrelated", depth=48)
    token, angle = run.value[f"{kind}, token"], run.value["angle"]
    own = [(a, r.value["zero"]) for a in STRENGTHS for r in select(results, strength=a) if r.value["zero"]]
    (at16,) = select(results, plane=plane, start="uncorrelated", depth=16)
    off = [
        abs(float(np.mean([z for b, z in own if b == a])) - zero)
        for a, zero in zip(STRENGTHS, at16.value[f"{kind}, token"], strict=True)
        if zero is not None and any(b == a for b, _ in own)
    ]
    checked = kind == "raw" and PLANES[plane] is None
    said = (
        f" Random networks have their zeros within {max(off):.2f} of theory at 16 blocks (allowed: {NEAREST:g})."
        if checked
        else ""
    )
    held = table[f"{kind}, token, uncorrelated"]
    return Claim(
        f"For the back-propagated gradient the phase boundary goes down as attention grows [talk]; {kind} gradient of "
        f"a loss per token, uncorrelated tokens, MLP weights over {plane}.",
        f"At 48 blocks and attention {', '.join(f'{a:g}' for a in STRENGTHS)} the gradient vanishes at MLP weights "
        f"{_listed(token)}, the angle at {_listed(angle)}. {'; '.join(f'{k}: {words[v]}' for k, v in table.items())}."
        f"{said} Held: the first falls and the second rises, from end to end, at 48 and at 96 blocks.",
        "theory, n = 16, 16, 48 and 96 blocks, tanh, pre-norm"
        + ("; networks: d = 128, 4 seeds" if checked else ""),
        bool(held) and (not checked or max(off) < NEAREST),
        {"token": token, "angle": angle},
        rows=("C30",),
    )


def _listed(zeros: list[float | None]) -> str:
    return ", ".join("none" if zero is None else f"{zero:.2f}" for zero in zeros)


def crossing(x: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[float, float] | None:
    """Where two edges of a plane meet, each a height over x; straight between the points."""
    gap = first - second
    places = np.flatnonzero(np.sign(gap[:-1]) * np.sign(gap[1:]) <= 0)
    if not len(places):
        return None
    k = int(places[0])
    share = float(gap[k] / (gap[k] - gap[k + 1])) if gap[k] != gap[k + 1] else 0.0
    return float(x[k] + share * (x[k + 1] - x[k])), float(first[k] + share * (first[k + 1] - first[k]))


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
    first = _first(results)
    panels = [panel for r in first if (panel := _panel(r)).curves]  # ReLU has no boundary in these planes
    if len(first) < len(results):
        panels += [_edges(results, plane, depth) for plane in PLANES for depth in DEPTHS[:2]]
    title = "Where the exponents vanish, over the strength of attention\n(theory, linearised near collapse)"
    foot = f"{_scale(first)}; ReLU: no boundary" if len(panels) < len(results) else _scale(first)
    return Sheet(title, tuple(panels), foot, columns=min(2, len(panels))).draw()


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


def _edges(results: list[Result], plane: str, depth: int) -> Panel:
    """A plane of the talk with both edges and where they meet: the start to choose."""
    (run,) = select(results, plane=plane, start="uncorrelated", depth=depth)
    weak = run.value.get("weak", {"angle": [], "raw, token": []})
    x = np.array([*run.case.get("weak", ()), *STRENGTHS])
    angle, gradient = (
        np.array([math.nan if z is None else z for z in [*weak[name], *run.value[name]]])
        for name in ("angle", "raw, token")
    )
    curves = [
        Curve("angle", x, angle, 0, "orbit"),
        Curve("raw gradient, loss per token", x, gradient, 1, "orbit"),
    ]
    if own := [
        (r.case["strength"], r.value["zero"])
        for r in results
        if r.value.get("zero") and (PLANES[plane], depth) == (None, 16)
    ]:
        curves.append(Curve("random networks", *np.array(own).T, 1, "hollow"))
    met = crossing(x, angle, gradient)
    return Panel(
        f"uncorrelated tokens, {depth} blocks",
        {"both branches": "strength of both branches"}.get(plane, "attention strength, MLP 0.5"),
        "weights of both MLP matrices at the edge",
        tuple(curves),
        f"the edges meet at {met[0]:.2f}, weights {met[1]:.2f}" if met else "the edges do not meet",
        markers=(Marker("both edges", *met),) if met else (),
    )
