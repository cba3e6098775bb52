"""The forecast on networks it has never seen: 162 of eleven kinds, scored before they are trained.

`population.json` fixes the networks, this file what is done to them and what the outcomes are called; both were
committed before the first run.

Each network gets three rates on one seed (each 30 % of the steps, the best one all), a second seed at the best rate,
and where it did not train one rate beyond: three times the largest where that was the best, else a third of the best.
Steps: twice those that the slowest healthy control (4 blocks of width 48) needs to half its chance loss, 50 on bytes
(OPT of range 0.06) and on digits (BERT of 0.08, ViT of 0.1). AdamW, the rate rising over the first 8 % of the steps
and constant from there.

trained     the last ten losses, mean of both seeds at the best rate, are below half of chance, log(256)/2 or log(10)/2
wrong rate  not trained, but the rate beyond is, or a run was below half of chance and left it again
slow        neither, but the loss still falls: a line through the second half of the best run has a slope of more than
            three standard errors, and meets half of chance within five times the steps
dead        all others
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import torch

from edgewise.study.train import TRAINS, TrainingRun, Tuned, seeded, thinned, train

from .held_out_networks import network, task_of
from .held_out_scores import compact, scores
from .population import FILE

TOLERANCE = 0.001  # of the largest number in an entry; losses are stored with three digits after the point
STEPS = {"bytes": 100, "digits": 100}
PREDICTIONS = 256  # bytes per batch
IMAGES = {16: 32, 64: 16}  # by tokens
RATES = {"bytes": [1e-3, 3e-3, 1e-2], "digits": [3e-4, 1e-3, 3e-3]}
TRIAL, RISE = 0.3, 0.08
BEYOND = 3.0
CURVE = 32
SMALL = {"depth": 2, "tokens": 16}


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """The whole list; small: the first network of two kinds with two blocks, 8 steps, one rate."""
    listed = json.loads(FILE.read_text())
    if scale == "full":
        return [case | {"steps": STEPS[case["task"]], "rates": RATES[case["task"]]} for case in listed]
    first = {case["kind"]: case for case in reversed(listed)}
    few = [first[kind] | SMALL for kind in ("gpt2", "paper")]
    return [case | {"steps": 8, "rates": RATES[case["task"]][:1]} for case in few]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Scores before training, then every run."""
    torch.set_num_threads(1)
    data = task_of(case)
    before = scores(seeded(network, case["seed"], case)(), data, case)
    tuned = _train(case, case["seed"], case["rates"])
    second = _train(case, case["seed"] + 500, [tuned.best.rate]).best
    value = {
        "scores": compact(before, "pooled" if reads_the_mean(case) else "token"),
        "chance": round(data.chance, 6),
        "rate": tuned.best.rate,
        "best": _run(tuned.best),
        "second": _lowest(_run(second)),
        "beyond": None,
        "early": _number(
            sum(tuned.best.losses[16:20]) / 4 if len(tuned.best.losses) >= 20 else tuned.best.losses[-1]
        ),
        "gradient_norm": _number(tuned.best.first_gradient_norm),
    }
    if not (tuned.best.final() + second.final()) / 2 < TRAINS * data.chance:
        value["beyond"] = _lowest(
            _run(_train(case, case["seed"], [_beyond(tuned.best.rate, case["rates"])]).best)
        )
    return value


def reads_the_mean(case: dict[str, Any]) -> bool:
    return case["task"] == "digits" and case["kind"] not in ("bert", "vit")


def _train(case: dict[str, Any], seed: int, rates: list[float]) -> Tuned:
    data = task_of(case)
    size = max(2, PREDICTIONS // case["tokens"]) if case["task"] == "bytes" else IMAGES[case["tokens"]]
    return train(
        seeded(network, seed, case),
        partial(data.batches, size, seed),
        rates=rates,
        steps=case["steps"],
        trial=TRIAL,
        schedule=_rise,
    )


def _rise(fraction: float) -> float:
    return min(1.0, (fraction + 0.01) / (RISE + 0.01))


def _beyond(best: float, rates: list[float]) -> float:
    return best * BEYOND if best == max(rates) else best / BEYOND


def _run(run: TrainingRun) -> dict[str, Any]:
    return {
        "rate": _number(run.rate),
        "final": _number(run.final()),
        "diverged": run.diverged,
        "curve": [_number(loss) for loss in thinned([x for x in run.losses if x == x], CURVE)],
    }


def _lowest(run: dict[str, Any]) -> dict[str, Any]:
    """Of a run that only has to show whether it was ever below a loss."""
    losses = [loss for loss in run["curve"] if loss is not None]
    return {"final": run["final"], "diverged": run["diverged"], "curve": [min(losses)] if losses else []}


def _number(value: float | None) -> float | None:
    """Five digits; None for what is not a finite number."""
    return None if value is None or not abs(value) < float("inf") else float(f"{value:.5g}")


def claim(results: list[Any]) -> Any:
    from . import held_out_report

    return held_out_report.claim(results)


def draw(results: list[Any]) -> Any:
    from . import held_out_figure

    return held_out_figure.figure(results)
