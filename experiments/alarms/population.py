"""The runs that thresholds were chosen on: `python -m experiments.alarms.population` writes their list.

80 failing runs, 32 of them driven, and 64 healthy ones, on text and images, at several depths, widths, norms and
rates. Thresholds were chosen on odd seeds; even ones were a first report, which `held_out.py` has taken the place of.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
SHAPES = ({"depth": 2, "width": 32, "heads": 2}, {"depth": 3, "width": 64, "heads": 4})
TASKS = {"bytes": 4, "digits": 16}  # and the size of a batch
FRESH = 5  # a seed that was added, and trained, after the runs with even seeds had been looked at
DRIVEN: dict[str, dict[str, Any]] = {
    "rate ramped": {"failure": "rate ramped"},
    "logits ramped": {"failure": "logits ramped"},
    "stream ramped": {"failure": "stream ramped"},
    "float16 overflow": {"failure": "stream ramped", "e_fold": 15, "half_precision": True},
}
UNDRIVEN: dict[str, dict[str, Any]] = {
    "rate too high": {"failure": "none", "rate": 0.1},
    "no warm-up": {"failure": "none", "norm": "post", "depth": 6, "rate": 5e-3},
    "sharp start at a high rate": {"failure": "sharp start", "rate": 0.02},
    "post-norm too deep": {"failure": "none", "norm": "post", "depth": 12, "rate": 3e-3},
    "bad batch": {"failure": "bad batch"},
    "dead head": {"failure": "dead head"},
}
CAUSES = {  # which alarms name the cause
    "rate ramped": ["update_too_large", "exploding_gradient"],
    "logits ramped": ["logit_growth", "entropy_collapse"],
    "stream ramped": ["update_too_large", "overflow_ahead"],
    "float16 overflow": ["overflow_ahead", "update_too_large"],
    "rate too high": ["update_too_large", "rank_collapse", "logit_growth", "loss_spike"],
    "no warm-up": ["update_too_large", "rank_collapse"],
    "sharp start at a high rate": ["logit_growth", "entropy_collapse"],
    "post-norm too deep": ["rank_collapse"],
    "bad batch": ["bad_batch"],
    "dead head": ["dead_head"],
    "query-key rate": ["logit_growth", "entropy_collapse"],
}


def population() -> list[dict[str, Any]]:
    """Every run as a case for `training.trained`, with its name and which half of the study it is in."""
    runs = []
    for (name, change), task, shape, seed in product((DRIVEN | UNDRIVEN).items(), TASKS, SHAPES, (1, 2)):
        runs.append(_run(name, task, {**shape, **change}, seed, 400))
    for task, shape, norm, rate, seed in product(TASKS, SHAPES, ("pre", "post"), (3e-4, 1e-3), (1, 2, 3, 4)):
        runs.append(_run("healthy", task, {**shape, "norm": norm, "rate": rate}, seed, 2000))
    for name, change in (DRIVEN | UNDRIVEN).items():
        runs.append(_run(name, "digits", {**SHAPES[0], **change}, FRESH, 400))
    for norm, rate in product(("pre", "post"), (3e-4, 1e-3)):
        runs.append(_run("healthy", "digits", {**SHAPES[0], "norm": norm, "rate": rate}, FRESH, 2000))
    return runs


def _run(name: str, task: str, change: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    usual = {"task": task, "batch": TASKS[task], "norm": "pre", "rate": 2e-3, "failure": "none"}
    half = "fresh" if seed >= FRESH else "chosen on" if seed % 2 else "reported"
    return {**usual, **change, "seed": seed, "steps": steps, "name": name, "half": half}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(run) for run in population())
    FILE.write_text(f'{{"causes": {json.dumps(CAUSES)},\n"runs": [\n{lines}\n]}}\n')
