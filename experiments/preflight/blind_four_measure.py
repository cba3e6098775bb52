"""Measure what each mistake of the fourth blind list costs: held-out loss after 150 steps, broken minus healthy.

python -m experiments.preflight.blind_four_measure [NAME ...]

Writes blind_four_costs.json, continues where it stopped, and also says whether twins and controls learn.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import torch

from experiments.preflight.blind_four_data import COSTS

from . import blind_four


def held(case: dict[str, Any]) -> float:
    case["model"].eval()
    with torch.no_grad():
        value = float(case["held"](case["model"]))
    case["model"].train()
    return value if math.isfinite(value) else 99.0


def trained(case: dict[str, Any], steps: int = 150) -> tuple[float, float]:
    """Held-out loss before and after the user's own training."""
    model, optimizer = case["model"], case.get("optimizer")
    before = held(case)
    torch.manual_seed(1)
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for k in range(steps):
        batch = case["stream"](k)
        if "step" in case:
            case["step"](model, optimizer, batch, k)
            continue
        optimizer.zero_grad()
        loss = case["loss"](model, batch) if "loss" in case else model(**batch).loss
        loss.backward()
        optimizer.step()
    return before, held(case)


def main() -> None:
    torch.set_num_threads(1)
    known = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    for name, make in list(vars(blind_four).items()):
        short = name.split("_", 1)[-1]
        if not name.startswith(("case_", "control_")) or (sys.argv[1:] and short not in sys.argv[1:]):
            continue
        if short in known and not sys.argv[1:]:
            continue
        began = time.perf_counter()
        torch.manual_seed(0)
        try:
            if name.startswith("control_"):
                before, after = trained(make())
                row = {"before": round(before, 3), "after": round(after, 3)}
            else:
                first, twin = trained(make(False))
                torch.manual_seed(0)
                _, broken = trained(make(True))
                row = {
                    "before": round(first, 3),
                    "twin": round(twin, 3),
                    "broken": round(broken, 3),
                    "cost": round(broken - twin, 3),
                }
        except Exception as error:
            print(f"{short:40} {type(error).__name__}: {error}", flush=True)
            if sys.argv[1:]:
                raise
            continue
        print(f"{short:40} {row} {time.perf_counter() - began:.1f} s", flush=True)
        known[short] = row
        COSTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
