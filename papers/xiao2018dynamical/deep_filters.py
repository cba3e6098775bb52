"""Plain convolutional networks, very deep: what their start does to signals, and whether they learn [Xiao 2018].

3 x 3 filters and tanh on 8 x 8 digits, no skips and no norms; torch's own start against `edgewise.initialize_`, which
draws delta-orthogonal filters. Totals over the depth by one forward and one backward pass; then a few steps of SGD,
read out from all pixels.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import edgewise
from edgewise.study import Claim, Result, select, tasks
from edgewise.view import Curve, Panel, Sheet

CHANNELS, BATCH = 8, 16
STARTS = ("as torch draws it", "initialize_")
BUDGET = 1.0  # |total log-change| that a start may have
LEARNS = 0.7  # of chance: mean loss of the last ten steps
LIMIT = 60.0  # log-changes beyond this are drawn there


class Filters(nn.Module):
    """x <- tanh(w * x), many times."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, CHANNELS, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Depths and starts; steps where training is affordable."""
    steps = {10: 200, 100: 200, 1000: 200, 10_000: 0} if scale == "full" else {6: 4, 12: 4}
    return [{"depth": depth, "start": start, "steps": count, "seed": 0}
            for depth, count in steps.items() for start in STARTS]  # fmt: skip


def _images(patches: Tensor) -> Tensor:
    """(N, 16, 4) patches of 2 x 2 back to (N, 1, 8, 8)."""
    return patches.unflatten(2, (2, 2)).unflatten(1, (4, 4)).transpose(2, 3).reshape(-1, 1, 8, 8)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Total log-changes of angle and gradient over the layers, and the losses of the steps."""
    torch.set_num_threads(1)
    data = tasks.task("digits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case["seed"])
        model, readout = Filters(case["depth"]), nn.Linear(64 * CHANNELS, data.outputs)
        nn.init.zeros_(readout.weight)
        inputs = _images(data.train[0][:BATCH])
        if case["start"] == "initialize_":
            edgewise.initialize_(model, edgewise.critical_plan(model, inputs, draw="orthogonal"), generator=1)
        totals = edgewise.total_changes(model, inputs)
        losses = _train(model, readout, case) if case["steps"] else []
    return {"angle": round(totals.angle, 3), "gradient": round(totals.gradient, 3),
            "losses": [round(x, 4) for x in losses], "chance": data.chance}  # fmt: skip


def _train(model: nn.Module, readout: nn.Module, case: dict[str, Any]) -> list[float]:
    """SGD with momentum; the rate falls with the depth, which adds up what every layer moves."""
    rate = 0.3 / max(case["depth"], 10)
    optimizer = torch.optim.SGD([*model.parameters(), *readout.parameters()], rate, momentum=0.9)
    losses = []
    for patches, labels in islice(tasks.task("digits").batches(BATCH, case["seed"]), case["steps"]):
        loss = nn.functional.cross_entropy(readout(model(_images(patches)).flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def claim(results: list[Result]) -> Claim:
    return Claim.all([_signals(results), _learning(results)])


def _scale(results: list[Result]) -> str:
    depths = sorted({r.case["depth"] for r in results})
    trained = max((r.case["depth"] for r in results if r.case["steps"]), default=0)
    sizes = f"tanh, {CHANNELS} channels, 8 x 8 digits, {' / '.join(map(str, depths))} layers"
    return f"{sizes}, {results[0].case['steps']} steps up to {trained} layers, one seed (published: 10,000 layers)"


def _signals(results: list[Result]) -> Claim:
    rows = {s: {r.case["depth"]: (r.value["angle"], r.value["gradient"]) for r in select(results, start=s)}
            for s in STARTS}  # fmt: skip
    said = {s: "; ".join(f"{d} layers {a:+.2f} / {g:+.2f}" for d, (a, g) in row.items()) for s, row in rows.items()}
    deepest = max(rows[STARTS[0]])
    kept = all(abs(x) < BUDGET for pair in rows[STARTS[1]].values() for x in pair)
    lost = max(abs(x) for x in rows[STARTS[0]][deepest]) > 7
    return Claim(
        "A good initialization alone lets signals pass plain convolutional networks of thousands of layers, without "
        "residual "
        "connections or norms [talk, Xiao 2018].",
        f"Total log-changes of angle / gradient over the layers: {said[STARTS[1]]} after initialize_; "
        f"{said[STARTS[0]]} as "
        f"torch draws them. Held: within {BUDGET:g} at every depth after it, beyond 7 at the deepest without.",
        _scale(results), kept and lost if deepest >= 100 else None,
        {s: {str(d): pair for d, pair in row.items()} for s, row in rows.items()}, rows=("C13",),
    )  # fmt: skip


def _learning(results: list[Result]) -> Claim:
    runs = [r for r in results if len(r.value["losses"]) >= 20]
    ends = {f"{r.case['depth']}, {r.case['start']}": float(np.mean(r.value["losses"][-10:]) / r.value["chance"])
            for r in runs}  # fmt: skip
    deepest = max((r.case["depth"] for r in runs), default=0)
    words = ", ".join(f"{name}: {end:.2f}" for name, end in ends.items())
    return Claim(
        "Such networks are trained with no tricks but their start [talk, Xiao 2018].",
        f"Mean loss of the last ten steps, over chance, by depth and start: {words or 'not trained'}. Held: at the "
        "deepest that "
        f"is trained, below {LEARNS:g} after initialize_ and not below it as torch draws it.",
        _scale(results),
        ends[f"{deepest}, {STARTS[1]}"] < LEARNS <= ends[f"{deepest}, {STARTS[0]}"] if deepest >= 100 else None,
        ends, rows=("C13",),
    )  # fmt: skip


def draw(results: list[Result]) -> Figure:
    panels = (_totals(results, "angle"), _totals(results, "gradient"), _losses(results))
    title = "Plain convolutional networks by their start: signals over the depth, and learning"
    return Sheet(title, panels, _scale(results)).draw()


def _totals(results: list[Result], name: str) -> Panel:
    curves = []
    for group, start in enumerate(STARTS):
        rows = select(results, start=start)
        depth, value = np.array([(r.case["depth"], np.clip(r.value[name], -LIMIT, LIMIT)) for r in rows]).T
        curves.append(Curve(start, depth, value, 1 - group, "orbit"))
    label = f"log-change (cut at {LIMIT:g})"
    return Panel(f"total log-change of the {name}", "layers", label, tuple(curves), log_x=True, levels=(0.0,))


def _smooth(losses: list[float]) -> np.ndarray:
    return np.convolve(losses, np.ones(5) / 5, "valid") if len(losses) > 5 else np.array(losses)


def _losses(results: list[Result]) -> Panel:
    runs = [r for r in results if r.value["losses"]]
    depths = sorted({r.case["depth"] for r in runs})
    curves = tuple(
        Curve(f"{r.case['depth']} layers, {r.case['start']}", np.arange(len(_smooth(r.value["losses"]))),
              _smooth(r.value["losses"]),
              depths.index(r.case["depth"]) + 2, "line" if r.case["start"] == STARTS[1] else "second")
        for r in runs
    )  # fmt: skip
    chance = (runs[0].value["chance"],) if runs else ()
    return Panel("learning", "step", "loss, mean of five steps", curves, levels=chance)
