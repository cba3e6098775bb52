"""Attention rows as a replicator equation: trajectories on the simplex, slow sparsity, and when rows decouple.

The softmax of the flow on the prompt against the replicator flow; missing entries against their 1/t law; the decoupled
form against keys that are almost, but not quite, orthogonal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.laboratory.descent import flow
from edgewise.laboratory.prompt_attention import PromptAttention
from edgewise.laboratory.replicator import (
    Standing,
    Stationary,
    coherence,
    coupled,
    decoupled,
    follow,
    judge_point,
    missing_entries,
    orthogonal_keys,
    output_slope,
    prompt_flow,
)
from edgewise.present import Curve, Marker, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, select

TOLERANCE = 0.008  # of the largest number in an entry; seeds scatter by 0.076 or more
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])
TARGETS = {"interior": [0.6, 0.3, 0.1], "edge": [0.7, 0.3, 0.0]}
STARTS = ([1 / 3, 1 / 3, 1 / 3], [0.05, 0.05, 0.9], [0.05, 0.9, 0.05], [0.94, 0.03, 0.03], [0.1, 0.3, 0.6])
FACES = ((2, 1), (4, 2), (5, 3), (5, 2))
MIXINGS = (0.0, 0.01, 0.03, 0.1, 0.3)


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    starts, pairs, decades = (STARTS, FACES, 5) if full else (STARTS[:2], FACES[:2], 4)
    simplex = [
        {"kind": "simplex", "target": target, "start": start, "squared": squared}
        for target in TARGETS
        for start in starts
        for squared in (True, False)
    ]
    faces = [{"kind": "face", "tokens": n, "support": face, "decades": decades} for n, face in pairs]
    samples, tokens, seeds = (6, 5, 6) if full else (2, 3, 1)
    mixed = [
        {"kind": "mixed", "samples": samples, "tokens": tokens, "mixing": m, "seed": seed}
        for m in MIXINGS
        for seed in range(seeds)
    ]
    return simplex + faces + mixed


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return {"simplex": _trajectory, "face": _face, "mixed": _mixed}[case["kind"]](case)


def _trajectory(case: dict[str, Any]) -> dict[str, Any]:
    """x(t) for l = 2 |x - c|^2 (interior), or with a gradient that keeps one entry out (edge)."""
    c = torch.tensor(TARGETS[case["target"]], dtype=torch.float64)
    out = torch.where(c > 0, 0.0, 0.5)
    times = np.concatenate([np.geomspace(0.01, 1000, 90)]).tolist()
    x = follow(
        lambda x: 4 * (x - c) + out, torch.tensor(case["start"]).double(), times, squared=case["squared"]
    ).exp()
    return {
        "times": rounded(times),
        "rows": rounded(x.tolist()),
        "distance": rounded((x - c).norm(dim=-1).tolist()),
    }


def _face(case: dict[str, Any]) -> dict[str, Any]:
    """x_k over its law, and the same entry under the natural gradient, for the first missing entry."""
    n, face = case["tokens"], case["support"]
    centre = torch.cat([torch.full((face,), 1 / face), torch.zeros(n - face)]).double()
    gaps = torch.cat([torch.zeros(face), 1.0 + torch.arange(n - face)]).double()
    start = torch.softmax(torch.linspace(0, 0.3, n, dtype=torch.float64), -1)
    times = np.geomspace(1, 10.0 ** case["decades"], 40).tolist()

    def slope(x: torch.Tensor) -> torch.Tensor:
        return 4 * torch.where(centre > 0, x - centre, 0.0) + gaps

    rows = follow(slope, start, times).exp()
    law = torch.stack([missing_entries(centre, gaps, t) for t in times])
    short = [t for t in times if t < 40]
    natural = follow(slope, start, short, squared=False).exp()
    ratio = (rows / law)[:, face:]
    return {
        "times": rounded(times),
        "entry": rounded(rows[:, face].tolist()),
        "natural": rounded(natural[:, face].tolist()),
        "ratio": rounded(ratio.tolist()),
    }


def _mixed(case: dict[str, Any]) -> dict[str, Any]:
    """Largest difference of the rows from those of the prompt's own flow, coupled and decoupled, up to t = 3."""
    keys = orthogonal_keys(case["samples"], case["tokens"], 1.0, case["mixing"], case["seed"])
    generator = torch.Generator().manual_seed(case["seed"])
    X = torch.randn(case["samples"], case["tokens"], 4, generator=generator, dtype=torch.float64)
    V, Y = (
        torch.randn(*size, generator=generator, dtype=torch.float64)
        for size in ((4, 3), (case["samples"], 3))
    )
    model, found = PromptAttention(X, keys, Y), coherence(keys)
    p, times = torch.zeros(keys.shape[-1], dtype=torch.float64), [0.3, 1.0, 3.0]
    truth, slope, start = prompt_flow(model, V, p, times), output_slope(model, V), model.log_rows(p).exp()
    errors = [
        float((flow(field, start, times) - truth).abs().max())
        for field in (coupled(keys, slope), decoupled(slope, found.scale))
    ]
    return {
        "coupled": errors[0],
        "decoupled": errors[1],
        "deviation": found.deviation,
        "cosine": found.largest_entry,
    }


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_replicates(results), _decouples(results), _kkt(results), _algebraic(results)])


