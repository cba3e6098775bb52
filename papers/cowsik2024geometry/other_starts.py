"""Starts that are no simplex: unequal norms, Toeplitz correlations, clusters. Line or point, and what is remembered.

Theory for the norms in a pre-norm block: every token adds a branch of the same mean square, so differences of mean
squares fall by the square of the skips alone: (1 - a^2)(1 - m^2) per block in this paper's block, and not at all with
skips of one.

The end of a chaotic network, P*/Q*, is a property of the hyperparameters alone, as the talk answers: the same starts at
five settings. Fixed before the run: cosines at the end differ between starts by less than a quarter of what the two
phases differ by, errors included; and settings, not starts, make 99 % of the variance of the mean cosines.
A first run could not tell: gain 6 at attention 0.5 drifts towards 1 for 32 blocks, and four networks a point scatter by
a hundredth of that variance. Fixed before the second: the chaotic setting is gain 8 at 0.3, twelve networks a point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, seed_count, select

from .common import paper_block
from .streams import cosines, lengths, random_stack, tokens_of

TOLERANCE = 0.003  # of the largest number in an entry; seeds scatter by 0.032 or more
ATTENTION, MLP = 0.5, 0.4
PHASES = {"ordered": 0.5, "chaotic": 6.0}  # gain of the MLP's first matrix
STARTS = ("simplex", "Toeplitz", "two clusters", "unequal norms")
NARROW = 0.05  # of 1 - cosine: tokens are on a line
EQUAL = 0.9  # smallest over largest norm: a point
WITHIN = 0.03  # of ratios of norms between networks and theory, beside three standard errors
CHAOTIC = "gain 8, a 0.3"
QUARTER, MOST = 0.25, 0.99  # of the difference of the two phases; of the variance over settings and starts
SETTINGS = {"gain 4, a 0.3": (4.0, 0.3), "gain 8, a 0.3": (8.0, 0.3), "gain 16, a 0.3": (16.0, 0.3)}
SETTINGS |= {"gain 8, a 0.5": (8.0, 0.5), "gain 16, a 0.5": (16.0, 0.5)}


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = {"depth": 32, "tokens": 12, "width": 128} if full else {"depth": 8, "tokens": 8, "width": 48}
    kinds = [(phase, start, False) for phase in PHASES for start in STARTS] + [
        ("ordered", "unequal norms", True)
    ]
    kinds += [(name, start, False) for name in SETTINGS for start in STARTS] if full else []
    return [
        {"phase": phase, "start": start, "unit_skips": unit, "seed": seed, "size": size}
        for phase, start, unit in kinds
        for seed in range(12 if full else 1)
    ]


def gram(start: str, n: int) -> torch.Tensor:
    """The Gram matrix of a start; all have mean square one and a mean overlap near 0.3."""
    place = torch.arange(n, dtype=torch.float64)
    if start == "Toeplitz":
        return 0.75 ** (place - place[:, None]).abs()
    if start == "two clusters":
        return 0.05 + 0.55 * ((place < n / 2) == (place[:, None] < n / 2)) + 0.4 * torch.eye(n)
    flat = 0.3 + 0.7 * torch.eye(n, dtype=torch.float64)
    size = torch.linspace(0.4, 1.6, n, dtype=torch.float64) if start == "unequal norms" else torch.ones(n)
    return flat * size * size[:, None]


def knobs(case: dict[str, Any]) -> dict[str, Any]:
    gain, attention = SETTINGS.get(case["phase"]) or (PHASES[case["phase"]], ATTENTION)
    block = paper_block(attention, MLP, mlp_in_gain=gain, **case["size"])
    return block | ({"attention_skip": 1.0, "mlp_skip": 1.0} if case["unit_skips"] else {})


@torch.no_grad()
def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Per block: mean and spread of the cosines, and smallest over largest length."""
    start = tokens_of(gram(case["start"], case["size"]["tokens"]), case["size"]["width"], case["seed"])
    streams = [x[0] for x in random_stack(knobs(case), 100 + case["seed"]).streams(start)]
    each = [(cosines(x), lengths(x).sqrt()) for x in streams]
    found = {
        "cosine": rounded([float(c.mean()) for c, _ in each], 4),
        "spread": rounded([float(c.std()) for c, _ in each], 4),
    }
    if case["phase"] in SETTINGS:  # judged by its end alone
        return found
    return found | {
        "narrowest": rounded([float((1 - c).max()) for c, _ in each], 4),
        "ratio": rounded([float(s.min() / s.max()) for _, s in each], 4),
    }


