"""Figure 3: without MLP layers tokens collapse to a line; with a skip exponentially, without one doubly so."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, select, simulated_orbit

from .common import ABSTRACT, paper_block, scale_of

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.024 or more
STRENGTHS = (0.3, 0.5, 0.7)
SCORE_GAINS = (1.0, 2.0, 4.0)
START_OVERLAPS = (0.05, 0.5, 0.9, 0.99)  # where a single layer without a skip is tried
HEADS = (1, 4, 16)
SMALLEST = 1e-25  # a separation is the square of a distance: smaller ones are rounding


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Deep networks with skips; two layers without, from several overlaps."""
    tokens, width, depth, seeds = (32, 512, 24, 8) if scale == "full" else (16, 64, 24, 3)
    deep, bare = [], []
    for seed in range(seeds):
        for strength in STRENGTHS:
            knobs = paper_block(strength, 0.0, depth=depth, tokens=tokens, width=width)
            deep.append(
                {"skip": True, "strength": strength, "start_overlap": 0.05, "seed": seed, "knobs": knobs}
            )
        for gain in SCORE_GAINS:
            knobs = paper_block(1.0, 0.0, depth=2, tokens=tokens, width=width, score_gain=gain)
            starts = ({"start_overlap": overlap, "seed": seed, "knobs": knobs} for overlap in START_OVERLAPS)
            bare += [{"skip": False, "gain": gain, "heads": 1} | start for start in starts]
        for heads in HEADS[1:]:
            knobs = paper_block(1.0, 0.0, depth=2, tokens=tokens, width=width, score_gain=1.0) | {
                "heads": heads
            }
            start = {"start_overlap": 0.9, "seed": seed, "knobs": knobs}
            bare.append({"skip": False, "gain": 1.0, "heads": heads} | start)
    return deep + bare


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The orbit of one random network of attention layers."""
    return simulated_orbit(case)


def claim(results: list[Result]) -> Claim:
    """Collapse, its rate, its speed without skips, and the gradient."""
    parts = (_collapse, _rates, _cubes, _second_layer, _gradients)
    return Claim.all([part(results) for part in parts])


def _deep(results: list[Result]) -> list[Result]:
    return select(results, skip=True)


def _collapse(results: list[Result]) -> Claim:
    falls = [np.diff(np.log(over_seeds(_deep(results), "separation", strength=a)[0])) for a in STRENGTHS]
    ends = [over_seeds(_deep(results), "separation", strength=a)[0][-1] for a in STRENGTHS]
    return Claim(
        f"Without MLP layers the tokens collapse to a line {ABSTRACT}.",
        f"1 - overlap falls in every block; after the last it is {', '.join(f'{end:.2g}' for end in ends)} "
        f"at strengths {', '.join(f'{a:g}' for a in STRENGTHS)}.",
        scale_of(_deep(results)),
        all((fall < 0).all() for fall in falls),
        {"last_separation": ends},
        rows=("C20",),
    )


def rate(results: list[Result], strength: float) -> tuple[float, float]:
    """Measured log-rate of 1 - overlap over the second half of depth, and its standard error over seeds."""
    rows = np.log([r.value["separation"] for r in select(_deep(results), strength=strength)])
    half = rows.shape[1] // 2
    slopes = (rows[:, -1] - rows[:, half]) / (rows.shape[1] - 1 - half)
    return float(slopes.mean()), float(slopes.std(ddof=1) / np.sqrt(len(slopes)))


def _rates(results: list[Result]) -> Claim:
    numbers, held = {}, True
    for strength in STRENGTHS:
        found, error = rate(results, strength)
        limit = log(1 - strength**2)
        predicted = _predicted_rate(select(_deep(results), strength=strength)[0].case)
        held &= abs(found - predicted) < 3 * error + 0.02 * abs(limit)
        numbers[f"{strength:g}"] = {"measured": found, "error": error, "theory": predicted, "limit": limit}
    text = ", ".join(f"{n['measured']:.3f} ± {n['error']:.3f} ({n['theory']:.3f})" for n in numbers.values())
    return Claim(
        "(ours) The rate of collapse follows theory, which near collapse is log(1 - a^2) for strength a.",
        f"Measured (predicted) over the second half: {text}; limits "
        f"{', '.join(format(n['limit'], '.3f') for n in numbers.values())}.",
        scale_of(_deep(results)),
        held,
        numbers,
        rows=("C20", "C28"),
    )


def _predicted_rate(case: dict[str, Any]) -> float:
    logs = np.log(_separations(case["knobs"], case["start_overlap"]))
    half = len(logs) // 2
    return float((logs[-1] - logs[half]) / (len(logs) - 1 - half))


def _separations(knobs: dict[str, Any], overlap: float, closure: str = "exact") -> np.ndarray:
    network = edgewise.transformer(**knobs)
    return edgewise.predict(network, start_overlap=overlap, closure=closure).blocks("separation")


def steps(results: list[Result], gain: float, layer: int) -> np.ndarray:
    """1 - overlap before and after one layer without a skip, of every network with one head; (2, networks)."""
    rows = [r.value["separation"] for r in select(results, skip=False, gain=gain, heads=1)]
    pairs = np.array([row[layer : layer + 2] for row in rows])
    return pairs[pairs[:, 1] > SMALLEST].T


def powers(results: list[Result]) -> dict[str, float]:
    """Slope of log(after) on log(before) near collapse, per score gain."""
    found = {}
    for gain in SCORE_GAINS:
        before, after = np.concatenate([steps(results, gain, layer) for layer in (0, 1)], axis=1)
        near = before < 0.05 / gain**2
        found[f"{gain:g}"] = float(np.polyfit(np.log(before[near]), np.log(after[near]), 1)[0])
    return found


def _cubes(results: list[Result]) -> Claim:
    found = powers(results)
    text, held = (
        ", ".join(f"{power:.2f}" for power in found.values()),
        all(abs(p - 3) < 0.15 for p in found.values()),
    )
    return Claim(
        "Pure attention loses rank doubly exponentially with depth [Dong 2021].",
        f"Near collapse 1 - overlap is cubed by every layer: measured powers {text} at score gains "
        f"{', '.join(found)}; theory says 3.",
        scale_of(select(results, skip=False)),
        held,
        {"powers": found},
        rows=("C20",),
    )


def excess(results: list[Result], heads: int) -> tuple[float, float]:
    """log of measured over predicted 1 - overlap after a second layer without a skip, and its standard error."""
    found = select(results, skip=False, gain=1.0, heads=heads, start_overlap=0.9)
    knobs, rows = found[0].case["knobs"] | {"depth": 1}, [r.value["separation"] for r in found]
    logs = np.array([np.log(row[2] / _separations(knobs, 1 - row[1])[1]) for row in rows])
    return float(logs.mean()), float(logs.std(ddof=1) / np.sqrt(len(logs)))


def _second_layer(results: list[Result]) -> Claim:
    found = {heads: excess(results, heads) for heads in HEADS}
    text = ", ".join(
        f"{np.exp(value):.2f} ({heads} head{'s' * (heads > 1)})" for heads, (value, _) in found.items()
    )
    held = all(abs(value) < 0.1 + 3 * error for value, error in found.values())
    return Claim(
        f"The tokens stay a simplex, so one map describes every layer {ABSTRACT}.",
        f"Not without a skip at one head: after a second layer 1 - overlap is {text} times the prediction from where "
        "that layer starts. One attention matrix of n rows does not average itself; more heads do so better.",
        scale_of(select(results, skip=False)),
        held,
        {"log_excess_and_error": {str(h): v for h, v in found.items()}},
        rows=("C16",),
    )


def gradient_rate(
    results: list[Result], readout: str, strength: float, half: bool = False
) -> tuple[float, float]:
    """Log-rate per block of the gradient relative to the stream on its way to the input, and its standard error.

    half: over the blocks near the input alone, which are the last on the way.
    """
    found = []
    for r in select(_deep(results), strength=strength):
        rows = np.array(r.value[f"{readout}_gradient"]) + np.log(r.value["norm"])
        end = len(rows) // 2 if half else len(rows) - 1
        found.append((rows[0] - rows[end]) / end)
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(len(found)))


def _gradients(results: list[Result]) -> Claim:
    """Vanishing is below zero by more than three standard errors; per token that may be over the depth, or for "
    "good."""
    found = {
        readout: [gradient_rate(results, readout, a) for a in STRENGTHS] for readout in ("token", "pooled")
    }
    last = [gradient_rate(results, "token", a, half=True) for a in STRENGTHS]
    said = {
        name: ", ".join(f"{rate:+.3f} ± {error:.3f}" for rate, error in rows) for name, rows in found.items()
    }
    late = ", ".join(f"{rate:+.3f}" for rate, _ in last)
    both = all(rate < -3 * error for rows in found.values() for rate, error in rows)
    return Claim(
        "With iterated attention alone you get vanishing gradients [talk].",
        f"Per block, relative to the stream, at strengths {', '.join(f'{a:g}' for a in STRENGTHS)}: loss per token "
        f"{said['token']} (in the half next to the input {late}: at most log n over the whole depth), pooled loss "
        f"{said['pooled']}. Held: below zero by three standard errors for both readouts. Smallest counterexample: "
        "edgewise.predict(edgewise.transformer(mlp_width=0, heads=1, depth=24, tokens=32, attention_branch=0.5, "
        "attention_skip=0.866), readout='pooled').",
        scale_of(_deep(results)),
        both,
        {"rates": found, "token_next_to_the_input": last},
        rows=("C21",),
    )


