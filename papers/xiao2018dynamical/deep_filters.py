"""Plain convolutional networks, very deep: what their start does to signals, and whether they learn [Xiao 2018].

3 x 3 filters and tanh on 8 x 8 digits, no skips and no norms; two ordinary starts (torch's own, and Xavier with the
gain that torch names for tanh) against `edgewise.initialize_`, which draws delta-orthogonal filters. Totals over the
depth by one forward and one backward pass; then SGD, read out from all pixels, with the same rates for every start.
Digits can be told from filters that pass them on unchanged, so the readout is also trained alone, with the body fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, select, tasks

TOLERANCE = 0.005  # of the largest number in an entry; seeds scatter by 0.052 or more
CHANNELS, BATCH = 8, 16
GOOD = "initialize_"
ORDINARY = ("as torch draws it", "Xavier")
STARTS = (*ORDINARY, GOOD)
ALL, READOUT = "all", "readout alone"
ARMS = (*((start, ALL) for start in STARTS), (GOOD, READOUT))
SEEDS = {10: 3, 100: 3, 1000: 1, 10_000: 1}  # by depth
STEPS, FEW = 200, 20  # few: 10,000 layers from an ordinary start
RATE = 0.3  # of the body, over the depth, which adds up what every layer moves
READOUT_RATE = 0.003  # at every depth
BUDGET = 1.0  # |total log-change| that a start may have
LOST = 7.0  # and from which on signals are lost
LEARNS = 0.7  # of chance: mean loss of the last ten steps
BODY = 0.8  # of what the readout reaches alone
DEEP = 100  # layers from which on learning is judged
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
    """Depths, seeds and starts; fewer steps where nothing moves and a step takes seconds."""
    full = scale == "full"
    return [
        {
            "depth": depth,
            "start": start,
            "trains": trains,
            "seed": seed,
            "steps": (FEW if depth == 10_000 and start in ORDINARY else STEPS) if full else 4,
        }
        for depth, seeds in (SEEDS if full else {6: 1, 12: 1}).items()
        for seed in range(seeds)
        for start, trains in ARMS
    ]


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
        _start(model, inputs, case)
        totals = edgewise.total_changes(model, inputs)
        losses = list(_train(model, readout, case))
    return {
        "angle": round(totals.angle, 3),
        "gradient": round(totals.gradient, 3),
        "losses": [round(x, 4) for x in losses],
        "chance": data.chance,
    }


def _start(model: Filters, inputs: Tensor, case: dict[str, Any]) -> None:
    if case["start"] == GOOD:
        plan = edgewise.critical_plan(model, inputs, draw="orthogonal")
        edgewise.initialize_(model, plan=plan, generator=1 + case["seed"])
    elif case["start"] == "Xavier":
        for layer in (model.first, *model.layers):
            nn.init.xavier_normal_(layer.weight, nn.init.calculate_gain("tanh"))
            nn.init.zeros_(layer.bias)


def _train(model: Filters, readout: nn.Module, case: dict[str, Any]) -> Iterator[float]:
    """SGD with momentum, to the first loss that is not a number."""
    model.requires_grad_(case["trains"] == ALL)
    body = {"params": [p for p in model.parameters() if p.requires_grad], "lr": RATE / max(case["depth"], 10)}
    optimizer = torch.optim.SGD([body, {"params": [*readout.parameters()]}], READOUT_RATE, momentum=0.9)
    for patches, labels in islice(tasks.task("digits").batches(BATCH, case["seed"]), case["steps"]):
        loss = nn.functional.cross_entropy(readout(model(_images(patches)).flatten(1)), labels)
        if not loss.isfinite():
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_signals(results), _learning(results), _body(results)])


def _depths(results: Sequence[Result]) -> list[int]:
    return sorted({r.case["depth"] for r in results})


def _scale(results: Sequence[Result]) -> str:
    depths = _depths(results)
    seeds = [str(len({r.case["seed"] for r in select(results, depth=depth)})) for depth in depths]
    steps = sorted({r.case["steps"] for r in results}, reverse=True)
    few = f" ({steps[1]} from an ordinary start at {depths[-1]} layers)" if len(steps) > 1 else ""
    return (
        f"tanh, {CHANNELS} channels, 8 x 8 digits, {' / '.join(map(str, depths))} layers with {' / '.join(seeds)} "
        f"seeds, {steps[0]} steps of SGD{few}"
    )


def _signals(results: Sequence[Result]) -> Claim:
    depths = _depths(results)
    rows = {start: {depth: _totals(results, start, depth) for depth in depths} for start in STARTS}
    said = {
        start: "; ".join(f"{depth} layers {a:+.2f} / {g:+.2f}" for depth, (a, g) in row.items())
        for start, row in rows.items()
    }
    kept = all(abs(x) < BUDGET for pair in rows[GOOD].values() for x in pair)
    lost = all(max(abs(x) for x in rows[start][depths[-1]]) > LOST for start in ORDINARY)
    return Claim(
        "A good initialization alone lets signals pass plain convolutional networks of thousands of layers, without "
        "residual connections or norms [talk, Xiao 2018].",
        f"Total log-changes of angle / gradient over the layers, the largest of the seeds: {said[GOOD]} after "
        f"initialize_; {said[ORDINARY[0]]} as torch draws them; {said[ORDINARY[1]]} with Xavier. Held: within "
        f"{BUDGET:g} at every depth after it, beyond {LOST:g} at the deepest from both ordinary starts.",
        _scale(results),
        kept and lost if depths[-1] >= DEEP else None,
        {start: {str(depth): pair for depth, pair in row.items()} for start, row in rows.items()},
        rows=("C13",),
    )


def _totals(results: Sequence[Result], start: str, depth: int) -> tuple[float, float]:
    """Angle and gradient, each the largest in size over the seeds."""
    rows = [r.value for r in select(results, start=start, depth=depth, trains=ALL)]
    angle, gradient = (max((float(row[name]) for row in rows), key=abs) for name in ("angle", "gradient"))
    return angle, gradient


def _ends(results: Sequence[Result], start: str, trains: str = ALL) -> dict[int, list[float]]:
    """By depth and seed: mean loss of the last ten steps over chance; infinite where it was not a number."""
    runs = [r for r in select(results, start=start, trains=trains) if r.case["steps"] >= FEW]
    return {depth: [_end(r) for r in select(runs, depth=depth)] for depth in _depths(runs)}


def _end(run: Result) -> float:
    losses, whole = run.value["losses"], len(run.value["losses"]) == run.case["steps"]
    return float(np.mean(losses[-10:]) / run.value["chance"]) if whole else math.inf


def _words(ends: dict[int, list[float]]) -> str:
    rows = {d: [f"{x:.2f}" if math.isfinite(x) else "not a number" for x in row] for d, row in ends.items()}
    return "; ".join(f"{depth} layers {' / '.join(row)}" for depth, row in rows.items()) or "not trained"


def _numbers(ends: dict[int, list[float]]) -> dict[str, list[float | None]]:
    return {str(depth): [x if math.isfinite(x) else None for x in row] for depth, row in ends.items()}


def _learning(results: Sequence[Result]) -> Claim:
    ends = {start: _ends(results, start) for start in STARTS}
    said = ", ".join(f"{start}: {_words(row)}" for start, row in ends.items())
    deep = [depth for depth in ends[GOOD] if depth >= DEEP]
    learns = all(x < LEARNS for depth in deep for x in ends[GOOD][depth])
    stays = all(x >= LEARNS for start in ORDINARY for depth in deep for x in ends[start][depth])
    return Claim(
        "Such networks are trained with no tricks but their start [talk, Xiao 2018].",
        f"Mean loss of the last ten steps, over chance, by start, depth and seed: {said}. Every start has the same "
        f"rates: {RATE:g} over the depth for the body, {READOUT_RATE:g} for the readout. Held: from {DEEP} layers on, "
        f"for every seed, below {LEARNS:g} after initialize_ and not below it from either ordinary start.",
        _scale(results),
        learns and stays if deep else None,
        {start: _numbers(row) for start, row in ends.items()},
        rows=("C13",),
    )


def _body(results: Sequence[Result]) -> Claim:
    whole, alone = _ends(results, GOOD), _ends(results, GOOD, READOUT)
    shares = {depth: [x / y for x, y in zip(row, alone[depth], strict=True)] for depth, row in whole.items()}
    deep = [depth for depth in shares if depth >= DEEP]
    return Claim(
        "(ours) It is the deep body that learns, not only the readout from what the start passes on.",
        f"After initialize_, loss at the end over that of the readout trained alone, by depth and seed: "
        f"{_words(shares)} (the readout alone, over chance: {_words(alone)}). Held: below {BODY:g} from {DEEP} layers "
        "on, for every seed.",
        _scale(results),
        all(x < BODY for depth in deep for x in shares[depth]) if deep else None,
        {"share": _numbers(shares), READOUT: _numbers(alone)},
        rows=("C13",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = (_signal(results, "angle"), _signal(results, "gradient"), _final(results), _losses(results))
    title = "Plain convolutional networks by their start: signals over the depth, and learning"
    return Sheet(title, panels, _scale(results), columns=2).draw()


def _signal(results: Sequence[Result], name: str) -> Panel:
    curves, depths = [], _depths(results)
    for group, start in enumerate(reversed(STARTS)):
        totals = [_totals(results, start, depth)[("angle", "gradient").index(name)] for depth in depths]
        curves.append(Curve(start, np.array(depths), np.clip(totals, -LIMIT, LIMIT), group, "orbit"))
    label = f"log-change (cut at ±{LIMIT:g})"
    return Panel(
        f"{'AB'[name == 'gradient']}  total log-change of the {name}",
        "layers",
        label,
        tuple(curves),
        log_x=True,
        levels=(0.0,),
    )


def _final(results: Sequence[Result]) -> Panel:
    """The loss at the end against depth, every seed a point; what left the range of numbers has none."""
    looks = {
        (ORDINARY[0], ALL): (2, "points"),
        ("Xavier", ALL): (1, "cross"),
        (GOOD, READOUT): (3, "hollow"),
        (GOOD, ALL): (0, "points"),
    }
    curves = []
    for (start, trains), (group, role) in looks.items():
        runs = [
            r
            for r in select(results, start=start, trains=trains)
            if len(r.value["losses"]) == r.case["steps"]
        ]
        at = np.array([(r.case["depth"], np.mean(r.value["losses"][-10:])) for r in runs])
        label = f"{start}, {READOUT}" if trains == READOUT else start
        curves.append(Curve(label, at[:, 0], at[:, 1], group, role))
    return Panel(
        "C  loss at the end, every seed",
        "layers",
        "loss, mean of the last ten steps",
        tuple(curves),
        log_x=True,
        levels=(results[0].value["chance"],),
    )


def _losses(results: Sequence[Result]) -> Panel:
    """Of the first seed: every depth after initialize_, and at the deepest the others."""
    runs, depths = select(results, seed=0), _depths(results)
    curves = [
        _curve(r, f"{r.case['depth']} layers, {GOOD}", depths.index(r.case["depth"]) + 2, "line")
        for r in select(runs, start=GOOD, trains=ALL)
    ]
    for r in select(runs, depth=depths[-1]):
        if (r.case["start"], r.case["trains"]) != (GOOD, ALL):
            name = READOUT if r.case["start"] == GOOD else r.case["start"]
            name += f" (not a number after {len(r.value['losses'])} steps)" * (not math.isfinite(_end(r)))
            group = {READOUT: depths.index(depths[-1]) + 2, ORDINARY[0]: 6}.get(name, 1)
            curves.append(_curve(r, f"{depths[-1]} layers, {name}", group, "second"))
    return Panel(
        "D  learning, one seed",
        "step",
        "loss, mean of five steps",
        tuple(curves),
        levels=(results[0].value["chance"],),
    )


def _curve(run: Result, label: str, group: int, role: str) -> Curve:
    losses = run.value["losses"]
    smooth = np.convolve(losses, np.ones(5) / 5, "valid") if len(losses) > 5 else np.array(losses)
    return Curve(label, np.arange(len(smooth)), smooth, group, role)