def _replicates(results: Sequence[Result]) -> Claim:
    worst = max(r.value["coupled"] for r in select(results, kind="mixed"))
    return Claim(
        "Under gradient flow on the prompt the attention rows follow a replicator equation.",
        f"The coupled form agrees with the softmax of the prompt's flow to {worst:.0e}, for any keys.",
        _scale(results),
        worst < 1e-6,
        {"largest_difference": worst},
        rows=("A16", "A17", "A21", "A25"),
    )


def _decouples(results: Sequence[Result]) -> Claim:
    found = {
        m: (
            float(over_seeds(results, "decoupled", kind="mixed", mixing=m)[0]),
            float(over_seeds(results, "deviation", kind="mixed", mixing=m)[0]),
        )
        for m in MIXINGS
    }
    said = ", ".join(f"{error:.1g} at deviation {deviation:.2g}" for error, deviation in found.values())
    return Claim(
        "The rows decouple, x' = -kappa J(x)^2 grad l(x) each, for almost orthogonal keys.",
        f"Exact for orthogonal keys only (which needs d >= N n): rows are off by {said}.",
        _scale(results),
        found[0.03][0] < 0.01,
        {f"{m:g}": list(pair) for m, pair in found.items()},
        rows=("A22", "A23"),
    )


def _kkt(results: Sequence[Result]) -> Claim:
    flows = select(results, kind="simplex", target="interior", squared=True)
    ends = [r.value["distance"][-1] for r in flows]
    stable = sum(_end(r).standing is Standing.STABLE for r in flows)
    return Claim(
        "Interior stationary points are the KKT points of the loss on the simplex.",
        f"Flows from {len(ends)} starts end within {max(ends):.0e} of the minimum; {stable} of the "
        "ends are judged stable KKT points.",
        _scale(results),
        max(ends) < 1e-4 and stable == len(ends),
        {"distance": max(ends)},
        rows=("A24", "A26", "A27"),
    )


def _end(result: Result) -> Stationary:
    """The last row of a flow to the interior minimum, judged; a constant in the gradient is invisible."""
    row, c = (torch.tensor(x, dtype=torch.float64) for x in (result.value["rows"][-1], TARGETS["interior"]))
    x = row / row.sum()  # rows are recorded with six digits
    return judge_point(x, 4 * (x - c) + 1, 4 * torch.eye(3, dtype=torch.float64), tolerance=1e-4)


