"""One watched training of the study: a small network on real text or images, healthy or failing in a known way.

Every row is kept in a folder, so that detectors can be tried on it again without training. The loss turns where its
smoothed value (mean of 10 steps) is 0.5 above its minimum for 5 steps, or is not a number.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgewise import watch
from edgewise.files import whole_file
from edgewise.study.tasks import task

from .failures import FAILURES
from .network import Network

SMOOTH, TURN, LASTS = 10, 0.5, 5
END = 50  # steps whose mean loss is the one at the end


def trained(case: dict[str, Any], folder: Path, rehearsed: Any = None) -> dict[str, Any]:
    """Train one case under watch, every step sampled into `folder`: when the loss turned and where it ended.

    A case may ask for the default budget instead, by `sampling`.
    rehearsed: what `edgewise.learning_rate` said about this network, where steps are held against its edge.
    """
    torch.manual_seed(case["seed"])
    data = task(case["task"])
    model = Network(
        data,
        case["depth"],
        case["width"],
        case["heads"],
        case["norm"] == "pre",
        dropout=case.get("dropout", 0.0),
        first=case.get("readout") == "first",
    )
    failure = FAILURES[case["failure"]](model, case)
    optimizer = optimizer_of(model, case)
    criterion, losses = nn.CrossEntropyLoss(), []
    batches = data.batches(case["batch"], case["seed"])
    half = torch.autocast("cpu", torch.float16) if case.get("half_precision") else nullcontext()
    everything = case.get("sampling") != "default"
    with watch(
        model,
        to=folder,
        everything=everything,
        criterion=criterion,
        quiet=True,
        optimizer=optimizer,
        state_limit=0,
        rate=rehearsed,
    ) as handle:
        for step in range(case["steps"]):
            schedule(optimizer, case, step)
            x, y = failure(step, optimizer, *next(batches))
            optimizer.zero_grad()
            with half:
                loss = criterion(model(x).reshape(-1, data.outputs).float(), y.reshape(-1))
            loss.backward()
            if "clip" in case:
                nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
            optimizer.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                break
    end = sum(losses[-END:]) / len(losses[-END:])
    outcome = {
        "turn": turned(losses),
        "steps": len(losses),
        "end": end if math.isfinite(end) else None,
        "chance": data.chance,
        "error": handle.error,
    }
    if not everything:
        budget = handle.budget
        alarms = [
            {"kind": a.kind.value, "step": a.step, "place": a.place, "since": a.since} for a in handle.alarms
        ]
        times = {"step_ms": 1e3 * budget.elapsed / budget.steps, "sample_ms": 1e3 * budget.sample_seconds}
        outcome |= {"alarms": alarms, "rows": budget.samples, "price": budget.price, **times}
    with whole_file(folder / "outcome.json") as file:
        file.write(json.dumps(outcome).encode())
    return outcome


def optimizer_of(model: Network, case: dict[str, Any]) -> torch.optim.Optimizer:
    """The one that the case names; Adam where it names none."""
    kind, parameters = case.get("optimizer", "adam"), model.parameters()
    if kind == "adamw":
        return torch.optim.AdamW(parameters, case["rate"], weight_decay=0.1)
    if kind == "sgd":
        return torch.optim.SGD(parameters, case["rate"], momentum=0.9)
    return torch.optim.Adam(parameters, case["rate"])


def schedule(optimizer: torch.optim.Optimizer, case: dict[str, Any], step: int) -> None:
    """A linear warm-up, then a cosine to a tenth of the rate at the end, where the case has a warm-up."""
    if "warm_up" not in case:
        return
    done = max(0.0, step - case["warm_up"]) / max(1, case["steps"] - case["warm_up"])
    factor = min(1.0, (step + 1) / case["warm_up"]) * (0.55 + 0.45 * math.cos(math.pi * done))
    for group in optimizer.param_groups:
        group["lr"] = case["rate"] * factor


def turned(losses: list[float]) -> int | None:
    """The first step of the rise, or None."""
    means = [sum(losses[max(0, i - SMOOTH + 1) : i + 1]) / min(i + 1, SMOOTH) for i in range(len(losses))]
    lowest, away = math.inf, 0
    for step, mean in enumerate(means):
        if not math.isfinite(mean):
            return step
        lowest = min(lowest, mean)
        away = away + 1 if mean > lowest + TURN else 0
        if away == LASTS:
            return step - LASTS + 1
    return None
