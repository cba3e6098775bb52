"""The atlas: how many times the steps of a sound start other starts of the same network need.

Networks come in siblings: one shape, task and optimizer with one sound start, the family's published recipe, and eight
others. The sound start is trained at three rates for 150 steps; the best by its test loss at step 150 is the rate of
the shape, and that loss is its target. Every other start is trained at that rate and at a third of it, until its test
loss, measured every 10 steps, reaches the target, or for 500 steps. *Slowdown* is the first step at which it does,
divided by 150, the smaller of the two rates'; infinite if it never does ("never"). Both runs end there: they go side
by side, ten steps at a time. The rate rises over 20 steps and
then stays; all siblings see the same batches. A shape whose sound start learns less than 2 % of what the best
constant answer leaves is reported and not counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .data import Data, data
from .networks import network
from .starts import STRUCTURE, apply, embedding, head, in_blocks

TOLERANCE = (
    0.02  # of the largest number in an entry: test losses of a few steps, from the scatter of rounding
)
TARGET_STEP, LONGEST, EVERY, WARM_UP = 150, 500, 10, 20
LOWER = 3.0  # the second rate is that of the sound start divided by this
DIVERGED = 3.0  # a test loss above this many times the first one, or not a number, ends a run
SHAPES = Path(__file__).parent / "shapes.json"


def shapes(blind: bool = False) -> list[dict[str, Any]]:
    """Return the shapes of the atlas, or those of the blind list, cheapest first."""
    return [row for row in json.loads(SHAPES.read_text()) if row["blind"] == blind]


def build(shape: dict[str, Any], task: Data, start: list[Any]) -> nn.Module:
    """Return the network of a shape from one of its starts."""
    name, value = start
    if name == "structure":
        return network(shape | STRUCTURE[value], task, shape["seed"])
    model = network(shape, task, shape["seed"])
    if name != "sound":
        torch.manual_seed(20_000 + shape["seed"])
        apply(model, start)
    return model


def siblings(case: dict[str, Any], until: int = TARGET_STEP, longest: int = LONGEST) -> dict[str, Any]:
    """Train all siblings of a shape; return their test losses every 10 steps, the rate and the target."""
    torch.set_num_threads(1)
    task = data(case["task"], case["tokens"])
    sound = [list(_run(case, task, case["starts"][0], rate, until)) for rate in case["rates"]]
    best = min(range(len(sound)), key=lambda k: _last(sound[k]))
    rate, target = case["rates"][best], _last(sound[best])
    others = []
    for start in case["starts"][1:]:
        runs = raced(case, task, start, (rate, rate / LOWER), target, longest=longest)
        others.append({"start": start, "runs": [_rounded(run) for run in runs]})
    return {
        "constant": _digits(task.constant),
        "rate": rate,
        "target": _digits(target),
        "sound": [_rounded(run) for run in sound],
        "others": others,
    }


def _last(run: list[float]) -> float:
    return run[-1] if math.isfinite(run[-1]) else math.inf


def _rounded(run: list[float]) -> list[float | None]:
    return [_digits(loss) for loss in run]


def _digits(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def raced(
    case: dict[str, Any],
    task: Data,
    start: list[Any],
    rates: tuple[float, ...],
    target: float,
    weights: dict[str, Tensor] | None = None,
    longest: int = LONGEST,
) -> list[list[float]]:
    """Test losses of runs side by side, which end when one is at the target: later steps of others say nothing.

    `weights` are loaded in place of those of the start.
    """
    runs = [_run(case, task, start, rate, longest, weights) for rate in rates]
    losses: list[list[float]] = [[] for _ in runs]
    while True:
        steps = [next(run, None) for run in runs]
        for seen, loss in zip(losses, steps, strict=True):
            seen += [] if loss is None else [loss]
        if all(loss is None for loss in steps) or any(loss is not None and loss <= target for loss in steps):
            return losses


def _run(
    case: dict[str, Any],
    task: Data,
    start: list[Any],
    rate: float,
    steps: int,
    weights: dict[str, Tensor] | None = None,
) -> Iterator[float]:
    """Yield the test loss before the first step and after every tenth, until the run diverged."""
    model = build(case, task, start)
    if weights is not None:
        model.load_state_dict(weights)
    optimizers = _optimizers(model, case["optimizer"], rate)
    first = last = _test(model, task)
    yield first
    batches: Iterator[tuple[Tensor, Tensor]] = task.batches(case["batch"], case["seed"])
    for step, (inputs, labels) in enumerate(islice(batches, steps), 1):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["own"] * min(1.0, step / WARM_UP)
            optimizer.zero_grad()
        task.loss(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % EVERY == 0:
            last = _test(model, task)
            yield last
            if not last < DIVERGED * max(first, 1.0):
                return


@torch.no_grad()
def _test(model: nn.Module, task: Data) -> float:
    model.eval()
    loss = float(task.loss(model(task.test[0]), task.test[1]))
    model.train()
    return loss


def _optimizers(model: nn.Module, name: str, rate: float) -> list[torch.optim.Optimizer]:
    """AdamW, SGD with momentum, or Muon for matrices of blocks and AdamW at a tenth of its rate for the rest."""
    parameters = list(model.parameters())
    made: list[torch.optim.Optimizer]
    if name == "adamw":
        made = [torch.optim.AdamW(parameters, rate, weight_decay=0.01, betas=(0.9, 0.98), fused=True)]
    elif name == "sgd":
        made = [torch.optim.SGD(parameters, rate, momentum=0.9, fused=True)]
    else:
        matrices = [p for _, p in in_blocks(model)]
        ends = {id(embedding(model)), id(head(model))}
        matrices = [p for p in matrices if id(p) not in ends]
        inside = {id(p) for p in matrices}
        rest = [p for p in parameters if id(p) not in inside]
        made = [
            torch.optim.Muon(matrices, rate, weight_decay=0.0),
            torch.optim.AdamW(rest, rate / 10, weight_decay=0.01, fused=True),
        ]
    for optimizer in made:
        for group in optimizer.param_groups:
            group["own"] = group["lr"]
    return made
