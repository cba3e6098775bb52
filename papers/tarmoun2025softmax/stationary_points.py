"""Stationary points of the rows: on the boundary, where the Jacobian loses rank, and for data far from orthogonal.

Every face of the simplex on which a strictly convex loss has its smallest value inside has a stationary point of
x' = -J(x)^2 grad l(x). Fixed before the run: in every problem one of all these points is a KKT point, and flows that
start beside the others leave them. The fitness of the replicator equation is -J grad l: it vanishes at all of them, so
that what the theory of games says of fitness says nothing of the loss. Last, keys with fewer coordinates than the rows
have together: the prompt comes to rest where the rows are no KKT points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from edgewise.laboratory.descent import flow
from edgewise.laboratory.prompt_attention import PromptAttention
from edgewise.laboratory.replicator import (
    coherence,
    decoupled,
    follow,
    judge_point,
    output_slope,
    prompt_flow,
)
from edgewise.present import Curve, Panel, Sheet
from edgewise.softmax_jacobian import product
from edgewise.study import Claim, Result, rounded, select

from .common import distinct

TOLERANCE = 0.01  # of the largest number in an entry
BESIDE, LATE = 0.01, 1e4  # share of the uniform row that a flow starts with, and when it is looked at
LEFT, STAYED = 5.0, 1.0  # distance over the first one
ZERO = 1e-10  # of a fitness, in the size of the gradient
SHARES = (2.0, 1.25, 0.75, 0.5, 0.25)  # coordinates of the keys over N (n - 1)
KKT, APART = 1e-3, 0.05  # what is left of |J grad l| of a row: at rest, and not at rest


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    sizes, seeds = ((3, 4, 5), 8) if full else ((3,), 2)
    faces = [{"kind": "faces", "tokens": n, "seed": seed} for n in sizes for seed in range(seeds)]
    size = {"samples": 4, "tokens": 4} if full else {"samples": 2, "tokens": 3}
    return faces + [
        {"kind": "keys", **size, "share": share, "seed": seed}
        for share in (SHARES if full else SHARES[1::2])
        for seed in range(6 if full else 1)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return _faces(case) if case["kind"] == "faces" else _keys(case)


def face_point(hessian: Tensor, centre: Tensor, support: Sequence[int]) -> Tensor | None:
    """The stationary point of (x - c)^T H (x - c) / 2 inside a face; None if the smallest value is not inside."""
    inside, count = list(support), len(support)
    system = torch.zeros(count + 1, count + 1, dtype=torch.float64)
    system[:count, :count] = hessian[inside][:, inside]
    system[:count, count], system[count, :count] = -1.0, 1.0  # minus the multiplier; the sum is one
    right = torch.cat([(hessian @ centre)[inside], torch.ones(1, dtype=torch.float64)])
    found = torch.linalg.solve(system, right)[:count]
    if bool((found <= 1e-6).any()):
        return None
    x = torch.zeros(len(centre), dtype=torch.float64)
    x[inside] = found / found.sum()
    return x


def _faces(case: dict[str, Any]) -> dict[str, Any]:
    """Every stationary point: whether it is a KKT point, its fitness, and how far a flow from beside it goes."""
    n, generator = case["tokens"], torch.Generator().manual_seed(case["seed"])
    A = torch.randn(n, n, generator=generator, dtype=torch.float64)
    H = A.T @ A + torch.eye(n, dtype=torch.float64)
    c = 1.5 * torch.softmax(
        2 * torch.randn(n, generator=generator, dtype=torch.float64), -1
    )  # not on the simplex
    found: dict[str, list[Any]] = {
        name: [] for name in ("support", "kkt", "gap", "fitness", "plain", "rank", "moved")
    }
    for support in chain.from_iterable(combinations(range(n), k) for k in range(1, n + 1)):
        x = face_point(H, c, support)
        if x is None:
            continue
        slope = H @ (x - c)
        judged, size = judge_point(x, slope, H), float(slope.abs().amax())
        fitness, mean = product(x, slope), float((x * slope).sum())
        found["support"].append(len(support))
        found["kkt"].append(judged.kkt)
        found["gap"].append(float(judged.gaps.min()) / size if len(judged.gaps) else 0.0)
        found["fitness"].append(float(fitness.abs().amax()) / size)
        found["plain"].append(float((mean - slope).amax()) / size)  # best entry under the fitness -grad l
        found["rank"].append(int(torch.linalg.matrix_rank(torch.diag(x) - torch.outer(x, x), rtol=1e-10)))
        start = (1 - BESIDE) * x + BESIDE / n
        end = follow(lambda y: (y - c) @ H, start, [LATE]).exp()[0]
        found["moved"].append(float((end - x).norm() / max(float((start - x).norm()), 1e-9)))
    return {name: rounded(values, 5) if name == "moved" else values for name, values in found.items()}


def _keys(case: dict[str, Any]) -> dict[str, Any]:
    """The prompt's flow on random keys: what is left of the loss, of its gradient, and of |J grad l| row by row."""
    N, n, generator = case["samples"], case["tokens"], torch.Generator().manual_seed(case["seed"])
    d = round(case["share"] * N * (n - 1))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    keys, X, V = normal(N, n, d) / d**0.5, normal(N, n, n), normal(n, n)
    wanted = torch.softmax(normal(N, n), -1)  # each row alone can be learned exactly
    model = PromptAttention(X, keys, torch.einsum("ijd,ij->id", X, wanted) @ V)
    slope, p, kappa = output_slope(model, V), torch.zeros(d, dtype=torch.float64), coherence(keys).scale
    end = flow(lambda q: -model.gradients(q, V)[0], p, [LATE])[-1]
    start, rows = model.log_rows(p).exp(), model.log_rows(end).exp()
    first, last = (product(s, slope(s)).norm(dim=-1) for s in (start, rows))
    early = [0.5 / kappa]
    apart = (flow(decoupled(slope, kappa), start, early) - prompt_flow(model, V, p, early)).abs().amax()
    gradients = [model.gradients(q, V)[0].norm() for q in (p, end)]
    return {
        "deviation": float(coherence(keys).deviation),
        "apart": float(apart),
        "row": float((last / first).median()),
        "prompt": float(gradients[1] / gradients[0]),
    }


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_boundary(results), _rank(results), _far(results)])


