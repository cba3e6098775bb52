"""Our plane against the package loss-landscapes on one transformer: time per point, agreement, what crashes.

The transformer of our survey of other tools: 4 pre-norm layers of width 128, 4 heads, MLP 512, 16 x 64 tokens.
The package moves all weights at every point; for a plane of named weights it interpolates between three models.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from benchmarks.clock import once
from benchmarks.report import Findings, Goal, Table, Tell
from edgewise import landscape
from edgewise.landscape import Along

PACKAGE = "loss_landscapes"
EQUAL, FASTER = 0.9, 3.0  # the project's goals: as fast when nothing can be cached, three times when it can
LAST = (Along("queries", [3]), Along("keys", [3]))
PLANES: dict[str, tuple[tuple[Any, Any], int]] = {  # directions, steps
    "all matrices, 11 x 11": (("*", "*"), 10),
    "queries against keys, last layer, 11 x 11": (LAST, 10),
    "queries against keys, last layer, 25 x 25": (LAST, 24),
}


def run(quick: bool, tell: Tell) -> Findings:
    model, batch = _model(), _batch(quick)
    rows: list[list[Any]] = []
    for place, name in enumerate(PLANES):
        tell(place / len(PLANES), name)
        rows.append(_compared(model, batch, name, quick))
    tell(0.95, "filter normalization")
    columns = (
        "plane",
        "ours, ms/point",
        "loss-landscapes",
        "theirs / ours",
        "largest difference",
        "how ours was computed",
    )
    crash = _theirs_by_filter(model, batch)
    goals = [
        _goal(
            "where nothing can be cached, at least 0.9 of the speed of loss-landscapes", rows[0], EQUAL, quick
        ),
        _goal("3 times faster where something can (late queries and keys)", rows[2], FASTER, quick),
        Goal(
            "never crash",
            f"filter normalization: ours gives {_ours_by_filter(model, batch)}, theirs {crash}",
            True,
        ),
    ]
    notes = [
        "CPU time of one core per point of one plane (theirs has one point fewer per side), with all that belongs to "
        "it: drawing directions, tracing, two points computed both ways.",
        "Largest difference: over the points both have. In every second row the package stores values one step away "
        "from where its own grid says (it steps before it evaluates, also on the way back); they are left out here.",
    ]
    if find_spec(PACKAGE) is None:
        notes.append("loss-landscapes is not installed: pip install -c constraints.txt -e '.[bench]'.")
    return [Table("one plane of a transformer of 4 layers", columns, rows)], goals, notes


def _goal(promise: str, row: list[Any], least: float, quick: bool) -> Goal:
    if row[3] is None:
        return Goal(promise, "loss-landscapes is not installed", None)
    return Goal(promise, f"{row[3]:.2f} times its speed", None if quick else row[3] >= least)


def _compared(model: nn.Module, batch: tuple[Tensor, Tensor], name: str, quick: bool) -> list[Any]:
    wanted, steps = PLANES[name]
    steps = 4 if quick else steps

    def ours(points: int) -> landscape.Plane:
        return landscape.plane(model, _loss, batch, wanted, points=points, normalization="layer")

    ours(5)  # a warm-up
    plane, timing = once(lambda: ours(steps + 1))
    mine = 1e3 * timing.cpu / (steps + 1) ** 2
    if find_spec(PACKAGE) is None:
        return [name, mine, None, None, None, plane.method]
    _theirs(model, batch, wanted, 2)
    losses, timing = once(lambda: _theirs(model, batch, wanted, steps))
    theirs = 1e3 * timing.cpu / steps**2
    return [name, mine, theirs, theirs / mine, _difference(plane.losses, losses), plane.method]


def _theirs(
    model: nn.Module, batch: tuple[Tensor, Tensor], wanted: tuple[Any, Any], steps: int
) -> np.ndarray:
    """From the corner (-1, -1) to the corners (1, -1) and (-1, 1) of our plane."""
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    drawn = [
        landscape.random_direction(model, w, seed=k, normalization="layer") for k, w in enumerate(wanted)
    ]
    corner, right, above = (_moved(model, drawn, at) for at in ((-1, -1), (1, -1), (-1, 1)))
    with torch.no_grad():
        found: np.ndarray = loss_landscapes.planar_interpolation(
            corner, right, above, Loss(_token_loss, *batch), steps
        )
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
    knobs = {
        "depth": 4,
        "width": 128,
        "heads": 4,
        "mlp_width": 512,
        "tokens": 64,
        "norm": "pre",
        "activation": "gelu",
    }
    return edgewise.nets.build(edgewise.transformer(**knobs), inputs=256, outputs=256).eval()


def _batch(quick: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    sequences = 2 if quick else 16
    return tuple(torch.randint(0, 256, (sequences, 64), generator=generator) for _ in range(2))  # type: ignore[return-value]
