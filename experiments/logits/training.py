"""One run: a task, a method, a rate, a seed; the loss at the end, and how far each step moved the logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

import edgewise

from .optimizers import optimizers
from .tasks import SUBJECTS, Batch, Subject, batches, held_out, network

BATCH = 32
WARMUP = 0.1  # of all steps


def trained(case: dict[str, Any]) -> dict[str, Any]:
    """What became of a case: task, base, variant, setting, rate, seed, steps, schedule.

    end: held-out loss, at most twice that of a uniform guess, which also stands for no number.
    reached: the first step at which the mean of ten losses is below 0.1.
    change: RMS logit change per step of the head that changed most, before a bound: median over the first half of the
    steps, and largest. bounded: the share of steps at which a bound acted.
    """
    subject = SUBJECTS[case["task"]]
    torch.manual_seed(case["seed"])
    model = network(subject, qk_norm=case["variant"] == "qk_norm")
    parameters = list(model.parameters())
    chosen = optimizers(model, case["base"], case["variant"], case["setting"], case["rate"])
    shape = schedule(case["schedule"], case["steps"])
    schedulers = [LambdaLR(optimizer, shape) for optimizer in chosen]
    stream, losses, changes = batches(subject.stream, BATCH, case["seed"]), [], []
    for t in range(case["steps"]):
        loss = loss_of(model, subject, next(stream))
        losses.append(loss.detach())
        if not math.isfinite(losses[-1]):
            break
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        if case["variant"] == "clip":
            torch.nn.utils.clip_grad_norm_(parameters, case["setting"])
        watch = chosen[0] if isinstance(chosen[0], edgewise.optim.LogitTrust) else None
        if watch is not None and case["variant"] == "plain":
            watch.enabled = t % 5 == 0  # to look is not free
        for mover in (*chosen, *schedulers):
            mover.step()
        if watch is not None and watch.enabled:
            changes.append(_change(watch))
    return _outcome(model, subject, torch.stack(losses).numpy(), changes)


def schedule(kind: str, steps: int) -> Callable[[int], float]:
    """What multiplies the rate at step t: nothing, or up over a tenth of the steps and down to zero, linearly."""
    if kind == "constant":
        return lambda t: 1.0
    up = max(round(WARMUP * steps), 1)
    return lambda t: min((t + 1) / up, (steps - t) / (steps - up + 1))


def loss_of(model: nn.Module, subject: Subject, batch: Batch) -> Tensor:
    inputs, labels = batch
    logits, answers = model(inputs), subject.answers
    logits = logits if answers is None else logits[:, -answers:]
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _change(trust: edgewise.optim.LogitTrust) -> Tensor:
    """(2,): the largest predicted change of a head's logits before it was bounded, about; 1 if any was bounded."""
    moved, scales = (torch.cat(list(kept.values())) for kept in (trust.predicted, trust.scales))
    return torch.stack([(moved / scales).max(), (scales.min() < 1).float()])


def _outcome(model: nn.Module, subject: Subject, losses: np.ndarray, changes: list[Tensor]) -> dict[str, Any]:
    with torch.no_grad():
        end = float(loss_of(model, subject, held_out(subject.stream)))
    chance = math.log(subject.network["outputs"])
    smooth = np.convolve(losses, np.ones(10) / 10, "valid") if len(losses) >= 10 else np.array([])
    below = np.flatnonzero(smooth < 0.1)
    found = {
        "end": min(end, 2 * chance) if math.isfinite(end) else 2 * chance,
        "finite": math.isfinite(end),
        "reached": int(below[0]) + 10 if len(below) else None,
        "losses": [_short(value) for value in losses[:: max(len(losses) // 12, 1)]],
    }
    if changes:
        size, bounded = torch.stack(changes).nan_to_num(posinf=1e9).numpy().T
        found["change"] = [_short(np.median(size[: len(size) // 2 + 1])), _short(size.max())]
        found["bounded"] = _short(bounded.mean())
    return found


def _short(value: float) -> float | None:
    """Three digits are enough for a picture."""
    return float(f"{value:.3g}") if math.isfinite(value) else None