def _points(results: Sequence[Result], name: str) -> list[Any]:
    return [value for r in select(results, kind="faces") for value in r.value[name]]


def _scale(results: Sequence[Result]) -> str:
    runs = select(results, kind="faces")
    sizes = ", ".join(map(str, distinct(runs, "tokens")))
    return f"{len(runs)} strictly convex quadratic losses, n = {sizes}, every face, t = {LATE:g}"


def _boundary(results: Sequence[Result]) -> Claim:
    kkt, moved = np.array(_points(results, "kkt")), np.array(_points(results, "moved"))
    inside = np.array(
        [size == r.case["tokens"] for r in select(results, kind="faces") for size in r.value["support"]]
    )
    one = all(sum(r.value["kkt"]) == 1 for r in select(results, kind="faces"))
    left, stayed = float(np.mean(moved[~kkt] > LEFT)), float(np.mean(moved[kkt] < STAYED))
    return Claim(
        "An interior stationary point is a KKT point of the loss on the simplex; this is not true on the boundary "
        "[talk].",
        f"{len(kkt)} stationary points: {int(inside.sum())} interior, {int(kkt[inside].sum())} of them KKT points; "
        f"{int((~inside).sum())} on the boundary, {int(kkt[~inside].sum())} of them KKT points. Flows from beside them "
        f"go away from {left:.0%} of those that are not (at least {LEFT:g} times as far), and stay at {stayed:.0%} of "
        "those that are. Held: one KKT point in every problem, all interior points among them, and at least 95 % of "
        "both kinds of flows.",
        _scale(results),
        bool(one and kkt[inside].all() and not kkt[~inside].all() and min(left, stayed) >= 0.95)
        if len(kkt) > 50
        else None,
        {"points": len(kkt), "boundary": int((~inside).sum()), "left": left, "stayed": stayed},
        rows=("A26",),
    )


