"""Two gradients in one network: near collapse a loss per token and a pooled loss grow at different rates.

Differences between tokens' gradients grow at the angle exponent, their mean at more. A loss per token starts with a
share 1/n in the mean, so that its exponent changes, even in sign, at a depth that grows like log n.
"""

from __future__ import annotations

from functools import cache
from math import log, sqrt
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, seed_count, select, simulated_orbit

TOLERANCE = 0.004  # of the largest number in an entry; seeds scatter by 0.041 or more
NEAR = 1e-8  # 1 - overlap at the start
STRENGTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
WITHIN = 0.02  # allowed gap of a rate per block, besides three standard errors


def block(attention: float, **size: Any) -> dict[str, Any]:
    """The paper's block: attention strength given, MLP strength 0.5, tanh, MLP input gain 2."""
    return {
        "activation": "tanh",
        "norm": "pre",
        "heads": 1,
        "attention_skip": sqrt(1 - attention**2),
        "attention_branch": attention,
        "mlp_skip": sqrt(0.75),
        "mlp_branch": 0.5,
        "mlp_in_gain": 2.0,
    } | size


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Deep networks of three lengths; shallower ones of five attention strengths."""
    full = scale == "full"
    width, depth, seeds = (256, 32, 5) if full else (96, 16, 2)
    deep = [
        {
            "part": "length",
            "tokens": n,
            "start_overlap": 1 - NEAR,
            "seed": seed,
            "knobs": block(0.5, depth=depth, tokens=n, width=width),
        }
        for n in ((8, 32, 128) if full else (4, 32))
        for seed in range(seeds)
    ]
    shallow = [
        {
            "part": "strength",
            "attention": attention,
            "start_overlap": 1 - NEAR,
            "seed": seed,
            "knobs": block(attention, depth=16, tokens=16, width=width),
        }
        for attention in STRENGTHS
        for seed in range(seeds)
    ]
    return deep + shallow


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The orbit of one random network."""
    return simulated_orbit(case)


def _lengths(results: list[Result]) -> list[int]:
    return sorted({r.case["tokens"] for r in select(results, part="length")})


def _scale(results: list[Result]) -> str:
    deep = select(results, part="length")
    knobs = deep[0].case["knobs"]
    return f"d = {knobs['width']}, {knobs['depth']} blocks (right: 16), {seed_count(deep)} random networks per point"


@cache
def _theory(knobs: tuple[tuple[str, Any], ...], readout: str) -> edgewise.Trace:
    return edgewise.predict(edgewise.transformer(**dict(knobs)), start_overlap=1 - NEAR, readout=readout)


def theory(knobs: dict[str, Any], name: str) -> np.ndarray:
    """A predicted row by the name of the measured one."""
    readout, _, gradient = name.rpartition("_")
    trace = _theory(tuple(knobs.items()), readout if gradient == "gradient" else "token")
    return trace.blocks("log_gradient" if gradient == "gradient" else name)


