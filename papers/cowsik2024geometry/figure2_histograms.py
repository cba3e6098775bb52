"""Figure 2: sixteen blocks of token angles and token norms, theory against histograms of random networks.

The theory is one number per block. A simplex means that every pair of tokens shows it, and not only their mean.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, select, simulated_streams

from .common import ABSTRACT, beyond_error, paper_block

TOLERANCE = 0.003  # of the largest number in an entry; seeds scatter by 0.027 or more
PHASES = {"ordered": 1.0, "chaotic": 4.0}  # gain of the MLP's first matrix
START_OVERLAP = 0.3
EDGES = {"angle": np.linspace(0, 120, 97), "length": np.linspace(0.4, 1.4, 81)}  # degrees; |x| / sqrt(d)
LABELS = {"angle": "angle between two tokens (degrees)", "length": "length of a token, |x| / √d"}
WITHIN = {"angle": 1.0, "length": 0.02}
EVERY = 2  # blocks between ridges
HEIGHT = 1.9  # of the tallest ridge, in blocks


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Two phases, several widths, several seeds."""
    widths, seeds, tokens = ((64, 128, 256, 512), 8, 32) if scale == "full" else ((64, 256), 2, 16)
    return [
        {
            "phase": phase,
            "width": width,
            "seed": seed,
            "drawn": width == widths[-1],
            "knobs": paper_block(0.4, 0.6, mlp_in_gain=gain, depth=16, tokens=tokens, width=width),
        }
        for phase, gain in PHASES.items()
        for width in widths
        for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Per block: mean and spread over pairs of the angle and over tokens of the length; histograms where drawn."""
    network = edgewise.transformer(**case["knobs"])
    streams = simulated_streams(network, seed=case["seed"], start_overlap=START_OVERLAP)
    found: dict[str, Any] = {}
    for name, values in {"angle": map(_angles, streams), "length": map(_lengths, streams)}.items():
        rows = [np.asarray(row) for row in values]
        found[name] = rounded([row.mean() for row in rows])
        found[f"{name}_spread"] = rounded([row.std() for row in rows])
        if case["drawn"]:
            found[f"{name}_counts"] = [np.histogram(row, EDGES[name])[0].tolist() for row in rows[::EVERY]]
    return found


def _angles(tokens: Any) -> Any:
    """Of all pairs, in degrees; from chords, so that small angles are not lost in rounding."""
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    i, j = np.triu_indices(len(unit), 1)
    return np.degrees(2 * np.arcsin((unit[i] - unit[j]).norm(dim=-1).numpy() / 2))


def _lengths(tokens: Any) -> Any:
    return tokens.square().mean(-1).sqrt().numpy()


def theory(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """The predicted angle and length at every block."""
    trace = _predicted(tuple(case["knobs"].items()))
    return {"angle": np.degrees(np.arccos(trace.blocks("overlap"))), "length": np.sqrt(trace.blocks("norm"))}


@cache
def _predicted(knobs: tuple[tuple[str, Any], ...]) -> edgewise.Trace:
    return edgewise.predict(edgewise.transformer(**dict(knobs)), start_overlap=START_OVERLAP)


def claim(results: list[Result]) -> Claim:
    """The means, and how the histograms narrow."""
    return Claim.all([_means(results), _narrowing(results)])


def _widest(results: list[Result]) -> int:
    return max(r.case["width"] for r in results)


def _scale(results: list[Result], widths: str) -> str:
    tokens, seeds = results[0].case["knobs"]["tokens"], len({r.case["seed"] for r in results})
    return f"n = {tokens} tokens, {widths}, 16 blocks, {seeds} random networks per histogram"


def _means(results: list[Result]) -> Claim:
    width, worst, beyond = _widest(results), {}, False
    for name in WITHIN:
        gaps, errors = [], []
        for phase in PHASES:
            mean, error = over_seeds(results, name, phase=phase, width=width)
            gaps.append(mean - theory(select(results, phase=phase, width=width)[0].case)[name])
            errors.append(error)
        worst[name], beyond = float(np.abs(gaps).max()), beyond or beyond_error(gaps, errors, WITHIN[name])
    return Claim(
        f"The update equations quantitatively track the geometry of the tokens {ABSTRACT}.",
        f"At the worst of 16 blocks the mean angle is off by {worst['angle']:.2f} degrees, the mean length by "
        f"{worst['length']:.3f}.",
        _scale(results, f"d = {width}"),
        not beyond,
        {"largest_gap": worst, "allowed": WITHIN},
        rows=("C19",),
    )


def powers(results: list[Result]) -> dict[str, tuple[float, float]]:
    """Power of the width with which each spread falls at the last block, and its standard error."""
    widths = sorted({r.case["width"] for r in results})
    found = {}
    for phase in PHASES:
        for name in WITHIN:
            pairs = [over_seeds(results, f"{name}_spread", phase=phase, width=w) for w in widths]
            last, error = np.array([(mean[-1], error[-1]) for mean, error in pairs]).T
            x = np.log(widths) - np.log(widths).mean()
            power, scatter = x @ np.log(last) / (x @ x), np.sqrt(x**2 @ (error / last) ** 2) / (x @ x)
            found[f"{phase} {name}"] = (float(power), float(scatter))
    return found


def _narrowing(results: list[Result]) -> Claim:
    found = powers(results)
    text = ", ".join(f"{power:.2f} ± {error:.2f} ({name})" for name, (power, error) in found.items())
    return Claim(
        f"The state is a regular simplex: all pairs of tokens have one angle, all tokens one length {ABSTRACT}.",
        f"True as the width grows: the histograms narrow like the width to the power {text}; expected -1/2.",
        _scale(results, "several widths"),
        all(abs(power + 0.5) < 0.1 + 3 * error for power, error in found.values()),
        {"powers": found},
        rows=("C11", "C19"),
    )


def draw(results: list[Result]) -> Figure:
    """Ridges of both phases and the narrowing with width; angles above, lengths below."""
    panels = []
    for name in WITHIN:
        panels += [_ridges(results, phase, name) for phase in PHASES] + [_spreads(results, name)]
    title = "Sixteen blocks: every pair of tokens follows the theory (attention strength 0.4, MLP strength 0.6, tanh)"
    foot = f"ridges: histograms, line: theory; {_scale(results, f'd = {_widest(results)}')}"
    return Sheet(title, tuple(panels), foot, columns=3).draw()


def _ridges(results: list[Result], phase: str, name: str) -> Panel:
    width = _widest(results)
    found = select(results, phase=phase, width=width)
    counts = np.sum([r.value[f"{name}_counts"] for r in found], axis=0)
    middle = (EDGES[name][1:] + EDGES[name][:-1]) / 2
    ridges = []
    for block, row in zip(range(0, 17, EVERY), counts, strict=True):
        shown = np.flatnonzero(row)
        part = slice(max(shown[0] - 1, 0), shown[-1] + 2)
        high = block + HEIGHT * row[part] / max(row.max(), 1)
        ridges.append(Curve("random networks" if block == 0 else "_", middle[part], high, 0, "steps"))
    line = theory(found[0].case)[name]
    predicted = Curve("theory", line, np.arange(len(line)), 1, "orbit")
    title = f"{phase} phase (MLP input gain {PHASES[phase]:g})"
    return Panel(title, LABELS[name], "block", (*ridges, predicted))


def _spreads(results: list[Result], name: str) -> Panel:
    widths = np.array(sorted({r.case["width"] for r in results}))
    curves = []
    for group, phase in enumerate(PHASES):
        pairs = [over_seeds(results, f"{name}_spread", phase=phase, width=int(w)) for w in widths]
        last, error = np.array([p[0][-1] for p in pairs]), np.array([p[1][-1] for p in pairs])
        through = np.exp(np.log(last * np.sqrt(widths)).mean()) / np.sqrt(widths)
        curves += [
            Curve(f"{phase}, block 16", widths, last, group, "points", error),
            Curve("∝ 1/√d" if group == 0 else "_", widths, through, group, "second"),
        ]
    fitted = {phase: powers(results)[f"{phase} {name}"] for phase in PHASES}
    note = "power of d: " + ", ".join(f"{power:.2f} ± {error:.2f}" for power, error in fitted.values())
    unit = "degrees" if name == "angle" else "over √d"
    return Panel(
        "spread within a network",
        "width d",
        f"standard deviation ({unit})",
        tuple(curves),
        note,
        log_x=True,
        log_y=True,
    )
