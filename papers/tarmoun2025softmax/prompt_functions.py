"""Is prompt tuning more expressive than fine-tuning? Functions that a prompt represents and as many weights do not.

The talk has preliminary results that it can be; expressive is about what can be represented, so functions are fitted
instead of tasks. A frozen transformer block of random weights reads 4 tokens of width 16 behind a class token and two
prompts, 32 numbers; against them three limited fine-tunings of 32 numbers each: gain and bias of the first norm, and a
rank-one change of the queries' or of the values' matrix. Each makes functions (random parameters, so large that outputs
change by half of their standard deviation), and each is fitted to the functions of the others: 64 inputs, 600 steps
of Adam that fall to zero, the best of two starts and two rates; what is left of the change's variance on 256 other
inputs. Fixed before the run: prompts are more expressive than a fine-tuning if it leaves more of the prompts' functions
than prompts leave of its functions, the mean of log10 in pairs of seeds above zero with its 95 % interval, and if both
fit their own functions (a median below 0.05). "Can be" is held if they are so against at least one of the three, and
refused if a fine-tuning is so against prompts in all three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.func import functional_call, vmap

from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select
from edgewise.study.train import Stack, descend_stack

from .networks import AttentionBlock

TOLERANCE = 0.02  # of the largest number in an entry
WIDTH, TOKENS, PROMPTS = 16, 4, 2
PROMPT, LIMITED = "prompts", ("norm", "query", "value")
CHANGE, FITS = 0.5, 0.05  # of the outputs' standard deviation; what a kind may leave of its own functions
RATES, LONG = (0.02, 0.1), 600


class Reader(nn.Module):
    """A class token and prompts before the tokens; the class token is read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.prompts = (nn.Parameter(torch.randn(k, WIDTH)) for k in (1, PROMPTS))
        self.block, self.readout = AttentionBlock(WIDTH, 2), nn.Linear(WIDTH, 1)
        for matrix in (self.block.query, self.block.key, self.block.value, self.block.output):
            nn.init.normal_(matrix.weight, std=1.5 / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        given = torch.cat([self.first, self.prompts]).expand(len(x), -1, -1)
        return self.readout(self.block(torch.cat([given, x], 1))[:, 0])[:, 0]


def shapes(kind: str) -> dict[str, tuple[int, ...]]:
    """The 32 numbers of a kind."""
    if kind == PROMPT:
        return {"prompts": (PROMPTS, WIDTH)}
    if kind == "norm":
        return {"gain": (WIDTH,), "bias": (WIDTH,)}
    return {"left": (WIDTH,), "right": (WIDTH,)}


def outputs(model: Reader, kind: str, change: Stack, x: Tensor) -> Tensor:
    """Outputs with the change added; zero is the frozen network."""
    if kind == PROMPT:
        weights = {"prompts": model.prompts + change["prompts"]}
    elif kind == "norm":
        norm = model.block.first
        weights = {
            "block.first.weight": norm.weight + change["gain"],
            "block.first.bias": norm.bias + change["bias"],
        }
    else:
        matrix = getattr(model.block, kind).weight
        weights = {f"block.{kind}.weight": matrix + torch.outer(change["left"], change["right"])}
    return functional_call(model, weights, (x,))


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    how = (
        dict(inputs=64, others=256, starts=2, steps=LONG)
        if full
        else dict(inputs=8, others=8, starts=1, steps=3)
    )
    kinds = (PROMPT, *LIMITED)
    pairs = [(one, other) for one in kinds for other in kinds if PROMPT in (one, other) or one == other]
    return [
        how | {"teacher": teacher, "student": student, "seed": seed}
        for seed in range(8 if full else 1)
        for teacher, student in pairs
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """What the best of the student's runs leaves of the change, on the inputs it was fitted to and on others."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case["seed"])
        model = Reader().requires_grad_(False)
        x = torch.randn(case["inputs"], TOKENS, WIDTH)
        others = torch.randn(case["others"], TOKENS, WIDTH)
        change = {name: torch.randn(*shape) for name, shape in shapes(case["teacher"]).items()}
        runs = case["starts"] * len(RATES)
        start = {name: 0.3 * torch.randn(runs, *shape) for name, shape in shapes(case["student"]).items()}
    size = _size(model, case["teacher"], change, others)
    teacher = {name: size * value for name, value in change.items()}
    targets, wanted = (outputs(model, case["teacher"], teacher, inputs) for inputs in (x, others))
    spread = (
        (wanted - outputs(model, PROMPT, {"prompts": torch.zeros(PROMPTS, WIDTH)}, others)).square().mean()
    )

    def loss(weights: Stack, x: Tensor, y: Tensor) -> Tensor:
        return (outputs(model, case["student"], weights, x) - y).square().mean()

    _, last = descend_stack(
        loss,
        start,
        lambda _: (x, targets),
        optimizer="adam",
        rates=torch.tensor(RATES).repeat(case["starts"]),
        steps=case["steps"],
        schedule=lambda share: 1 - share,
        own=False,
    )
    after = vmap(loss, (0, None, None))
    fitted, left = (
        after(last, *pair).nan_to_num(math.inf) / spread for pair in ((x, targets), (others, wanted))
    )
    best = int(fitted.argmin())
    return {
        "left": rounded(float(left[best]), 5),
        "fitted": rounded(float(fitted[best]), 5),
        "all": rounded(sorted(fitted.tolist()), 4),
        "size": rounded(size, 4),
    }


def _size(model: Reader, kind: str, change: Stack, x: Tensor) -> float:
    """The factor of the change at which outputs change by `CHANGE` of their standard deviation."""
    frozen = outputs(model, kind, {name: torch.zeros_like(value) for name, value in change.items()}, x)
    low, high = 0.0, 4.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        moved = outputs(model, kind, {name: middle * value for name, value in change.items()}, x) - frozen
        small = float(moved.square().mean().sqrt()) < CHANGE * float(frozen.std())
        low, high = (middle, high) if small else (low, middle)
    return low


def left(results: Sequence[Result], teacher: str, student: str) -> np.ndarray:
    """By seed, what a student leaves of a teacher's functions; a ten-millionth at least, where digits end."""
    return np.array([max(r.value["left"], 1e-7) for r in select(results, teacher=teacher, student=student)])


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % interval over seeds."""
    from scipy.stats import t

    if len(values) < 3:
        return float(values.mean()), -math.inf, math.inf
    half = float(t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()), float(values.mean()) - half, float(values.mean()) + half


def compared(results: Sequence[Result]) -> dict[str, tuple[float, float, float]]:
    """By fine-tuning: log10 of what it leaves of the prompts' functions over what prompts leave of its own."""
    return {
        kind: interval(np.log10(left(results, PROMPT, kind)) - np.log10(left(results, kind, PROMPT)))
        for kind in LIMITED
    }


def claim(results: Sequence[Result]) -> Claim:
    table = compared(results)
    own = {kind: float(np.median(left(results, kind, kind))) for kind in (PROMPT, *LIMITED)}
    able = {kind: max(own[PROMPT], own[kind]) < FITS for kind in LIMITED}
    more = [kind for kind, (_, low, _) in table.items() if able[kind] and low > 0]
    less = [kind for kind, (_, _, high) in table.items() if able[kind] and high < 0]
    held = True if more else False if len(less) == len(LIMITED) else None
    said = "; ".join(
        f"{kind}: {np.median(left(results, PROMPT, kind)):.2g} of the prompts' functions, prompts "
        f"{np.median(left(results, kind, PROMPT)):.2g} of its own, log10 "
        f"of the ratio {mean:+.2f} ({low:+.2f} to {high:+.2f})"
        for kind, (mean, low, high) in table.items()
    )
    case = results[0].case
    return Claim(
        "There are preliminary results that prompt tuning can be more expressive than fine-tuning [talk]; read as: a "
        "prompt represents functions that as many weights do not.",
        f"Share of the change left, medians. {said}. Own functions: "
        f"{', '.join(f'{kind} {value:.1g}' for kind, value in own.items())}. More expressive than: "
        f"{', '.join(more) or 'none'}; less than: {', '.join(less) or 'none'}.",
        f"one block of width {WIDTH}, 32 numbers each, {case['inputs']} inputs, {case['steps']} steps, best of "
        f"{case['starts'] * len(RATES)} runs, {len({r.case['seed'] for r in results})} seeds",
        held if case["steps"] >= LONG else None,
        {"log10 of the ratio": table, "own": own},
        rows=("A9",),
    )


def draw(results: Sequence[Result]) -> Figure:
    kinds = (PROMPT, *LIMITED)
    groups = {
        "a kind's own functions": [(kind, kind) for kind in kinds],
        "prompts fitted to the functions of": [(kind, PROMPT) for kind in LIMITED],
        "functions of prompts fitted by": [(PROMPT, kind) for kind in LIMITED],
    }
    panels = []
    for title, pairs in groups.items():
        curves = [
            Curve("", np.full(len(y), float(place)), y, place, "points")
            for place, pair in enumerate(pairs)
            for y in [left(results, *pair)]
        ]
        names = kinds if len(pairs) == len(kinds) else LIMITED
        panels.append(
            Panel(
                title,
                "",
                "share of the change that is left",
                tuple(curves),
                log_y=True,
                legend=False,
                x_names=names,
                y_range=(5e-8, 0.1) if names is kinds else (0.01, 2.0),
            )
        )
    return Sheet("What 32 numbers represent", tuple(panels), claim(results).scale).draw()