def modes(knobs: dict[str, Any]) -> tuple[float, float]:
    """Rates of the mean and of the difference mode, from the last block of the predicted orbit."""
    row = theory(knobs, "separation")
    later = row[len(row) // 2 :]
    difference = float(np.log(later[-1] / later[0]) / (len(later) - 1))
    a, q = knobs["attention_branch"], float(theory(knobs, "norm")[-1])
    return difference + log(1 + a**2 / ((1 - a**2) * q)), difference


def claim(results: list[Result]) -> Claim:
    """Both profiles, the change of sign, and the identity between the exponents."""
    return Claim.all([_profiles(results), _sign(results), _identity(results)])


def _profiles(results: list[Result]) -> Claim:
    worst, errors, depth = {}, [], 1
    for name in ("token_gradient", "pooled_gradient"):
        for n in _lengths(results):
            knobs = select(results, part="length", tokens=n)[0].case["knobs"]
            mean, error = over_seeds(results, name, part="length", tokens=n)
            depth = knobs["depth"]
            worst[f"{name}, n = {n}"] = float(abs(mean[0] - theory(knobs, name)[0]) / depth)
            errors.append(error[0] / depth)
    scatter = float(np.sqrt(np.mean(np.square(errors))))
    return Claim(
        "Ours: one recursion for the squares and the cross products of token gradients gives both readouts.",
        f"Over {depth} blocks exponents are off by at most {max(worst.values()):.4f} (standard error {scatter:.4f}).",
        _scale(results),
        max(worst.values()) < WITHIN + 3 * scatter,
        {"gap_per_block": worst, "standard_error": scatter},
        rows=("C27",),
    )


def crossings(results: list[Result]) -> dict[int, dict[str, float]]:
    """Per length: the exponent of a loss per token over the last quarter of depth and over all of it, and theory's."""
    found = {}
    for n in _lengths(results):
        knobs = select(results, part="length", tokens=n)[0].case["knobs"]
        quarter, depth = knobs["depth"] // 4, knobs["depth"]
        mean, error = over_seeds(results, "token_gradient", part="length", tokens=n)
        fast, slow = modes(knobs)
        found[n] = {
            "shallow": float(mean[-1 - quarter] / quarter),
            "deep": float(mean[0] / depth),
            "error": float(error[0] / depth),
            "crossover_depth": log(n) / (fast - slow),
        }
    return found


def _sign(results: list[Result]) -> Claim:
    found = crossings(results)
    shortest, longest = _lengths(results)[0], _lengths(results)[-1]
    depth = select(results, part="length")[0].case["knobs"]["depth"]
    said = [
        f"n = {n}: {found[n]['shallow']:+.3f} over {depth // 4} blocks, {found[n]['deep']:+.3f} over {depth}"
        for n in (shortest, longest)
    ]
    changes = max(abs(row["deep"] - row["shallow"]) - 3 * row["error"] for row in found.values())
    depths = ", ".join(format(row["crossover_depth"], ".0f") for row in found.values())
    return Claim(
        "Ours: the gradient exponent of a loss per token depends on depth and length, not on the start alone.",
        f"Loss per token, {'; '.join(said)}. The change comes after "
        f"log n / (difference of the rates) = {depths} blocks.",
        _scale(results),
        bool(changes > WITHIN),
        {str(n): values for n, values in found.items()},
        rows=("C27",),
    )


def differences(results: list[Result]) -> np.ndarray:
    """Rate of the pooled gradient minus that of 1 - overlap over the later half, (mean, error) by strength."""
    found = []
    for attention in STRENGTHS:
        values = [r.value for r in select(results, part="strength", attention=attention)]
        half = len(values[0]["separation"]) // 2
        pooled = np.array([v["pooled_gradient"][half] for v in values])
        angle = np.array([log(v["separation"][-1] / v["separation"][half]) for v in values])
        gap = (pooled - angle) / (len(values[0]["separation"]) - 1 - half)
        found.append((gap.mean(), gap.std(ddof=1) / sqrt(len(gap))))
    return np.array(found).T


def identity(results: list[Result], strengths: Any = STRENGTHS) -> np.ndarray:
    """log(1 + a^2 / ((1 - a^2) q)) with the norm q of the collapsed fixed point."""
    knobs = select(results, part="strength")[0].case["knobs"]
    rows = []
    for a in strengths:
        q = theory(block(float(a), depth=24, tokens=knobs["tokens"], width=knobs["width"]), "norm")[-1]
        rows.append(log(1 + a**2 / ((1 - a**2) * q)))
    return np.array(rows)


def _identity(results: list[Result]) -> Claim:
    (mean, error), line = differences(results), identity(results)
    gap, scatter = float(np.abs(mean - line).max()), float(np.sqrt(np.mean(error**2)))
    return Claim(
        "Ours: near collapse the pooled gradient's rate exceeds the angle's by log(1 + a²/((1 − a²) q)).",
        f"By theory {line[0]:.3f} at "
        f"strength {STRENGTHS[0]:g}, {line[-1]:.2f} at {STRENGTHS[-1]:g}; measured within {gap:.3f} (standard error "
        f"{scatter:.3f}). Held: within {WITHIN:g} beside three of them. So both exponents vanish together only as "
        "attention fades.",
        _scale(results),
        bool(gap < WITHIN + 3 * scatter),
        {"measured": mean.tolist(), "theory": line.tolist(), "gap": gap},
        rows=("C28",),
    )


def draw(results: list[Result]) -> Figure:
    """Both readouts of one network; a loss per token at several lengths; the identity."""
    panels = (_readouts(results), _by_length(results), _by_strength(results))
    title = "Two gradient modes near collapse (tanh, pre-norm, MLP strength 0.5, input gain 2)"
    return Sheet(title, panels, f"lines: theory; points: {_scale(results)}, bars: standard error").draw()


def _profile(
    results: list[Result], n: int, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Blocks below the output, predicted, measured, error."""
    knobs = select(results, part="length", tokens=n)[0].case["knobs"]
    mean, error = over_seeds(results, name, part="length", tokens=n)
    return np.arange(len(mean))[::-1], theory(knobs, name), mean, error


def _readouts(results: list[Result]) -> Panel:
    n, curves = _lengths(results)[1], []
    fast, slow = modes(select(results, part="length", tokens=n)[0].case["knobs"])
    for group, name in enumerate(("token_gradient", "pooled_gradient")):
        back, line, mean, error = _profile(results, n, name)
        label = "loss per token" if group == 0 else "pooled loss"
        curves += [Curve(label, back, line, group), Curve("_", back, mean, group, "points", error)]
    curves.append(Curve("rate of the differences", back, slow * back, 6, "third"))
    note = f"mean mode {fast:+.3f} per block, differences {slow:+.3f}"
    return Panel(
        f"one network, two readouts (n = {n}, strength 0.5)",
        "blocks below the output",
        "log |g|², over the output's",
        tuple(curves),
        note,
    )


def _by_length(results: list[Result]) -> Panel:
    curves, notes = [], []
    for group, n in enumerate(_lengths(results)):
        back, line, mean, error = _profile(results, n, "token_gradient")
        curves += [Curve(f"n = {n}", back, line, group), Curve("_", back, mean, group, "points", error)]
        notes.append(f"{crossings(results)[n]['crossover_depth']:.0f} (n = {n})")
    note = "crossover after blocks: " + ", ".join(notes)
    return Panel(
        "loss per token: longer inputs change mode later",
        "blocks below the output",
        "log |g|², over the output's",
        tuple(curves),
        note,
    )


def _by_strength(results: list[Result]) -> Panel:
    (mean, error), fine = differences(results), np.linspace(0.05, 0.92, 9)
    curves = (
        Curve("log(1 + a²/((1 − a²) q))", fine, identity(results, fine), 0),
        Curve("random networks", np.array(STRENGTHS), mean, 1, "points", error),
    )
    return Panel(
        "pooled gradient's rate minus angle's",
        "attention strength a",
        "difference per block",
        curves,
        "0 only without attention",
    )
