"""Two failing runs and what saves them: SGD at 0.3 and Adam at 0.1 on retrieval, with controls.

Constant rates, 300 steps. Beside them Adam at 0.03, which works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.present import Sheet
from edgewise.study import Claim, Result

from .methods import VARIANTS, case_of
from .strips import strips
from .training import BATCH, trained

TOLERANCE = 0.003  # of the largest number in an entry; seeds scatter by 0.031 or more
FAILED, SAVED = 1.0, 0.1  # losses; a uniform guess is 2.77

RUNS = {"sgd": (0.3,), "adam": (0.1, 0.03)}
METHODS: tuple[tuple[str, float | None], ...] = (
    ("plain", None),
    ("trust", 0.02),
    ("trust", 0.05),
    ("trust", 0.2),
    ("clip", 0.3),
    ("clip", 1.0),
    ("qk_rate", 0.1),
    ("qk_norm", None),
    ("preconditioner", 0.02),
)


def cases(scale: str = "small") -> list[dict[str, Any]]:
    steps, seeds, methods = (300, 5, METHODS) if scale == "full" else (3, 1, METHODS[:3])
    return [
        case_of(("retrieval", base, variant), setting, rate, seed, steps, "constant")
        for seed in range(seeds)
        for base, rates in RUNS.items()
        for rate in rates
        for variant, setting in methods
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return trained(case)


def ends(results: Sequence[Result], base: str, rate: float) -> dict[tuple[str, float | None], np.ndarray]:
    """End losses of every method around one optimizer, seed by seed."""
    found: dict[tuple[str, float | None], dict[int, float]] = {}
    for c, value in ((r.case, r.value) for r in results):
        if (c["base"], c["rate"]) == (base, rate):
            found.setdefault((c["variant"], c["setting"]), {})[c["seed"]] = value["end"]
    return {key: np.array([losses[seed] for seed in sorted(losses)]) for key, losses in found.items()}


def name(variant: str, setting: float | None) -> str:
    return VARIANTS[variant] + ("" if setting is None else f" {setting:g}")


def claim(results: Sequence[Result]) -> Claim:
    runs = [_claim(results, base, rate) for base, rates in RUNS.items() for rate in rates]
    return Claim.all([*runs, _criterion(results)])


def _criterion(results: Sequence[Result]) -> Claim:
    """What `tune` found, asked of runs that it did not see."""
    moved = [r.value["change"][1] for r in results if r.case["variant"] == "plain"]
    factors: dict[float, list[float]] = {}
    for base, rate in ((base, rate) for base, rates in RUNS.items() for rate in rates):
        found = ends(results, base, rate)
        for delta in (0.02, 0.05):
            factors.setdefault(delta, []).extend((found["plain", None] / found["trust", delta]).tolist())
    words = [
        f"bound {d:g}: lower in {sum(f > 1 for f in fs)} of {len(fs)}, factors {min(fs):.2g} to {max(fs):.2g}, median "
        f"{np.median(fs):.2g}"
        for d, fs in factors.items()
    ]
    return Claim(
        "(tune.py) A plain run in which a step moves a head's logits by 1 or more is not harmed by a bound.",
        f"All {len(moved)} plain runs have such a step (the least of them {min(moved):.2g}). {'; '.join(words)}.",
        f"the same runs, {len({r.case['seed'] for r in results})} seeds",
        all(f > 0.9 for fs in factors.values() for f in fs) if len(moved) >= 6 else None,
        {f"factors_{d:g}": fs for d, fs in factors.items()},
    )


def _claim(results: Sequence[Result], base: str, rate: float) -> Claim:
    found = ends(results, base, rate)
    plain, seeds = found["plain", None], len(found["plain", None])
    words = "; ".join(
        f"{name(*k)} {np.median(e):.2g} ({e.min():.2g} to {e.max():.2g})" for k, e in found.items()
    )
    bound = np.concatenate([found["trust", 0.02], found["trust", 0.05]])
    saved = [name(*key) for key, e in found.items() if (e < SAVED).all()]
    fails = (base, rate) != ("adam", 0.03)
    asked = (
        "fails, and a bound of 0.02 or 0.05 logits per step makes it good"
        if fails
        else "works without a bound"
    )
    held = bool((plain > FAILED).all() and (bound < SAVED).all()) if fails else bool((plain < SAVED).all())
    return Claim(
        f"{base} at {rate:g}: {asked}.",
        f"Median end loss (range): {words}. Below {SAVED:g} in every seed: {', '.join(saved) or 'none'}.",
        f"retrieval, 2 blocks, width 32, {results[0].case['steps']} steps of {BATCH}, constant rate, {seeds} seeds",
        held if seeds >= 2 else None,
        {name(*key): float(np.median(e)) for key, e in found.items()},
    )


def draw(results: Sequence[Result]) -> Figure:
    """The end loss of every seed of every method, one panel per optimizer; dotted: a uniform guess."""
    panels = []
    for base, rate in [(base, rate) for base, rates in RUNS.items() for rate in rates]:
        rows = [
            (name(*method), list(VARIANTS).index(method[0]), losses)
            for method, losses in ends(results, base, rate).items()
        ]
        panels.append(strips(f"{base}, rate {rate:g}", rows, float(np.log(16))))
    seeds, steps = len({r.case["seed"] for r in results}), results[0].case["steps"]
    scale = f"retrieval, 2 blocks, width 32, {steps} steps of {BATCH}, constant rates, {seeds} seeds"
    return Sheet(
        "Which methods rescue runs that fail",
        tuple(panels),
        f"{scale}; dots: seeds, strokes: medians, dotted: chance",
    ).draw()
