"""Measure what each mistake of the third blind list costs: held-out loss after the run, broken minus healthy.

python -m experiments.mistakes.blind_three_measure [NAME ...]

Writes blind_three_costs.json and continues where it stopped.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import torch

from . import blind_three
from .blind_three_benches import COSTS


def finished(case: dict[str, Any]) -> tuple[float, float]:
    """First loss, and the held-out loss at the end; 99 if it is not finite."""
    torch.manual_seed(1)
    losses = [float(case["step"](k)) for k in range(case["steps"])]
    case["model"].eval()
    with torch.no_grad():
        value = float(case["held"]())
    return round(losses[0], 3), round(min(value, 99.0), 3) if math.isfinite(value) else 99.0


def main() -> None:
    torch.set_num_threads(1)
    known = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    for name, make in list(vars(blind_three).items()):
        kind, _, short = name.partition("_")
        if kind not in ("case", "control") or (sys.argv[1:] and short not in sys.argv[1:]):
            continue
        for architecture in blind_three.ONLY.get(short, blind_three.ARCHITECTURES):
            key = f"{short} {architecture}"
            if key in known and not sys.argv[1:]:
                continue
            began = time.perf_counter()
            try:
                if kind == "control":
                    first, end = finished(make(architecture))
                    row = {"first": first, "end": end}
                else:
                    first, twin = finished(make(architecture, False))
                    _, broken = finished(make(architecture, True))
                    row = {"first": first, "twin": twin, "broken": broken, "cost": round(broken - twin, 3)}
            except Exception as error:  # noqa: BLE001  said, and repaired before the list is landed
                print(f"{key:44} {type(error).__name__}: {error}", flush=True)
                continue
            print(f"{key:44} {row} {time.perf_counter() - began:.1f} s", flush=True)
            known[key] = row
            COSTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