def _algebraic(results: Sequence[Result]) -> Claim:
    faces = select(results, kind="face")
    last = {f"n = {r.case['tokens']}, |S| = {r.case['support']}": r.value["ratio"][-1] for r in faces}
    gone = max(r.value["natural"][-1] for r in faces)
    off = max(abs(value - 1) for ratios in last.values() for value in ratios)
    return Claim(
        "(ours) Missing entries die like |S| / (kappa n gap t): sparsity is approached algebraically.",
        f"At the last time the entries over their law are within {off:.1%} of one; under the natural gradient they "
        "are "
        f"at {gone:.0e} before t = 40.",
        _scale(results),
        off < 0.05,
        {"ratios": last, "natural": gone},
        rows=("A15",),
    )


def _scale(results: Sequence[Result]) -> str:
    case = select(results, kind="mixed")[0].case
    seeds = len({r.case["seed"] for r in select(results, kind="mixed")})
    mixed = f"N = {case['samples']}, n = {case['tokens']}, {seeds} seeds for keys"
    return f"n = 3 on the simplex; faces n = 2 to 5; {mixed}"


def draw(results: Sequence[Result]) -> Figure:
    panels = [_simplex(results, target, squared) for target in TARGETS for squared in (True, False)]
    return Sheet(
        "Softmax rows under gradient flow",
        (*panels, _law(results), _errors(results)),
        _scale(results),
        columns=2,
    ).draw()


def _simplex(results: Sequence[Result], target: str, squared: bool) -> Panel:
    outline = np.vstack([CORNERS, CORNERS[:1]])
    curves = [Curve("_", outline[:, 0], outline[:, 1], 6, "third")]
    for i, r in enumerate(select(results, kind="simplex", target=target, squared=squared)):
        path = np.vstack([np.array(r.case["start"]) @ CORNERS, np.array(r.value["rows"]) @ CORNERS])
        curves.append(Curve("_", path[:, 0], path[:, 1], i))
        times = np.array(r.value["times"])
        marks = path[1:][[int(np.argmin(np.abs(np.log(times / t)))) for t in (1, 10, 100)]]
        curves.append(Curve("_", marks[:, 0], marks[:, 1], i, "points"))
    goal = np.array(TARGETS[target]) @ CORNERS
    name = "gradient flow, x' = -J² grad" if squared else "natural, x' = -J grad"
    return Panel(
        f"{name}, {target} minimum",
        "corners: all weight on one token",
        "",
        tuple(curves),
        "dots: time 1, 10 and 100; star: the minimum",
        legend=False,
        markers=(Marker("minimum", float(goal[0]), float(goal[1])),),
    )


def _law(results: Sequence[Result]) -> Panel:
    curves = []
    for group, r in enumerate(select(results, kind="face")):
        times = np.array(r.value["times"])
        name = f"n = {r.case['tokens']}, |S| = {r.case['support']}"
        curves.append(Curve(name, times, np.array(r.value["entry"]), group))
        law = r.case["support"] / (r.case["tokens"] * times)
        curves.append(Curve("law" if group == 0 else "_", times, law, group, "third"))
    first = select(results, kind="face")[0].value
    alive = [(t, x) for t, x in zip(first["times"], first["natural"], strict=False) if x > 1e-12]
    curves.append(Curve("natural gradient", *np.array(alive).T, group=5))
    return Panel(
        "a missing entry dies like 1/t", "time", "weight of the entry", tuple(curves), log_x=True, log_y=True
    )


def _errors(results: Sequence[Result]) -> Panel:
    mixed = [r for r in select(results, kind="mixed") if r.case["mixing"] > 0]
    x = np.log10(
        [r.value["deviation"] for r in mixed]
    )  # less than two decades: a logarithmic axis would be crowded
    curves = [
        Curve(name, x, np.maximum([r.value[name] for r in mixed], 1e-12), group, "points")
        for group, name in enumerate(("coupled", "decoupled"))
    ]
    return Panel(
        "error of the rows at t <= 3",
        "log10 of the keys' deviation from orthogonal",
        "largest difference",
        tuple(curves),
        log_y=True,
    )
