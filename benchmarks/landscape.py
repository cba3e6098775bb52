"""Our plane against the package loss-landscapes on one transformer: time per point, agreement, what crashes.

The transformer of our survey of other tools: 4 pre-norm layers of width 128, 4 heads, MLP 512, 16 x 64 tokens.
The package moves all weights at every point; for a plane of named weights it interpolates between three models.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from benchmarks.clock import Task, interleaved
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise import landscape
from edgewise.landscape import Along

PACKAGE = "loss_landscapes"
EQUAL, FASTER = 0.9, 3.0  # the project's goals: as fast when nothing can be cached, three times when it can
PLANES: dict[str, tuple[Any, Any]] = {
    "all matrices": ("*", "*"),
    "queries against keys, all layers": ("queries", "keys"),
    "queries against keys, last layer": (Along("queries", [3]), Along("keys", [3])),
}


def run(quick: bool, tell: Tell) -> Findings:
    model, batch = _model(), _batch(quick)
    steps = 4 if quick else 10
    rows: list[list[Any]] = []
    for place, name in enumerate(PLANES):
        tell(place / len(PLANES), name)
        rows.append(_compared(model, batch, name, steps, 1 if quick else 2))
    tell(0.95, "filter normalization")
    columns = ("plane", "ours, ms/point", "ours without memory", "loss-landscapes", "theirs / ours",
               "largest difference", "how ours was computed")  # fmt: skip
    crash = _theirs_by_filter(model, batch)
    goals = [
        _goal("where nothing can be cached, at least 0.9 of the speed of loss-landscapes", rows[0], EQUAL, quick),
        _goal("3 times faster where something can (late queries and keys)", rows[2], FASTER, quick),
        Goal("never crash", f"filter normalization: ours gives {_ours_by_filter(model, batch)}, theirs {crash}", True),
    ]
    notes = [
        f"CPU time of one core per point; planes of {steps + 1} x {steps + 1} points (theirs {steps} x {steps}), with "
        "all that belongs to them: drawing directions, tracing, two points computed both ways.",
        "Largest difference: over the points both have. In every second row the package stores values one step away "
        "from where its own grid says (it steps before it evaluates, also on the way back); they are left out here.",
    ]
    if find_spec(PACKAGE) is None:
        notes.append("loss-landscapes is not installed: pip install -c constraints.txt -e '.[bench]'.")
    return [Table("one plane of a transformer of 4 layers", columns, rows)], goals, notes


def _goal(promise: str, row: list[Any], least: float, quick: bool) -> Goal:
    if row[4] is None:
        return Goal(promise, "loss-landscapes is not installed", None)
    return Goal(promise, f"{row[4]:.2f} times its speed", None if quick else row[4] >= least)


def _compared(model: nn.Module, batch: tuple[Tensor, Tensor], name: str, steps: int, repetitions: int) -> list[Any]:
    wanted, kept = PLANES[name], dict[str, Any]()

    def ours(method: str) -> Callable[[], None]:
        def compute() -> None:
            kept[method] = landscape.plane(
                model, _loss, batch, wanted, points=steps + 1, normalization="layer", method=method
            )

        return compute

    tasks = {"auto": Task(ours("auto")), "direct": Task(ours("direct"))}
    if find_spec(PACKAGE) is not None:
        tasks["theirs"] = Task(lambda: kept.update(theirs=_theirs(model, batch, wanted, steps)))
    found = interleaved(tasks, repetitions)
    per_point = {n: 1e3 * t.cpu / (steps**2 if n == "theirs" else (steps + 1) ** 2) for n, t in found.items()}
    theirs = per_point.get("theirs")
    ratio = None if theirs is None else theirs / per_point["auto"]
    difference = None if theirs is None else _difference(kept["auto"].losses, kept["theirs"])
    return [name, per_point["auto"], per_point["direct"], theirs, ratio, difference, kept["auto"].method]


def _theirs(model: nn.Module, batch: tuple[Tensor, Tensor], wanted: tuple[Any, Any], steps: int) -> np.ndarray:
    """From the corner (-1, -1) to the corners (1, -1) and (-1, 1) of our plane."""
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    drawn = [landscape.random_direction(model, w, seed=k, normalization="layer") for k, w in enumerate(wanted)]
    corner, right, above = (_moved(model, drawn, at) for at in ((-1, -1), (1, -1), (-1, 1)))
    with torch.no_grad():
        found: np.ndarray = loss_landscapes.planar_interpolation(corner, right, above, Loss(_token_loss, *batch), steps)
    return found


def _moved(model: nn.Module, drawn: list[landscape.Direction], at: tuple[int, int]) -> nn.Module:
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in made.named_parameters():
            for c, direction in zip(at, drawn, strict=True):
                if name in direction.tensors:
                    p += c * direction.tensors[name]
    return made


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Their row i, value j lies at our column i, row j + 1, in even rows."""
    return max(float(np.abs(theirs[i] - ours[1:, i]).max()) for i in range(0, len(theirs), 2))


def _theirs_by_filter(model: nn.Module, batch: tuple[Tensor, Tensor]) -> str:
    if find_spec(PACKAGE) is None:
        return "is not installed"
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    try:
        with torch.no_grad():
            loss_landscapes.random_plane(copy.deepcopy(model), Loss(_token_loss, *batch), steps=2)
    except ArithmeticError as error:
        return f"stops with {type(error).__name__}"
    return "gives a plane"


def _ours_by_filter(model: nn.Module, batch: tuple[Tensor, Tensor]) -> str:
    found = landscape.plane(model, _loss, batch, ("*", Along("*", vectors=True)), points=5)
    return f"{np.isfinite(found.losses).mean():.0%} finite losses"


def _token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return _token_loss(model(batch[0]), batch[1])


def _model() -> nn.Module:
    torch.manual_seed(0)
    knobs = {"depth": 4, "width": 128, "heads": 4, "mlp_width": 512, "tokens": 64, "norm": "pre", "activation": "gelu"}
    return edgewise.nets.transformer(edgewise.transformer(**knobs), inputs=256, outputs=256).eval()


def _batch(quick: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    sequences = 2 if quick else 16
    return tuple(torch.randint(0, 256, (sequences, 64), generator=generator) for _ in range(2))  # type: ignore[return-value]
