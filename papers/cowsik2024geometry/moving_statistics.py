"""Chaos with stable statistics: norms and angles stand still while the positions of the tokens move chaotically.

One random network of many blocks, run twice from tokens that differ by a part in a million. A second part sends a
circle of inputs through the same blocks: its autocorrelation and its length, block by block.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, seed_count, select

from .common import paper_block
from .streams import cosines, lengths, random_stack, tokens_of

TOLERANCE = 0.002  # of the largest number in an entry; seeds scatter by 0.017 or more
ATTENTION, MLP = 0.4, 0.6
PHASES = {"ordered": 0.5, "chaotic": 6.0}  # gain of the MLP's first matrix
TINY = 1e-6  # relative size of the difference at the start
SETTLED = 36  # blocks after which norms and angles have settled
STILL, MOVED = (
    0.05,
    0.3,
)  # largest relative change of the statistics, smallest relative distance of the positions
SAMPLES = 36  # angles of the circle
NUDGE = 1e-5  # of an angle, for its speed: the attention of torch has no forward derivative
WITHIN = 0.02  # per block, of growth rates, beside three standard errors


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = {"depth": 64, "tokens": 12, "width": 128} if full else {"depth": 6, "tokens": 4, "width": 48}
    round_size = size | {"depth": 12 if full else 4, "tokens": 6 if full else 3}
    parts = [("pair", size), ("circle", round_size)]
    return [
        {"part": part, "phase": phase, "seed": seed, "size": s}
        for part, s in parts
        for phase in PHASES
        for seed in range(4 if full else 1)
    ]


def knobs(case: dict[str, Any]) -> dict[str, Any]:
    return paper_block(ATTENTION, MLP, mlp_in_gain=PHASES[case["phase"]], **case["size"])


@torch.no_grad()
def measure(case: dict[str, Any]) -> dict[str, Any]:
    stack = random_stack(knobs(case), 100 + case["seed"])
    return _pair(case, stack) if case["part"] == "pair" else _circle(case, stack)


def _pair(case: dict[str, Any], stack: Any) -> dict[str, Any]:
    """Per block: mean norm, mean cosine, and the distance between the two runs over the length of the tokens."""
    n, d = case["size"]["tokens"], case["size"]["width"]
    first = tokens_of(0.3 + 0.7 * torch.eye(n), d, case["seed"])
    other = first + TINY * torch.randn(
        first.shape, generator=torch.Generator().manual_seed(7), dtype=first.dtype
    )
    pairs = list(zip(stack.streams(first), stack.streams(other), strict=True))
    return {
        "norm": rounded([float(lengths(x[0]).mean()) for x, _ in pairs]),
        "cosine": rounded([float(cosines(x[0]).mean()) for x, _ in pairs]),
        "distance": rounded([float((x - y).norm() / x.norm()) for x, y in pairs]),
    }


def _circle(case: dict[str, Any], stack: Any) -> dict[str, Any]:
    """Per block, of every token's path as the whole sequence goes around: autocorrelation, and length over 2 pi."""
    n, d = case["size"]["tokens"], case["size"]["width"]
    generator = torch.Generator().manual_seed(case["seed"])
    cos, sin = (torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2))
    t = torch.arange(SAMPLES, dtype=torch.float64) * (2 * math.pi / SAMPLES)

    def position(angle: torch.Tensor) -> torch.Tensor:
        start = angle.cos()[:, None, None] * cos + angle.sin()[:, None, None] * sin
        return torch.stack(stack.streams(start))

    x, v = position(t), (position(t + NUDGE) - position(t - NUDGE)) / (2 * NUDGE)  # in double precision
    unit = x / x.norm(dim=-1, keepdim=True)
    auto = [[float((u * u.roll(-k, 0)).sum(-1).mean()) for k in range(SAMPLES // 2 + 1)] for u in unit]
    speed = v.norm(dim=-1).mean(dim=(1, 2)) / math.sqrt(d)
    return {"autocorrelation": rounded(auto, 4), "length": rounded(speed.tolist())}


def claim(results: list[Result]) -> Claim:
    return Claim.all([_statistics(results), _positions(results), _manifold(results)])


def _scale(results: list[Result], part: str) -> str:
    size = select(results, part=part)[0].case["size"]
    return (
        f"n = {size['tokens']}, d = {size['width']}, {size['depth']} blocks, attention {ATTENTION:g}, MLP {MLP:g}, "
        f"{seed_count(results)} random networks"
    )


def _statistics(results: list[Result]) -> Claim:
    rows = {name: over_seeds(results, name, part="pair", phase="chaotic")[0] for name in ("norm", "cosine")}
    drift, range_ = ({name: how(row[SETTLED:]) for name, row in rows.items()} for how in (_drift, _range))
    distance, _ = over_seeds(results, "distance", part="pair", phase="chaotic")
    return Claim(
        "The statistics of the evolution are stable, but the positions evolve chaotically and are sensitive to the "
        "initial conditions [talk].",
        f"From the first half of the blocks after {SETTLED} to the second the mean norm changes by "
        f"{drift['norm']:+.1%} and "
        f"the mean cosine by {drift['cosine']:+.1%} (single blocks scatter within {range_['norm']:.0%} and "
        f"{range_['cosine']:.0%}), while two runs that start {TINY:g} apart end {distance[-1]:.2f} of a token's "
        "length "
        f"apart. Held: changes below {STILL:.0%}, and a distance above {MOVED:g}.",
        _scale(results, "pair"),
        max(abs(d) for d in drift.values()) < STILL and distance[-1] > MOVED
        if len(distance) > SETTLED + 10
        else None,
        {"drift": drift, "range": range_, "distance": distance[-1]},
        rows=("C24",),
    )


def _drift(row: np.ndarray) -> float:
    """Relative change from the first half to the second."""
    half = len(row) // 2
    return float(row[half:].mean() / row[:half].mean() - 1) if half else math.nan


def _range(row: np.ndarray) -> float:
    return float(row.max() / row.min() - 1) if len(row) else math.nan


def growth(results: list[Result], phase: str) -> tuple[float, float]:
    """Growth of the distance per block while it is below 0.05, from block 2 on: mean and standard error over seeds."""
    rates = []
    for r in select(results, part="pair", phase=phase):
        row = np.log(r.value["distance"])
        end = int(np.argmax(row > math.log(0.05))) or len(row)
        if end > 4:
            rates.append((row[end - 1] - row[2]) / (end - 3))
    return float(np.mean(rates)), float(np.std(rates, ddof=1) / math.sqrt(len(rates))) if len(
        rates
    ) > 1 else math.nan


def _positions(results: list[Result]) -> Claim:
    found = {phase: growth(results, phase) for phase in PHASES}
    words = ", ".join(f"{phase} {rate:+.3f} ± {error:.3f}" for phase, (rate, error) in found.items())
    decided = all(math.isfinite(error) for _, error in found.values())
    return Claim(
        "If the particles are close to each other they diverge in the chaotic phase, and merge in the ordered one "
        "[talk]; read as: "
        "also two copies of the whole sequence.",
        f"Log-growth of the distance per block: {words}. Held: the signs, by more than three standard errors. In the "
        "ordered phase "
        "tokens merge with each other and copies do not: their common part is neutral, as a pooled gradient is.",
        _scale(results, "pair"),
        found["chaotic"][0] > 3 * found["chaotic"][1] and found["ordered"][0] < -3 * found["ordered"][1]
        if decided
        else None,
        found,
        rows=("C24",),
    )


def _manifold(results: list[Result]) -> Claim:
    found = {}
    for phase in PHASES:
        rows = np.log([r.value["length"] for r in select(results, part="circle", phase=phase)])
        half = rows.shape[1] // 2
        rates = (rows[:, -1] - rows[:, half]) / (rows.shape[1] - 1 - half)
        error = float(rates.std(ddof=1) / math.sqrt(len(rates))) if len(rates) > 1 else math.nan
        found[phase] = (float(rates.mean()), error)
    auto = {phase: over_seeds(results, "autocorrelation", part="circle", phase=phase)[0] for phase in PHASES}
    widths = {phase: [_width(row[0]), _width(row[-1])] for phase, row in auto.items()}
    words = "; ".join(
        f"{p}: length {rate:+.3f} ± {error:.3f} per block, half-width of the autocorrelation {widths[p][0]:.0f}° to "
        f"{widths[p][1]:.0f}°"
        for p, (rate, error) in found.items()
    )
    decided = all(math.isfinite(error) for _, error in found.values())
    chaotic = found["chaotic"]
    return Claim(
        "Question of the talk: does a manifold become space filling in transformers too? (It should; not looked at.)",
        f"Logarithm of a circle's length: {words}. Held: in the chaotic phase it grows by more than three standard "
        "errors "
        "per block and the autocorrelation becomes narrower.",
        _scale(results, "circle"),
        chaotic[0] > 3 * chaotic[1] and widths["chaotic"][1] < widths["chaotic"][0] if decided else None,
        {"growth": found, "half_width": widths},
        rows=("C25",),
    )


def _width(row: np.ndarray) -> float:
    """Degrees at which the autocorrelation has fallen to half; 60 for a circle."""
    return float(np.interp(-0.5, -row, np.degrees(2 * math.pi / SAMPLES * np.arange(len(row)))))


def draw(results: list[Result]) -> Figure:
    panels = (_still(results), _apart(results), _correlation(results), _length(results))
    title = "Norms and angles stand still while positions move; a circle of inputs stretches"
    circle = select(results, part="circle")[0].case["size"]
    foot = f"{_scale(results, 'pair')}; C, D: n = {circle['tokens']}, {circle['depth']} blocks"
    return Sheet(title, panels, foot, columns=2).draw()


def _still(results: list[Result]) -> Panel:
    curves = []
    for group, name in enumerate(("norm", "cosine")):
        mean, error = over_seeds(results, name, part="pair", phase="chaotic")
        curves.append(Curve(f"mean {name}", np.arange(len(mean)), mean, group, "orbit", error))
    return Panel("A  statistics, chaotic phase", "block", "mean over tokens and pairs", tuple(curves))


def _apart(results: list[Result]) -> Panel:
    curves = []
    for group, phase in enumerate(PHASES):
        for place, r in enumerate(select(results, part="pair", phase=phase)):
            row = np.array(r.value["distance"])
            curves.append(Curve(phase if place == 0 else "_", np.arange(len(row)), row, group, "second"))
    label = "distance over a token's length"
    return Panel("B  two runs that start 1e-6 apart", "block", label, tuple(curves), log_y=True)


def _correlation(results: list[Result]) -> Panel:
    mean, _ = over_seeds(results, "autocorrelation", part="circle", phase="chaotic")
    x = np.degrees(2 * math.pi / SAMPLES * np.arange(mean.shape[1]))
    blocks = np.linspace(0, len(mean) - 1, 4).astype(int)
    curves = tuple(Curve(f"block {b}", x, mean[b], group, "orbit") for group, b in enumerate(blocks))
    return Panel(
        "C  autocorrelation of the circle, chaotic", "angle Δθ (degrees)", "mean cosine at that angle", curves
    )


def _length(results: list[Result]) -> Panel:
    curves = []
    for group, phase in enumerate(PHASES):
        mean, error = over_seeds(results, "length", part="circle", phase=phase)
        curves.append(Curve(phase, np.arange(len(mean)), mean, group, "orbit", error))
    return Panel("D  length of the circle", "block", "length / (2π √d)", tuple(curves), log_y=True)
