"""What every mistake of the fourth list costs, in plain torch, on batches never trained on.

python -m experiments.mistakes.blind_four_measure [--only NAME] [--controls]   writes blind_four_costs.json
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from experiments.mistakes import blind_four

COSTS = Path(__file__).with_name("blind_four_costs.json")


def trained(case: dict[str, Any]) -> list[float]:
    case["model"].train()
    torch.manual_seed(1)
    return [float(case["step"](k)) for k in range(case.get("steps", 250))]


def judged(case: dict[str, Any], by: dict[str, Any]) -> float:
    """Its own judge, or the twin's loss on what is kept."""
    model, bench = case["model"].eval().float(), by["bench"]
    with torch.no_grad():
        if "judge" in by:
            value = by["judge"](model)
        else:
            held = bench.held()
            value = sum(float(bench.loss(*batch, model=model)) for batch in held) / len(held)
    return value if math.isfinite(value) else 99.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    costs = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    for name, make in vars(blind_four).items():
        kind, _, short = name.partition("_")
        if kind != ("control" if options.controls else "case") or options.only not in name:
            continue
        for architecture in blind_four.ONLY[short]:
            key, began = f"{short} {architecture}", time.perf_counter()
            if key in costs and not options.again:
                continue
            if options.controls:
                case = make(architecture)
                first, losses = judged(case, case), trained(case)
                print(
                    f"{key:40} {first:.3f} -> {judged(case, case):.3f}, {losses[0]:.3f} -> {losses[-1]:.3f}",
                    flush=True,
                )
                continue
            twin, broken = make(architecture, False), make(architecture, True)
            losses, own = trained(twin), trained(broken)
            good, bad = judged(twin, twin), judged(broken, twin)
            costs[key] = {
                "cost": round(bad - good, 3),
                "twin": round(good, 3),
                "losses": [
                    round(v, 3) if math.isfinite(v) else None
                    for v in (losses[0], losses[-1], own[0], own[-1])
                ],
                "seconds": round(time.perf_counter() - began, 1),
            }
            print(key, costs[key], flush=True)
            COSTS.write_text(json.dumps(costs, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