def draw(results: list[Result]) -> Figure:
    """Decay with skips; one layer without a skip, before against after; what a second such layer adds."""
    title = "Attention alone: tokens collapse to a line"
    foot = f"lines: theory; points: {scale_of(_deep(results))}, bars: standard error"
    return Sheet(title, (_decay(results), _map(results), _heads(results)), foot).draw()


def _heads(results: list[Result]) -> Panel:
    values, errors = np.array([excess(results, heads) for heads in HEADS]).T
    measured = Curve("second layer", np.array(HEADS), np.exp(values), 1, "points", np.exp(values) * errors)
    theory = Curve("theory", np.array([1.0, HEADS[-1]]), np.ones(2), 6)
    return Panel(
        "without a skip: few heads leave the simplex",
        "heads",
        "1 − overlap / predicted",
        (theory, measured),
        "from overlap 0.9, score gain 1",
        log_x=True,
    )


def _decay(results: list[Result]) -> Panel:
    curves, notes = [], []
    for group, strength in enumerate(STRENGTHS):
        case = select(_deep(results), strength=strength)[0].case
        line = _separations(case["knobs"], case["start_overlap"])
        mean, error = over_seeds(_deep(results), "separation", strength=strength)
        blocks = np.arange(len(line))
        curves += [
            Curve(f"strength {strength:g}", blocks, line, group),
            Curve("_", blocks, mean, group, "points", error),
        ]
        found, scatter = rate(results, strength)
        notes.append(f"strength {strength:g}: {found:.3f} ± {scatter:.3f}, limit {log(1 - strength**2):.3f}")
    return Panel(
        "with a skip: exponential",
        "block",
        "1 − overlap",
        tuple(curves),
        "rate per block over the second half, and log(1 − a²):\n" + "\n".join(notes),
        log_y=True,
    )


def _map(results: list[Result]) -> Panel:
    curves = []
    for group, gain in enumerate(SCORE_GAINS):
        knobs = select(results, skip=False, gain=gain, heads=1)[0].case["knobs"] | {"depth": 1}
        starts = np.geomspace(1e-8, 0.999, 40)
        exact = np.array([_separations(knobs, 1 - start)[1] for start in starts])
        named = ("first layer", "second layer") if group == 0 else ("_", "_")
        curves += [
            Curve(f"score gain {gain:g}", starts, exact, group),
            Curve(named[0], *steps(results, gain, 0), group, "points"),
            Curve(named[1], *steps(results, gain, 1), group, "hollow"),
        ]
    note = "measured powers near collapse: " + ", ".join(f"{power:.2f}" for power in powers(results).values())
    return Panel(
        "without a skip: each layer cubes 1 − overlap",
        "1 − overlap before the layer",
        "1 − overlap after it",
        tuple(curves),
        note,
        log_x=True,
        log_y=True,
    )
