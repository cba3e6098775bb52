"""A matrix prompt and several heads: block-diagonal Jacobians, and heads that do or do not feel each other.

Asked in the talk: the softmax goes by rows; heads decouple or interact [Tarmoun 2025]. `flow`: the rows of all heads
under gradient flow against each head by itself, over the angle between the heads' values. `descent`: teachers of flat
and of sharp attention, values frozen, best of five steps; what counts as slower (three times) was fixed beforehand. The
same was fixed before it was run again at the talk's size, N = 100, n = d = 20, ratio 1e25, 3,000 steps, fresh seeds
(the record before had N = 40, n = d = 8, ratio 1e8 and 200 steps).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from edgewise.laboratory.descent import flow
from edgewise.laboratory.prompt_attention import teacher_student
from edgewise.laboratory.replicator import prompt_flow
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, rounded, select
from edgewise.study.train import Stack, descend_stack

from .common import below, decided, finals, seeds_of, thinned
from .prompt_heads import PromptHeads, block_jacobian, interaction

TOLERANCE = 0.009  # of the largest number in an entry; seeds scatter by 0.087 or more
SHARED = (0.0, 0.1, 0.3, 1.0)  # how much of one head's output the others write to as well
HEADS, RATIOS, GRID = (1, 2, 4), (10.0, 1e25), (0.1, 0.3, 1.0, 3.0, 10.0)
SLOWER, LONG = 3.0, 3000


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    seeds, steps = (range(20, 29), LONG) if full else (range(20, 21), 3)
    size = dict(samples=100, tokens=20, width=20) if full else dict(samples=6, tokens=4, width=4)
    flows = [
        {"kind": "flow", "heads": 3, "samples": 5, "tokens": 4, "width": 6, "shared": c, "seed": seed}
        for c in SHARED
        for seed in seeds
    ]
    return flows + [
        size | {"kind": "descent", "heads": h, "ratio": ratio, "shared": c, "steps": steps, "seed": seed}
        for h in HEADS
        for ratio in RATIOS
        for c in (0.0, 1.0)
        for seed in seeds
        if h > 1 or c == 0
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return {"flow": _flow, "descent": _descent}[case["kind"]](case)


def _problem(case: dict[str, Any], ratio: float) -> tuple[PromptHeads, Tensor, Tensor, Tensor]:
    """Heads over the same tokens, each with keys and a teacher of its own; start, teacher and values of all.

    Head h writes to output h, and with weight `shared` to all others: V_h = v_h (e_h + shared rest).
    """
    H = case["heads"]
    made = [
        teacher_student(case["samples"], case["tokens"], case["width"], ratio, 100 * case["seed"] + h)
        for h in range(H)
    ]
    keys = torch.stack([made[0].model.tokens @ _matrix(pair.model.tokens, pair.model.keys) for pair in made])
    mixing = torch.eye(H, dtype=torch.float64) + case["shared"] * (1 - torch.eye(H, dtype=torch.float64))
    V = torch.einsum("hd,ho->hdo", torch.stack([pair.teacher_value[:, 0] for pair in made]), mixing)
    teacher = torch.stack([pair.teacher_prompt for pair in made])
    bare = PromptHeads(made[0].model.tokens, keys, torch.zeros(case["samples"], H, dtype=torch.float64))
    model = PromptHeads(bare.tokens, keys, bare.predictions(teacher, V))
    return model, torch.stack([pair.prompt for pair in made]), teacher, V


def _matrix(tokens: Tensor, keys: Tensor) -> Tensor:
    """W with K = X W."""
    return torch.linalg.lstsq(tokens.flatten(0, 1), keys.flatten(0, 1)).solution


def _flow(case: dict[str, Any]) -> dict[str, Any]:
    """All heads together against each alone with its own share of the targets, to t = 1; and the Jacobian's blocks."""
    model, P, teacher, V = _problem(case, 10.0)
    times = [0.1, 0.3, 1.0]
    together = flow(model.field(V), model.rows(P), times)
    each = [
        prompt_flow(
            model.alone(h, torch.einsum("ijd,ij,do->io", model.tokens, model.rows(teacher)[h], V[h])),
            V[h],
            P[h],
            times,
        )
        for h in range(case["heads"])
    ]
    logits = torch.einsum("hjk,hk->hj", model.keys[:, 0], P)
    exact = torch.autograd.functional.jacobian(lambda z: torch.softmax(z, -1), logits)
    size = logits.numel()
    return {
        "interaction": interaction(V),
        "apart": float((together - torch.stack(each, 1)).abs().max()),
        "blocks": float((exact.reshape(size, size) - block_jacobian(torch.softmax(logits, -1))).abs().max()),
    }


