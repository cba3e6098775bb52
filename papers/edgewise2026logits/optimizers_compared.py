"""Does bounding or preconditioning the logit change help? Three plain optimizers and what goes around them.

Two causal blocks, two heads, width 32 on retrieval, digits and bytes of film reviews; constant rates, every rate of a
grid for every method and seed, so that each method is judged at its best rate and over the whole grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

import edgewise
from edgewise.study import Claim, Result

from .optimizers import optimizers
from .tasks import batches, held_out, subject

TASKS = {"retrieval": 110, "digits": 40, "bytes": 40}  # steps
BASES = ("sgd", "adamw", "muon")
# A rate that works and one that is too high or nearly so: retrieval at 0.1 fails with Adam.
RATES = {
    (task, base): (0.1, 0.3) if base == "sgd" else (0.01, 0.1) if task == "retrieval" else (0.01, 0.03)
    for task in TASKS
    for base in BASES
}
VARIANTS = {
    "plain": "plain", "clip": "clipping 1.0", "qk_rate": "QK rate / 10", "qk_norm": "QK-norm",
    "trust": "LogitTrust 0.03", "preconditioner": "preconditioner",
}  # fmt: skip
CORE = ("plain", "trust", "preconditioner")
# All controls where failure is at stake; elsewhere plain against ours.
PLAN = (  # task, bases, variants, seeds
    ("retrieval", ("sgd", "adamw"), tuple(VARIANTS), 3), ("retrieval", ("muon",), CORE, 1),
    ("digits", ("adamw",), CORE, 3), ("bytes", ("adamw",), CORE, 3),
)  # fmt: skip
SEEDS = 3
BATCH = 32


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale != "full":
        return [
            dict(task="retrieval", base=base, variant=variant, rate=RATES["retrieval", base][0], seed=0, steps=4)
            for base in BASES
            for variant in VARIANTS
        ]
    return [
        dict(task=task, base=base, variant=variant, rate=rate, seed=seed, steps=TASKS[task])
        for task, bases, variants, seeds in PLAN
        for seed in range(seeds)
        for base in bases
        for rate in RATES[task, base]
        for variant in variants
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The loss now and then, at the end on held-out data, and the first step with a smoothed loss below 0.1."""
    torch.manual_seed(case["seed"])
    model = _network(case)
    chosen = optimizers(model, case["base"], case["variant"], case["rate"])
    stream = batches(case["task"], BATCH, case["seed"])
    losses: list[float] = []
    for _ in range(case["steps"]):
        loss = _loss(model, case["task"], next(stream))
        if not torch.isfinite(loss):
            break
        loss.backward()
        if case["variant"] == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in chosen:
            optimizer.step()
        model.zero_grad()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        end = float(_loss(model, case["task"], held_out(case["task"])))
    smooth = np.convolve(losses, np.ones(10) / 10, "valid") if len(losses) >= 10 else np.array([])
    below = np.flatnonzero(smooth < 0.1)
    chance = math.log(subject(case["task"]).network["outputs"])
    # A run that left the numbers is worth a uniform guess: nothing was learnt.
    return {"end": min(end, 2 * chance) if math.isfinite(end) else 2 * chance, "finite": math.isfinite(end),
            "steps_to_tenth": int(below[0]) + 10 if len(below) else None,
            "losses": [round(value, 4) for value in losses[::10]]}  # fmt: skip


def _network(case: dict[str, Any]) -> torch.nn.Module:
    about = subject(case["task"])
    knobs = dict(depth=2, width=32, heads=2, mlp_width=64, tokens=about.tokens, norm="pre", causal=about.causal)
    described = edgewise.transformer(**knobs, qk_norm=case["variant"] == "qk_norm")
    return edgewise.nets.transformer(described, **about.network)