def expected_ratio(case: dict[str, Any]) -> np.ndarray:
    """Smallest over largest norm by the skips alone, with the branches' mean square from the simplex theory."""
    network = edgewise.transformer(**knobs(case))
    squares = gram("unequal norms", network.tokens).diagonal().numpy()
    mean = edgewise.predict(network.replace(embedding_norm=float(squares.mean())), start_overlap=0.3).blocks(
        "norm"
    )
    kept = np.array([knobs(case)["attention_skip"] * knobs(case)["mlp_skip"]]) ** (2 * np.arange(len(mean)))
    low, high = (mean + kept * (end - squares.mean()) for end in (squares.min(), squares.max()))
    return np.asarray(np.sqrt(low / high))


def claim(results: list[Result]) -> Claim:
    last = [_of_settings(results)] if any(r.case["phase"] in SETTINGS for r in results) else []
    phases = _phases(results)
    return Claim.all([_line(phases), _norms(phases), _same_end(results if last else phases), *last])


def _phases(results: list[Result]) -> list[Result]:
    return [r for r in results if r.case["phase"] in PHASES]


def _scale(results: list[Result]) -> str:
    size = results[0].case["size"]
    return (
        f"n = {size['tokens']}, d = {size['width']}, {size['depth']} blocks, attention {ATTENTION:g}, MLP {MLP:g}, "
        f"{seed_count(results)} random networks"
    )


def _line(results: list[Result]) -> Claim:
    """Where the tokens are first on a line: are they also a point?"""
    at: dict[str, Any] = {}
    for name, unit in (("the paper's skips", False), ("skips of one", True)):
        angle, ratio = (
            over_seeds(results, key, phase="ordered", start="unequal norms", unit_skips=unit)[0]
            for key in ("narrowest", "ratio")
        )
        near = np.flatnonzero(angle < NARROW)
        first = int(near[0]) if len(near) else None
        at[name] = {
            "block": first,
            "ratio": None if first is None else float(ratio[first]),
            "last_angle": float(angle[-1]),
            "last_ratio": float(ratio[-1]),
        }
    paper, ones = at.values()
    said = (
        "never on a line"
        if paper["block"] is None
        else (
            f"on a line (1 - cosine below {NARROW:g} for every pair) after {paper['block']} blocks, the smallest norm "
            "then "
            f"{paper['ratio']:.2f} of the largest: a point"
        )
    )
    return Claim(
        "If the norms start off differently, the tokens collapse to a straight line and not to a point [talk].",
        f"From norms 0.4 to 1.6, in the paper's block: {said}. Its skips make the norms equal faster than the tokens "
        f"merge. With skips of one the norms keep their differences longer ({ones['last_ratio']:.2f} after the last "
        "block, "
        f"widest pair 1 - cosine = {ones['last_angle']:.2f}). Held: below {EQUAL:g} of the largest where the tokens "
        "are "
        "first on a line, in the paper's block.",
        _scale(results),
        None if paper["block"] is None else bool(paper["ratio"] < EQUAL),
        at,
        rows=("C22",),
    )


def _norms(results: list[Result]) -> Claim:
    gaps = []
    for unit in (False, True):
        rows = select(results, phase="ordered", start="unequal norms", unit_skips=unit)
        mean, error = over_seeds(rows, "ratio")
        gaps.append(np.abs(mean - expected_ratio(rows[0].case)) - 3 * np.sqrt(np.mean(error**2)))
    worst = float(np.max(gaps))
    return Claim(
        "(ours) Differences of mean squares fall by the square of the skips alone.",
        f"The ratio of smallest to largest norm is off by at most {worst:.3f} beyond three standard errors. Held: "
        "below "
        f"{WITHIN:g}.",
        _scale(results),
        worst < WITHIN if seed_count(results) > 1 else None,
        {"largest_gap": worst},
        rows=("C22",),
    )


def _apart(results: list[Result], phase: str, start: str) -> float:
    """Mean difference from the simplex at the end, and three standard errors; starts share their networks."""
    ends = {
        name: {
            r.case["seed"]: r.value["cosine"][-1]
            for r in select(results, phase=phase, start=name, unit_skips=False)
        }
        for name in (start, "simplex")
    }
    gaps = np.array([ends[start][seed] - ends["simplex"][seed] for seed in ends[start]])
    error = gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    return float(abs(gaps.mean()) + 3 * error)