def _descent(case: dict[str, Any]) -> dict[str, Any]:
    """Gradient descent on all prompts with the best step of a grid, in units of one over the curvature at the start."""
    model, P, _, V = _problem(case, case["ratio"])
    unit = 1 / model.curvature(P, V)
    read = torch.einsum("ijd,hdo->hoij", model.tokens, V)
    data = [tensor[None] for tensor in (model.keys, read, model.targets)]
    losses, last = descend_stack(
        _together,
        {"prompts": P.expand(1, len(GRID), *P.shape)},
        lambda _: data,
        optimizer="sgd",
        rates=unit * torch.tensor([GRID], dtype=torch.float64),
        steps=case["steps"],
    )
    ends = torch.tensor([[model.loss(prompts, V) for prompts in last["prompts"][0]]], dtype=losses.dtype)
    curves = torch.cat([losses[:, 0], ends])
    best = int(curves[-1].nan_to_num(math.inf).argmin())
    steps, kept = thinned(curves[:, best] / curves[0, best], 30)
    return {
        "share": GRID[best],
        "steps": steps,
        "losses": rounded(kept, 5),
        "final": float(curves[-1, best] / curves[0, best]),
    }


def _together(weights: Stack, keys: Tensor, read: Tensor, targets: Tensor) -> Tensor:
    """Losses (S,) of S sets of prompts (S, H, k); `read` is X_i V_h, (H, m, N, n)."""
    s = torch.einsum("hijk,shk->shij", keys, weights["prompts"]).softmax(-1)
    return 0.5 * (torch.einsum("hoij,shij->sio", read, s) - targets).square().sum((1, 2))


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_blocks(results), _decoupled(results), _similar(results), _harder(results)])


def _scale(results: Sequence[Result]) -> str:
    case = select(results, kind="descent")[0].case
    size = f"N = {case['samples']}, n = d = {case['width']}, {case['steps']} steps, best of {len(GRID)} steps"
    return f"flows: 3 heads, N = 5, n = 4, d = 6; descent: {size}; {seeds_of(results)} seeds"


def _blocks(results: Sequence[Result]) -> Claim:
    worst = max(r.value["blocks"] for r in select(results, kind="flow"))
    return Claim(
        "With p a matrix and the softmax applied by rows one gets a block-diagonal matrix of the J's [talk].",
        f"It differs from autograd's Jacobian of all logits by {worst:.0e} at most.",
        _scale(results),
        worst < 1e-14,
        {"largest_difference": worst},
        rows=("A19",),
    )


def _decoupled(results: Sequence[Result]) -> Claim:
    """The tolerance is that of the integration; heads that share outputs must be further apart than that."""
    found = {
        c: [float(over_seeds(results, name, kind="flow", shared=c)[0]) for name in ("interaction", "apart")]
        for c in SHARED
    }
    said = ", ".join(f"{apart:.1g} at interaction {meet:.2g}" for meet, apart in found.values())
    return Claim(
        "Heads keep the dynamics decoupled, or interact with each other [talk].",
        f"Rows of all heads against each head alone, up to t = 1: {said}. They decouple exactly where the heads write "
        "to different outputs, also for a matrix prompt.",
        _scale(results),
        found[0.0][1] < 1e-7 < 1e-4 < found[1.0][1],
        {f"{c:g}": pair for c, pair in found.items()},
        rows=("A36", "A19"),
    )