def _loss(model: torch.nn.Module, task: str, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, labels = batch
    logits, answers = model(inputs), subject(task).answers
    logits = logits if answers is None else logits[:, -answers:]
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def table(results: Sequence[Result], task: str) -> dict[tuple[str, str], np.ndarray]:
    """End losses (rates, seeds) per method; not-a-number where a case is missing."""
    found: dict[tuple[str, str], np.ndarray] = {}
    for r in results:
        c = r.case
        if c["task"] == task:
            grid = found.setdefault((c["base"], c["variant"]), np.full((2, SEEDS), np.nan))
            grid[RATES[task, c["base"]].index(c["rate"]), c["seed"]] = r.value["end"]
    return found


def best(grid: np.ndarray) -> tuple[int, float, float]:
    """(rate index, median over seeds, range) at the rate whose median is lowest."""
    medians = [np.inf if np.isnan(row).all() else float(np.nanmedian(row)) for row in grid]
    i = int(np.argmin(medians))
    return i, medians[i], float(np.nanmax(grid[i]) - np.nanmin(grid[i]))


def claim(results: Sequence[Result]) -> Claim:
    tasks = [t for t in TASKS if any(r.case["task"] == t for r in results)]
    return Claim.all([part for task in tasks for part in _claims(task, table(results, task), _scale(results, task))])


def _scale(results: Sequence[Result], task: str) -> str:
    runs = [r for r in results if r.case["task"] == task]
    seeds, steps = len({r.case["seed"] for r in runs}), runs[0].case["steps"]
    return f"{task}: 2 blocks, width 32, {steps} steps of {BATCH}, {seeds} seeds, {len(runs)} runs"


def _claims(task: str, grids: dict[tuple[str, str], np.ndarray], scale: str) -> list[Claim]:
    """One statement per base: at the best rates ours beats plain by more than the seeds scatter; and at the highest."""
    made = []
    for base in BASES:
        if (base, "plain") not in grids:
            continue
        at_best = {v: best(grids[base, v]) for v in VARIANTS if (base, v) in grids}
        rates = RATES[task, base]
        high = max(i for i in range(2) if not np.isnan(grids[base, "plain"][i]).all())
        top = {v: float(np.nanmedian(grids[base, v][high])) for v in at_best}
        spread = max(at_best["plain"][2], 1e-4)
        helped = [v for v in ("trust", "preconditioner") if v in at_best and
                  at_best["plain"][1] - at_best[v][1] > spread]  # fmt: skip
        words = ", ".join(f"{VARIANTS[v]} {at_best[v][1]:.3g} (rate {rates[at_best[v][0]]:g})" for v in at_best)
        peak = ", ".join(f"{VARIANTS[v]} {top[v]:.3g}" for v in top)
        asked = f"{task}, {base}: LogitTrust or the preconditioner lower the end loss at the best rate by more than"
        found = f"Median end loss at the best rate: {words}. At the highest rate {rates[high]:g}: {peak}."
        numbers = {"best": {v: b[1] for v, b in at_best.items()}, "highest": top, "helped": helped}
        enough = not np.isnan(np.concatenate([grids[base, v] for v in at_best])).any()  # all rates, all seeds
        made.append(Claim(f"{asked} the seeds scatter.", found, scale, bool(helped) if enough else None, numbers))
    return made


def draw(results: Sequence[Result]) -> Figure:
    """End loss against rate, one row per task, one column per base; bars are the range over seeds."""
    tasks = [t for t in TASKS if any(r.case["task"] == t for r in results)]
    figure = Figure(figsize=(12, 3.4 * len(tasks) + 0.7), layout="constrained")
    axes = figure.subplots(len(tasks), len(BASES), squeeze=False)
    for row, task in zip(axes, tasks, strict=True):
        grids = table(results, task)
        for axis, base in zip(row, BASES, strict=True):
            shown = {v: grids[base, v] for v in VARIANTS if (base, v) in grids}
            axis.set_visible(bool(shown))
            _panel(axis, RATES[task, base], shown)
            seeds = max((int((~np.isnan(g)).any(axis=0).sum()) for g in shown.values()), default=0)
            axis.set_title(f"{task}, {base}, {seeds} seed{'s' * (seeds > 1)}")
            axis.set_ylabel("held-out loss at the end")
    axes[0, 0].legend(fontsize=7)
    scales = "\n".join(_scale(results, task) for task in tasks)
    figure.suptitle(f"{scales}\npoints: median over seeds, bars: range", fontsize=8)
    return figure


def _panel(axis: Any, grid_of_rates: Sequence[float], grids: dict[str, np.ndarray]) -> None:
    for variant, grid in grids.items():
        number = list(VARIANTS).index(variant)  # one colour everywhere
        known = ~np.isnan(grid).all(axis=1)
        rates = np.array(grid_of_rates)[known] * 1.06 ** (number - 2.5)  # side by side, to be seen
        middle = np.nanmedian(grid[known], axis=1)
        low, high = np.nanmin(grid[known], axis=1), np.nanmax(grid[known], axis=1)
        ours = variant in ("trust", "preconditioner")
        axis.errorbar(rates, middle, [middle - low, high - middle], label=VARIANTS[variant], marker="o", capsize=2,
                      markersize=4, linewidth=2.0 if ours else 1.0, color=f"C{number}")  # fmt: skip
    values = np.concatenate([grid.ravel() for grid in grids.values()]) if grids else np.ones(1)
    wide = np.nanmax(values) > 10 * np.nanmin(values)
    axis.set(xscale="log", yscale="log" if wide else "linear", xlabel="rate")
    axis.set_xticks(grid_of_rates, [f"{rate:g}" for rate in grid_of_rates])
    axis.xaxis.set_minor_formatter(lambda *_: "")