def _same_end(results: list[Result]) -> Claim:
    ends: dict[str, Any] = {}
    ordered, chaotic = pair = ("ordered", CHAOTIC if seed_count(results) > 1 else "chaotic")
    for phase in pair:
        for start in STARTS:
            (mean, error), spread = (
                over_seeds(results, name, phase=phase, start=start, unit_skips=False)
                for name in ("cosine", "spread")
            )
            ends[f"{phase}, {start}"] = {
                "cosine": float(mean[-1]),
                "error": float(error[-1]),
                "spread": float(spread[0][-1] / max(spread[0][0], 1e-9)),
            }
    far = max(_apart(results, phase, start) for phase in pair for start in STARTS[1:])
    allowed = QUARTER * (ends[f"{ordered}, simplex"]["cosine"] - ends[f"{chaotic}, simplex"]["cosine"])
    words = "; ".join(
        f"{phase}: " + ", ".join(f"{s} {ends[f'{phase}, {s}']['cosine']:.3f}" for s in STARTS)
        for phase in pair
    )
    return Claim(
        "Question of the talk: do the assumptions about the start (a simplex, not a Toeplitz matrix) drive the "
        "results?",
        f"No: mean cosines after the last block are {words}. From the simplex they differ by at most {far:.3f}, "
        f"three standard errors of the pairs included. Held (the start does not matter): below {allowed:.3f}, a "
        "quarter of what the phases differ by.",
        _scale(results),
        bool(far < allowed) if seed_count(results) > 1 else None,
        ends | {"far": far, "allowed": allowed},
        rows=("C23",),
    )


def _ends(results: list[Result]) -> np.ndarray:
    """Mean cosine after the last block and its error, (settings, starts, 2)."""
    return np.array(
        [
            [[row[-1] for row in over_seeds(results, "cosine", phase=name, start=s)] for s in STARTS]
            for name in SETTINGS
        ]
    )


def _of_settings(results: list[Result]) -> Claim:
    ends = _ends(results)
    mean = ends[..., 0]
    share = float(mean.mean(1).var() / mean.var())
    apart = np.ptp(mean, axis=1)
    words = "; ".join(
        f"{name}: {row.min():.3f} to {row.max():.3f}" for name, row in zip(SETTINGS, mean, strict=True)
    )
    return Claim(
        "P* is a property of the hyperparameters only: the cosine that any simplex converges to [answer in the talk].",
        f"Mean cosine after the last block, over four kinds of start: {words}. Settings make {share:.2%} of the "
        f"variance; starts differ by at most {apart.max():.3f} (standard error {ends[..., 1].mean():.3f}). Held: "
        f"{MOST:.0%}.",
        _scale([r for r in results if r.case["phase"] in SETTINGS]).replace(
            "attention 0.5", "attention 0.3 or 0.5"
        ),
        share >= MOST,
        {"share": share, "cosines": mean.tolist()},
        rows=("C18", "C23"),
    )


def draw(results: list[Result]) -> Figure:
    last = (_settings(results),) if any(r.case["phase"] in SETTINGS for r in results) else ()
    results = _phases(results)
    panels = (*(_cosines(results, phase) for phase in PHASES), _ratios(results), *last)
    title = "Starts that are no simplex: the same cosines at the end"
    return Sheet(
        title, panels, f"{_scale(results)}; bars: standard error", columns=2 if last else None
    ).draw()


def _cosines(results: list[Result], phase: str) -> Panel:
    curves = []
    for group, start in enumerate(STARTS):
        mean, error = over_seeds(results, "cosine", phase=phase, start=start, unit_skips=False)
        curves.append(Curve(start, np.arange(len(mean)), mean, group, "orbit", error))
    return Panel(f"{phase} phase", "block", "mean cosine of two tokens", tuple(curves))


def _ratios(results: list[Result]) -> Panel:
    curves = []
    for group, unit in enumerate((False, True)):
        rows = select(results, phase="ordered", start="unequal norms", unit_skips=unit)
        mean, error = over_seeds(rows, "ratio")
        name = "skips of one" if unit else "skips √(1−a²)"
        curves += [
            Curve(name, np.arange(len(mean)), expected_ratio(rows[0].case), group),
            Curve("_", np.arange(len(mean)), mean, group, "points", error),
        ]
    return Panel("unequal norms, ordered phase", "block", "smallest norm over largest", tuple(curves))


def _settings(results: list[Result]) -> Panel:
    ends = _ends(results)
    x = np.arange(len(SETTINGS)) * 1.0
    curves = tuple(
        Curve(start, x + 0.08 * (k - 1.5), ends[:, k, 0], k, "points", ends[:, k, 1])
        for k, start in enumerate(STARTS)
    )
    return Panel(
        "the end by setting", "", "mean cosine after the last block", curves, x_names=tuple(SETTINGS)
    )