def _similar(results: Sequence[Result]) -> Claim:
    runs = select(results, kind="descent")
    flat, sharp = (
        {h: finals(select(runs, heads=h, shared=0.0, ratio=ratio)) for h in HEADS} for ratio in RATIOS
    )
    judged = [below(flat[h] + math.log(SLOWER) - sharp[h]) for h in HEADS]
    held = False if False in judged else None if None in judged else True
    growth = {h: math.exp((sharp[h] - flat[h]).mean()) for h in HEADS}
    said = ", ".join(
        f"{value:.2g} times with {h} {'heads' if h > 1 else 'head'}" for h, value in growth.items()
    )
    return Claim(
        "If you decouple everything, you get similar results with several heads [talk]: sharp teachers are slower.",
        f"Share of the loss that is left for teachers of ratio {RATIOS[1]:g}, over that of ratio 10, geometric mean: "
        f"{said}. Held: {SLOWER:g} times as much with every number of heads; undecided within two standard errors over "
        "seeds.",
        _scale(results),
        held if runs[0].case["steps"] >= LONG else None,
        {str(h): g for h, g in growth.items()},
        rows=("A36",),
    )


def _harder(results: Sequence[Result]) -> Claim:
    """In pairs of equal draws: interacting heads against decoupled ones, at both ratios."""
    runs, pairs = select(results, kind="descent"), []
    for r in [r for r in runs if r.case["shared"] == 1.0]:
        same = {name: r.case[name] for name in ("heads", "ratio", "seed")}
        pairs.append((r.value["final"], select(runs, shared=0.0, **same)[0].value["final"]))
    worse = sum(a > b for a, b in pairs)
    ratio = float(np.exp(np.median([np.log(a / b) for a, b in pairs])))
    return Claim(
        "(question after the talk) Heads that interact strongly are harder for gradient descent than decoupled ones.",
        f"More of the loss is left with interacting heads in {worse} of {len(pairs)} pairs; {ratio:.2g} times as much "
        "in the median.",
        _scale(results),
        decided(worse > 0.75 * len(pairs), runs, LONG),
        {"worse": worse, "pairs": len(pairs)},
        rows=("A36",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = (_apart(results), _losses(results, 0.0), _losses(results, 1.0))
    return Sheet("Several prompts at once", panels, _scale(results)).draw()


def _apart(results: Sequence[Result]) -> Panel:
    runs = select(results, kind="flow")
    x = np.array([r.value["interaction"] for r in runs])
    curve = Curve("", x, np.array([max(r.value["apart"], 1e-12) for r in runs]), 0, "points")
    return Panel(
        "each head alone, or all together",
        "interaction of the heads' values",
        "rows differ by",
        (curve,),
        log_y=True,
        legend=False,
    )


def _losses(results: Sequence[Result], shared: float) -> Panel:
    curves = []
    for group, heads in enumerate(HEADS):
        if heads == 1 and shared:
            continue
        for ratio, role in zip(RATIOS, ("third", "line"), strict=True):
            runs = select(results, kind="descent", heads=heads, shared=shared, ratio=ratio)
            y = np.exp(np.median([np.log(np.maximum(r.value["losses"], 1e-13)) for r in runs], 0))
            name = f"{heads} {'heads' if heads > 1 else 'head'}, teacher {ratio:g}"
            curves.append(Curve(name, np.array(runs[0].value["steps"]) + 1.0, y, group, role))
    title = "heads that interact" if shared else "decoupled heads"
    return Panel(
        title,
        "step + 1",
        "loss over the first loss, median",
        tuple(curves),
        log_x=True,
        log_y=True,
        y_range=(1e-7, 3.0),
        legend_at="lower left",
    )