def _rank(results: Sequence[Result]) -> Claim:
    kkt = np.array(_points(results, "kkt"))
    fitness, plain = np.array(_points(results, "fitness")), np.array(_points(results, "plain"))
    rank, size = np.array(_points(results, "rank")), np.array(_points(results, "support"))
    nash, once = fitness < ZERO, plain < ZERO
    return Claim(
        "Results on replicator equations cannot be applied directly: J is rank deficient, so they do not become "
        "conditions on the loss [talk]; read as: what games say of a fitness (no entry is better than the mean) is "
        "true of stationary points that are no KKT points.",
        f"J has rank |S| - 1 at {np.mean(rank == size - 1):.0%} of the points. Under the fitness -J grad l no entry is "
        f"better at {nash.mean():.0%} of them, of which {np.mean(kkt[nash]):.0%} are KKT points; under -grad l (one J, "
        f"the natural gradient) at {once.mean():.0%}, which are the KKT points in {np.mean(once == kkt):.0%}. Held: "
        "all, less than all, and exactly the KKT points.",
        _scale(results),
        bool((rank == size - 1).all() and nash.all() and not kkt.all() and (once == kkt).all()),
        {"no_better_entry": float(nash.mean()), "kkt": float(kkt.mean())},
        rows=("A25", "A26"),
    )


def _far(results: Sequence[Result]) -> Claim:
    runs = select(results, kind="keys")
    found = {
        f"{share:g}": {
            name: float(np.median([r.value[name] for r in select(runs, share=share)]))
            for name in ("row", "prompt", "apart", "deviation")
        }
        for share in distinct(runs, "share")
    }
    enough = [values["row"] for share, values in found.items() if float(share) >= 1]
    few = [values for share, values in found.items() if float(share) <= 0.5]
    said = ", ".join(f"{values['row']:.1g} at {share}" for share, values in found.items())
    rest = max(values["prompt"] for values in found.values())
    case, seeds = runs[0].case, len({r.case["seed"] for r in runs})
    return Claim(
        "If the data is not close to orthogonal the dynamics would look very different; the same conclusions cannot be "
        "drawn [talk].",
        f"Share of |J grad l| of a row that is left when the prompt rests (its own gradient: at most {rest:.0e}), by "
        f"coordinates over N (n - 1), medians: {said}. The decoupled rows are off by "
        f"{max(v['apart'] for v in found.values()):.2g} by then at the worst. Held: below {KKT:g} with enough "
        f"coordinates, above {APART:g} with half of them and less: the rows rest where they are no KKT points.",
        f"N = {case['samples']}, n = {case['tokens']}, random keys, {seeds} seeds, t = {LATE:g}",
        bool(max(enough) < KKT and min(v["row"] for v in few) > APART) if seeds > 3 else None,
        found,
        rows=("A22", "A23"),
    )


def draw(results: Sequence[Result]) -> Figure:
    kkt, gap, moved = (np.array(_points(results, name)) for name in ("kkt", "gap", "moved"))
    left = tuple(
        Curve(name, gap[chosen], np.maximum(moved[chosen], 1e-3), group, "points")
        for group, (name, chosen) in enumerate((("no KKT point", ~kkt), ("KKT point", kkt)))
    )
    fitness, plain = (np.array(_points(results, name)) for name in ("fitness", "plain"))
    middle = (
        Curve("-J grad l", gap, fitness, 0, "points"),
        Curve("-grad l", gap, np.maximum(plain, 0.0), 1, "hollow"),
    )
    runs = select(results, kind="keys")
    shares = distinct(runs, "share")
    right = []
    for group, (name, label) in enumerate((("row", "rows, |J grad l|"), ("prompt", "prompt's gradient"))):
        median = [np.median([r.value[name] for r in select(runs, share=s)]) for s in shares]
        right.append(Curve(label, np.array(shares), np.maximum(median, 1e-12), group, "orbit"))
    return Sheet(
        "Where attention rows come to rest",
        (
            Panel(
                "flows that start beside a stationary point",
                "least gap of a missing entry (negative: it would lower the loss)",
                "distance at the end over the first one",
                left,
                log_y=True,
            ),
            Panel(
                "fitness of the best entry",
                "least gap of a missing entry",
                "over the size of the gradient",
                middle,
            ),
            Panel(
                "random keys: what is left at the end",
                "coordinates of the keys / N (n - 1)",
                "share of the start",
                tuple(right),
                log_y=True,
            ),
        ),
        _scale(results),
    ).draw()
