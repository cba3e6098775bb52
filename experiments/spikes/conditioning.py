"""Does a well conditioned start stay so in training, and who is to blame for loss spikes?

Small transformers start before, at and beyond the edge, train on digits at a moderate and at a large rate in three
precisions, and are watched at every step: both exponents, the condition of the softmax, the size of the updates.
"""

from __future__ import annotations

import math
import tempfile
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import edgewise
from edgewise.nets import build
from edgewise.study import Result, rounded, tasks

from .precision import SCALES, round_linears
from .spike_report import judge, picture

TOLERANCE = 0.003  # of the largest number in an entry; seeds scatter by 0.026 or more
# attention strength, MLP strength, gain of the MLP's first matrix: by theory the totals over eight blocks (angle,
# pooled relative gradient) are (-5.1, 2.2), (-0.1, 0.6) and (0.0, 8.7); four blocks are run
STARTS = {"before": (0.6, 0.6, 0.4), "at": (0.2, 0.3, 1.5), "beyond": (0.3, 0.7, 8.0)}
RATES = {"moderate": 1e-3, "large": 1.2e-2}
PRECISIONS = ("float32", "bfloat16", "float16")
BATCH = 16
RISE = 0.3  # nats above the lowest mean of five steps: what moved before is kept of these runs alone


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Every start, rate and precision, six seeds; small: two blocks, 12 steps, the edge alone."""
    full = scale == "full"
    sizes = {"depth": 4, "steps": 80} if full else {"depth": 2, "steps": 12}
    return [
        {"start": start, "rate": rate, "precision": precision, "seed": seed, **sizes}
        for seed in range(6 if full else 1)
        for start in (STARTS if full else ("at",))
        for rate in RATES
        for precision in (PRECISIONS if full else ("float32", "float16"))
    ]


def network(case: dict[str, Any]) -> torch.nn.Module:
    """x <- sqrt(1 - a^2) x + a branch(norm(x)), tanh, two heads, width 48."""
    attention, mlp, gain = STARTS[case["start"]]
    data = tasks.task("digits")
    knobs = {
        "depth": case["depth"],
        "width": 48,
        "mlp_width": 96,
        "heads": 2,
        "activation": "tanh",
        "norm": "pre",
        "attention_branch": attention,
        "attention_skip": math.sqrt(1 - attention**2),
        "mlp_branch": mlp,
        "mlp_skip": math.sqrt(1 - mlp**2),
        "mlp_in_gain": gain,
        "tokens": data.tokens,
    }
    torch.manual_seed(case["seed"])
    model = build(
        edgewise.transformer(**knobs),
        inputs=data.inputs,
        outputs=data.outputs,
        vectors=True,
        pooled=True,
        readout_gain=0.25,
    )
    return round_linears(model, case["precision"])


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Losses of every step, and along the run what the monitor saw; of calm runs no more than the figures need."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        losses, skipped = _train(case, folder)
        seen = _seen(folder, case["depth"])
    if not _rises(losses):
        exponents = case["precision"] == "float32" or case["start"] == "at"
        seen = {name: seen[name] for name in (("step", "angle", "gradient") if exponents else ())}
    return {"loss": rounded(losses, 4), "skipped": skipped, **seen}


def _rises(losses: list[float]) -> bool:
    mean = np.convolve(losses, np.ones(5) / 5, "valid")
    return bool((mean - np.minimum.accumulate(mean) > RISE).any())


def _train(case: dict[str, Any], folder: str) -> tuple[list[float], int]:
    model, data, scale = network(case), tasks.task("digits"), SCALES[case["precision"]]
    optimizer = torch.optim.AdamW(model.parameters(), RATES[case["rate"]], weight_decay=0.01)
    losses, skipped, batches = [], 0, data.batches(BATCH, case["seed"])
    with edgewise.watch(model, to=folder, everything=True, quiet=True, optimizer=optimizer):
        for _ in range(case["steps"]):
            loss = model(*next(batches))[0]
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            (scale * loss).backward()
            if not all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None):
                skipped += 1
                continue
            for p in model.parameters():
                if p.grad is not None:
                    p.grad /= scale
            optimizer.step()
    return losses, skipped


def _seen(folder: str, depth: int) -> dict[str, Any]:
    """Total log-changes over the depth and the extremes over the blocks, of every stored step."""
    rows, last = edgewise.read(folder, frame=False), f"block.{depth - 1}"
    change = {name: np.log(rows[f"{last}.{name}"] / rows[f"embed.{name}"]) for name in ("separation", "norm")}
    worst = {
        name: np.max([rows[f"block.{i}.{name}"] for i in range(depth)], axis=0)
        for name in ("softmax_condition", "largest_logit")
    }
    sizes = {name: np.log(np.maximum(rows[name], 1e-12)) for name in ("update_ratio", "gradient_norm")}
    seen = {
        "step": rows["step"],
        "angle": change["separation"],
        "gradient": rows["embed.gradient_growth"] - change["norm"],
        "condition": worst["softmax_condition"],
        "logit": np.log(worst["largest_logit"]),
        "update": sizes["update_ratio"],
        "norm": sizes["gradient_norm"],
    }
    return {
        name: [None if not math.isfinite(v) else round(float(v), 3) for v in row]
        for name, row in seen.items()
    }


def claim(results: list[Result]) -> Any:
    return judge(results)


def draw(results: list[Result]) -> Figure:
    return picture(results)
