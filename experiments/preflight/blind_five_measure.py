"""What every mistake of the fifth list costs, in plain torch: both trained alike, judged on batches never trained on.

python -m experiments.preflight.blind_five_measure [--only NAME] [--steps 200]   writes blind_five_costs.json
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments.preflight import blind_five

COSTS = Path(__file__).with_name("blind_five_costs.json")


def train(setup: dict[str, Any], steps: int) -> list[float]:
    """Its own loop, or zero_grad, backward and step."""
    model, optimizer, batches = setup["model"], setup["optimizer"], setup["batches"]
    loss = setup.get("loss") or (lambda model, batch: model(**batch).loss)
    losses = []
    torch.manual_seed(1)
    model.train()
    for k in range(steps):
        batch = batches[k % len(batches)]
        if "step" in setup:
            value = setup["step"](model, optimizer, batch, k)
        else:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
        losses.append(float(value))
    return losses


def judge_of(setup: dict[str, Any]) -> Callable[[Any], float]:
    """Its own judge, or its loss on the batches that are kept."""
    if "judge" in setup:
        return setup["judge"]
    loss = setup.get("loss") or (lambda model, batch: model(**batch).loss)
    return lambda model: sum(float(loss(model, batch)) for batch in setup["held"]) / len(setup["held"])


def judged(model: Any, judge: Callable[[Any], float]) -> float:
    torch.manual_seed(2)
    model.eval()
    with torch.no_grad():
        value = judge(model)
    return value if math.isfinite(value) else 99.0


def measured(case: Callable[[bool], dict[str, Any]], steps: int) -> dict[str, Any]:
    """Start, end and judgement of the twin and of the mistake; the cost is the difference of the judgements."""
    began = time.perf_counter()
    twin = case(False)
    judge = judge_of(twin)
    first = judged(twin["model"], judge)
    healthy = train(twin, steps)
    good = judged(twin["model"], judge)
    broken = case(True)
    own = train(broken, steps)
    bad = judged(broken["model"], broken.get("judge", judge) if "judge" in twin else judge)
    return {
        "cost": round(bad - good, 3),
        "twin": [round(first, 3), round(good, 3)],
        "broken": round(bad, 3),
        "losses": [round(v, 3) for v in (healthy[0], healthy[-1], own[0], own[-1])],
        "steps": steps,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--again", action="store_true", help="measure also what is known")
    options = parser.parse_args()
    torch.set_num_threads(1)
    costs = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    for name, case in blind_five.CASES.items():
        short = name.removeprefix("case_")
        if options.only not in name or (short in costs and not options.again):
            continue
        costs[short] = measured(case, options.steps)
        print(short, costs[short], flush=True)
        COSTS.write_text(json.dumps(costs, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
