"""The forecast, runs: 312 deep small transformers trained from starts in both phases.

Two tasks (digits as 16 patches, bytes of film reviews), three families of blocks (the paper's, GPT-2-like,
Llama-like), two optimizers, 26 starts each, the rate by successive halving among three or four.

*Trains* means: final loss below half the chance loss, log(10)/2 on digits and log(256)/2 on bytes. This and the starts
were fixed before the sweep; steps, rates and the second look on digits were chosen after seeing the first runs.
"""

from __future__ import annotations

from typing import Any

import torch

from edgewise.study import tasks
from edgewise.study.train import TRAINS, evaluate, seeded, thinned, train, trapezoid

from . import training_report
from .starts import FAMILIES, network, starts

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
STARTS = 26
STEPS = {"digits": 200, "bytes": 160}
BATCH = {"digits": 16, "bytes": 8}
TRIAL = {"digits": 0.2, "bytes": 0.15}
RATES = {
    "digits": {"sgd": [0.003, 0.01, 0.03], "adamw": [3e-4, 1e-3, 2.5e-3]},
    "bytes": {"sgd": [0.003, 0.02, 0.08, 0.3], "adamw": [2e-4, 8e-4, 2.5e-3, 8e-3]},
}
SECOND_LOOK = ("digits",)  # before a network is called untrainable, a third of its rate is tried
CURVE = 32  # means along a run; every second one is recorded, the last one included


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Every start under both optimizers; small: the first start of each family on each task, 2 blocks, 8 steps."""
    full = scale == "full"
    runs = []
    for start in range(STARTS if full else 1):
        for task in STEPS:
            for family in FAMILIES:
                knobs = starts(family, STARTS)[start] | ({} if full else {"depth": 2})
                for optimizer in RATES[task] if full else ("adamw",):
                    runs.append(
                        {
                            "task": task,
                            "family": family,
                            "start": start,
                            "optimizer": optimizer,
                            "knobs": knobs,
                            "steps": STEPS[task] if full else 8,
                            "batch": BATCH[task],
                            "trial": TRIAL[task],
                            "rates": RATES[task][optimizer] if full else [1e-3, 2.5e-3],
                            "seed": start,
                        }
                    )
    return runs


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Train one network; losses, the chosen rate and what the others reached when they were left."""
    torch.set_num_threads(1)
    data = tasks.task(case["task"])
    tuned = train(
        seeded(network, case["seed"], case["knobs"], data),
        lambda: data.batches(case["batch"], case["seed"]),
        optimizer=case["optimizer"],
        rates=case["rates"],
        steps=case["steps"],
        trial=case["trial"],
        second_look=TRAINS * data.chance if case["task"] in SECOND_LOOK else None,
        schedule=trapezoid,
    )
    best, tried = tuned.best, [[_number(rate), steps, _number(loss)] for rate, steps, loss in tuned.tried]
    held_out = evaluate(best.model, data.held_out(256 if data.pooled else 96))
    return {
        "final": _number(best.final()),
        "validation": _number(held_out),
        "diverged": best.diverged,
        "rate": _number(best.rate),
        "tried": tried,
        "early": _number(sum(best.losses[16:20]) / 4 if len(best.losses) >= 20 else best.losses[-1]),
        "gradient_norm": _number(best.first_gradient_norm),
        "chance": round(data.chance, 6),
        "curve": [_number(loss) for loss in thinned(best.losses, CURVE)[::-2][::-1]],
    }


def _number(value: float | None) -> float | None:
    """Five digits; None for what is not a finite number."""
    return None if value is None or not abs(value) < float("inf") else float(f"{value:.5g}")


def claim(results: list[Any]) -> Any:
    return training_report.claim(results)


def draw(results: list[Any]) -> Any:
    return training_report.draw(results)
