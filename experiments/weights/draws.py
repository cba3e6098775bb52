"""How crucial is Gaussianity? Exponents of random transformers whose matrices are drawn in ten ways, of equal variance.

Five kinds of independent entries and five kinds of structure, against the theory of independent Gaussian entries.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.nets.build import BlockStack
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, over_seeds, seed_count

from .matrices import INDEPENDENT, KINDS, STRUCTURED, redraw_

TOLERANCE = 0.01  # of the largest number in an entry; seeds scatter by 0.15 or more
GAINS = {"ordered": 0.5, "chaotic": 4.0}  # of the MLP's first matrix
ATTENTION, MLP, OVERLAP = 0.4, 0.6, 0.3
NAMES = {"angle": "angle", "token": "gradient, loss per token", "pooled": "gradient, pooled loss"}
WITHIN = 0.02  # per block, beside three standard errors: what counts as no difference


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = {"depth": 8, "tokens": 8, "width": 96} if full else {"depth": 3, "tokens": 4, "width": 32}
    return [
        {"kind": kind, "phase": phase, "seed": seed, "size": size}
        for kind in (KINDS if full else ("Gaussian", "sign", "circulant"))
        for phase in GAINS
        for seed in range(32 if full else 1)
    ]


def _network(case: dict[str, Any]) -> edgewise.Architecture:
    return edgewise.transformer(
        activation="tanh",
        norm="pre",
        heads=1,
        attention_branch=ATTENTION,
        attention_skip=math.sqrt(1 - ATTENTION**2),
        mlp_branch=MLP,
        mlp_skip=math.sqrt(1 - MLP**2),
        mlp_in_gain=GAINS[case["phase"]],
        mlp_width=case["size"]["width"],
        **case["size"],
    )


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Log-rates per block: of 1 - cosine forward, of the gradient relative to the stream backward."""
    g = torch.Generator().manual_seed(1000 + case["seed"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case["seed"])
        stack = BlockStack(_network(case)).double().requires_grad_(False)
    for layer in stack.modules():
        if isinstance(layer, torch.nn.Linear):
            redraw_(layer.weight, case["kind"], g)
    n, d = case["size"]["tokens"], case["size"]["width"]
    common, own, out = (torch.randn(1, m, d, generator=g, dtype=torch.float64) for m in (1, n, n))
    start = (math.sqrt(OVERLAP) * common + math.sqrt(1 - OVERLAP) * own).requires_grad_()
    end = stack(start)
    depth, stream = case["size"]["depth"], math.log(float(start.square().sum() / end.square().sum()))
    rates = {"angle": math.log(_apart(end) / _apart(start)) / depth}
    for name, direction in (("token", out), ("pooled", out[:, :1].expand_as(out))):
        (back,) = torch.autograd.grad(end, start, direction, retain_graph=True)
        rates[name] = (math.log(float(back.square().sum() / direction.square().sum())) + stream) / depth
    return {name: round(rate, 5) for name, rate in rates.items()}


def _apart(x: torch.Tensor) -> float:
    """1 - mean cosine of two tokens."""
    unit = x[0].detach() / x[0].detach().norm(dim=-1, keepdim=True)
    return float((unit - unit.mean(0)).square().sum() / (len(unit) - 1))


@cache
def _theory(phase: str, depth: int, tokens: int, width: int) -> dict[str, float]:
    network, found = (
        _network({"phase": phase, "size": {"depth": depth, "tokens": tokens, "width": width}}),
        {},
    )
    for readout in ("token", "pooled"):
        trace = edgewise.predict(network, start_overlap=OVERLAP, readout=readout)
        norm, rows = np.log(trace.blocks("norm")), np.log(trace.blocks("separation"))
        found["angle"] = float((rows[-1] - rows[0]) / depth)
        found[readout] = float((trace.blocks("log_gradient")[0] + norm[0] - norm[-1]) / depth)
    return found


def theory(results: list[Result], phase: str) -> dict[str, float]:
    return _theory(phase, **results[0].case["size"])


def gaps(results: list[Result], kind: str) -> dict[str, tuple[float, float]]:
    """Measured minus Gaussian, by phase and exponent, with its standard error."""
    found = {}
    for phase in GAINS:
        for name in NAMES:
            mean, error = over_seeds(results, name, kind=kind, phase=phase)
            other, other_error = over_seeds(results, name, kind="Gaussian", phase=phase)
            found[f"{phase}, {NAMES[name]}"] = (float(mean - other), float(np.hypot(error, other_error)))
    return found


def claim(results: list[Result]) -> Claim:
    return Claim.all([_independent(results), _structured(results), _gaussian(results)])


def _scale(results: list[Result]) -> str:
    size = results[0].case["size"]
    sizes = f"n = {size['tokens']}, d = {size['width']}, {size['depth']} blocks, tanh"
    seeds = f"{seed_count(results)} random networks per kind and phase"
    return f"{sizes}, attention {ATTENTION:g}, MLP {MLP:g}, {seeds}"


def resolved(results: list[Result], kinds: Any) -> bool:
    """Whether the seeds can see a difference of the size that is asked about."""
    errors = [error for kind in kinds for _, error in gaps(results, kind).values()]
    return seed_count(results) > 1 and bool(np.median(errors) < WITHIN)


def _differing(results: list[Result], kinds: Any) -> dict[str, str]:
    """Kinds with an exponent that differs from the Gaussian's by more than the limit, and by how much."""
    found = {}
    for kind in kinds:
        off = {
            k: (gap, error)
            for k, (gap, error) in gaps(results, kind).items()
            if abs(gap) > WITHIN + 3 * error
        }
        if off:
            worst = max(off, key=lambda k: abs(off[k][0]))
            found[kind] = f"{kind} by {off[worst][0]:+.3f} ± {off[worst][1]:.3f} ({worst})"
    return found


def _largest(results: list[Result], kinds: Any) -> str:
    """The largest difference from the Gaussian that was seen, decided or not."""
    found = {(kind, name): gap for kind in kinds for name, gap in gaps(results, kind).items()}
    (kind, name), (gap, error) = max(found.items(), key=lambda item: abs(item[1][0]))
    return f"{gap:+.3f} ± {error:.3f} ({kind}; {name})"


def _measured(results: list[Result], kinds: Any) -> list[str]:
    return [kind for kind in kinds if kind != "Gaussian" and any(r.case["kind"] == kind for r in results)]


def _independent(results: list[Result]) -> Claim:
    kinds = _measured(results, INDEPENDENT)
    differing = _differing(results, kinds) if seed_count(results) > 1 else {}
    return Claim(
        "Gaussianity is not too crucial; independent, identically distributed weights are [talk, answer to a "
        "question].",
        f"Of {', '.join(kinds)}: {'; '.join(differing.values()) or 'none'} differ in an exponent from Gaussian ones "
        "by more "
        f"than {WITHIN:g} per block beyond three standard errors; the largest difference seen is "
        f"{_largest(results, kinds)}. Held: none does; undecided where "
        "the seeds cannot resolve that (median standard error of a difference at most the limit).",
        _scale(results),
        False if differing else True if resolved(results, kinds) else None,
        {kind: gaps(results, kind) for kind in kinds},
        rows=("C37",),
    )


def _structured(results: list[Result]) -> Claim:
    kinds = _measured(results, STRUCTURED)
    differing = _differing(results, kinds) if seed_count(results) > 1 else {}
    return Claim(
        "It is also really important to initialize structured weight matrices correctly [talk]; read as: the same "
        "variance "
        "does not give the same exponents.",
        f"Of {', '.join(kinds)}: {'; '.join(differing.values()) or 'none'} differ from independent Gaussian entries "
        "by more "
        f"than {WITHIN:g} per block beyond three standard errors. Held: at least one does; "
        "undecided where the seeds cannot resolve that.",
        _scale(results),
        True if differing else False if resolved(results, kinds) else None,
        {kind: gaps(results, kind) for kind in kinds},
        rows=("C14",),
    )


def _gaussian(results: list[Result]) -> Claim:
    off = {}
    for phase in GAINS:
        for name in NAMES:
            mean, error = over_seeds(results, name, kind="Gaussian", phase=phase)
            off[f"{phase}, {NAMES[name]}"] = (float(mean - theory(results, phase)[name]), float(error))
    worst = max(off, key=lambda k: abs(off[k][0]))
    scatter = float(np.sqrt(np.mean([error**2 for _, error in off.values()])))
    return Claim(
        "(ours) Theory gives the exponents of Gaussian matrices.",
        f"Off by at most {abs(off[worst][0]):.3f} ({worst}; standard error {scatter:.3f}). Held: below {WITHIN:g} "
        "beside three "
        "standard errors.",
        _scale(results),
        abs(off[worst][0]) < WITHIN + 3 * scatter if seed_count(results) > 1 else None,
        off,
        rows=("C37",),
    )


def draw(results: list[Result]) -> Figure:
    panels = tuple(_panel(results, name, phase) for phase in GAINS for name in NAMES)
    title = "Exponents by how the matrices are drawn, all of equal variance"
    return Sheet(
        title,
        panels,
        f"{_scale(results)}; dotted: theory for independent entries; bars: standard error",
        columns=3,
    ).draw()


def _panel(results: list[Result], name: str, phase: str) -> Panel:
    kinds = [kind for kind in KINDS if any(r.case["kind"] == kind for r in results)]
    mean, error = np.array([over_seeds(results, name, kind=kind, phase=phase) for kind in kinds]).T
    inside = np.array([kind in INDEPENDENT for kind in kinds])
    rows = np.arange(len(kinds))
    curves = (
        Curve("independent", mean[inside], rows[inside], 0, "points", x_error=error[inside]),
        Curve("structured", mean[~inside], rows[~inside], 1, "hollow", x_error=error[~inside]),
    )
    return Panel(
        f"{phase}: {NAMES[name]}",
        "log-rate per block",
        "",
        curves,
        y_names=tuple(kinds),
        places=(theory(results, phase)[name],),
        legend=name == "angle" and phase == "ordered",
    )
