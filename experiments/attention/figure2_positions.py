"""Causal masks and rotary positions: the theory without positions, ours with them, and random networks.

Without positions all tokens are alike and two numbers describe them. With a mask or a rotation the state is the whole
matrix of inner products, which we sample without any width.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, seed_count, select, simulated_orbit
from edgewise.theory.predict import predict

TOLERANCE = 0.004  # of the largest number in an entry; seeds scatter by 0.039 or more
VARIANTS: dict[str, dict[str, Any]] = {
    "no positions": {},
    "causal": {"causal": True},
    "RoPE": {"rope": True},
    "causal, RoPE": {"causal": True, "rope": True},
}
START_OVERLAP = 0.5
WITHIN = 0.015  # allowed gap of a rate per block, besides three standard errors
SMALL = {"depth": 6, "tokens": 12, "width": 96, "heads": 4}
FULL = {"depth": 16, "tokens": 32, "width": 256, "heads": 8}
BASE = {
    "activation": "tanh",
    "norm": "pre",
    "attention_skip": 0.8,
    "attention_branch": 0.6,
    "mlp_in_gain": 1.0,
    "mlp_skip": sqrt(0.75),
    "mlp_branch": 0.5,
}


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Every variant at several score gains: one case of theory, and several random networks."""
    full = scale == "full"
    size = FULL if full else SMALL
    found = []
    for name, positions in VARIANTS.items():
        for gain in (0.5, 1.0, 2.0, 4.0) if full else (0.5, 4.0):
            knobs = BASE | size | positions | {"score_gain": gain}
            common = {"variant": name, "gain": gain, "start_overlap": START_OVERLAP, "knobs": knobs}
            found.append(common | {"theory": True})
            found += [common | {"theory": False, "seed": seed} for seed in range(4 if full else 3)]
    return found


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The orbit of a random network, or the predicted one, which is sampled where positions matter."""
    if not case["theory"]:
        return simulated_orbit(case)
    trace = predict(edgewise.transformer(**case["knobs"]), start_overlap=START_OVERLAP)
    return {
        "separation": rounded(trace.blocks("separation")),
        "token_gradient": rounded(trace.blocks("log_gradient")),
    }


def _gains(results: list[Result]) -> list[float]:
    return sorted({r.case["gain"] for r in results})


def _scale(results: list[Result]) -> str:
    knobs = results[0].case["knobs"]
    size = (
        f"n = {knobs['tokens']} tokens, d = {knobs['width']}, {knobs['heads']} heads, {knobs['depth']} blocks"
    )
    return f"{size}, {seed_count(results)} random networks per point"


def rates(results: list[Result], variant: str, theory: bool, quantity: str = "separation") -> np.ndarray:
    """Log-rate per block of 1 - overlap (over the second half) or of gradients (over all): (mean, error) by gain."""
    found = []
    for gain in _gains(results):
        each = select(results, variant=variant, gain=gain, theory=theory)
        rows = np.array([r.value[quantity] for r in each])
        half = rows.shape[1] // 2 if quantity == "separation" else 0
        logs = np.log(rows[:, -1] / rows[:, half]) if quantity == "separation" else rows[:, 0]
        logs = logs / (rows.shape[1] - 1 - half)
        found.append((logs.mean(), logs.std(ddof=1) / sqrt(len(logs)) if len(logs) > 1 else 0.0))
    return np.array(found).T


def claim(results: list[Result]) -> Claim:
    """Ours with positions, theirs without, and what RoPE does to collapse."""
    return Claim.all([_ours(results), _without(results), _rope(results)])


def gaps(results: list[Result], quantity: str, assumed: str | None = None) -> tuple[dict[str, float], float]:
    """Largest gap per variant between measured rates and the theory (of the variant `assumed`), and the error."""
    found, errors = {}, []
    for name in VARIANTS:
        mean, error = rates(results, name, False, quantity)
        found[name] = float(np.abs(mean - rates(results, assumed or name, True, quantity)[0]).max())
        errors.append(error)
    return found, float(np.sqrt(np.mean(np.square(errors))))


def _ours(results: list[Result]) -> Claim:
    collapse, error = gaps(results, "separation")
    gradient, gradient_error = gaps(results, "token_gradient")
    held = (
        max(collapse.values()) < WITHIN + 3 * error and max(gradient.values()) < WITHIN + 3 * gradient_error
    )
    return Claim(
        "Ours: the recursion on whole Gram matrices is exact for masks and rotations at large width.",
        f"Rates of collapse are off by at most {max(collapse.values()):.3f} per block (standard error {error:.3f}), "
        f"gradient exponents by {max(gradient.values()):.3f} ({gradient_error:.3f}).",
        _scale(results),
        held,
        {"collapse": collapse, "gradient": gradient},
        rows=("C16",),
    )


def _without(results: list[Result]) -> Claim:
    collapse, error = gaps(results, "separation", assumed="no positions")
    others = {name: gap for name, gap in collapse.items() if name != "no positions"}
    text = ", ".join(f"{gap:.3f} ({name})" for name, gap in others.items())
    return Claim(
        "Published theories have no positions: tokens are exchangeable [Cowsik 2024, Giorlandino 2025].",
        f"Used for networks with positions, that theory misses the rate of collapse by {text} per block.",
        _scale(results),
        max(others.values()) < WITHIN + 3 * error,
        {"collapse": collapse},
        rows=("C16",),
    )


def _rope(results: list[Result]) -> Claim:
    (plain, plain_error), (rotated, error) = (
        rates(results, name, False) for name in ("no positions", "RoPE")
    )
    slower = rotated[-1] - plain[-1]
    scatter = float(np.hypot(plain_error[-1], error[-1]))
    strongest = _gains(results)[-1]
    return Claim(
        "Ours: with RoPE logits stay random at overlap 1, so that the score gain slows collapse; else it cannot.",
        f"At score gain {strongest:g} the rate is {rotated[-1]:.3f} with RoPE and {plain[-1]:.3f} without (difference "
        f"{slower:.3f} ± {scatter:.3f}); from the smallest gain to the largest it changes by "
        f"{rotated[-1] - rotated[0]:+.3f} with and {plain[-1] - plain[0]:+.3f} without.",
        _scale(results),
        bool(slower > 3 * scatter and slower > 0.01),
        {"rope": rotated.tolist(), "no_positions": plain.tolist(), "score_gains": _gains(results)},
        rows=("C16",),
    )


def draw(results: list[Result]) -> Figure:
    """Collapse through depth, its rate against the score gain, and gradients."""
    gain = _gains(results)[-1]
    panels = (_depth(results, gain), _rates(results), _profile(results, gain))
    title = "Positions change collapse and gradients: causal mask and RoPE (tanh, pre-norm, ordered phase)"
    return Sheet(title, panels, f"lines: theory; points: {_scale(results)}, bars: standard error").draw()


def _depth(results: list[Result], gain: float) -> Panel:
    curves = _pairs(results, gain, "separation")
    return Panel(f"tokens merge, score gain {gain:g}", "block", "1 − overlap", tuple(curves), log_y=True)


def _pairs(results: list[Result], gain: float, quantity: str) -> list[Curve]:
    curves = []
    for group, name in enumerate(VARIANTS):
        line = over_seeds(results, quantity, variant=name, gain=gain, theory=True)[0]
        mean, error = over_seeds(results, quantity, variant=name, gain=gain, theory=False)
        blocks = np.arange(len(line))
        curves += [Curve(name, blocks, line, group), Curve("_", blocks, mean, group, "points", error)]
    return curves


def _rates(results: list[Result]) -> Panel:
    curves, gains = [], np.array(_gains(results))
    for group, name in enumerate(VARIANTS):
        mean, error = rates(results, name, False)
        curves += [
            Curve(name, gains, rates(results, name, True)[0], group),
            Curve("_", gains, mean, group, "points", error),
        ]
    return Panel(
        "rate of collapse, second half of depth",
        "score gain",
        "log-rate of 1 − overlap per block",
        tuple(curves),
        legend=False,
    )


def _profile(results: list[Result], gain: float) -> Panel:
    curves = _pairs(results, gain, "token_gradient")
    return Panel(
        f"gradient, loss per token, score gain {gain:g}",
        "block",
        "log |g|², over the last",
        tuple(curves),
        legend=False,
    )
