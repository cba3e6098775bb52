"""The sixth blind list: mistakes from public bug reports, each with its twin, and unusual but healthy controls.

Its author has read neither the check nor its documentation, nor the earlier lists. What is true of each mistake is in
`blind_six_truths.tsv`. What each costs:
`python -m experiments.preflight.blind_six [NAME]` trains both arms alike and writes `blind_six_costs.json`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import torch

from experiments.preflight import blind_six_controls, blind_six_signals, blind_six_steps, blind_six_text
from experiments.preflight.blind_six_kit import COSTS, COSTS_FILE, Setup, mistake

for _part in (blind_six_text, blind_six_signals, blind_six_steps, blind_six_controls):
    globals().update({n: mistake(v) for n, v in vars(_part).items() if n.startswith("case_")})
    globals().update({n: v for n, v in vars(_part).items() if n.startswith("control_")})


def loss_of(setup: Setup) -> Any:
    return setup.get("loss") or (lambda model, batch: model(**batch).loss)


def judged(setup: Setup, twin: Setup) -> float:
    """The twin's judgement, or its loss on batches that were held out; 99 where it is not finite."""
    loss, held, model = loss_of(twin), twin["held"], setup["model"]
    model.eval()
    with torch.no_grad():
        if "judge" in setup:
            value = setup["judge"](model)
        else:
            value = sum(float(loss(model, batch)) for batch in held) / len(held)
    return round(value, 3) if math.isfinite(value) else 99.0


def trained(setup: Setup, steps: int) -> list[float | None]:
    """First and last loss of a short training by its own loop or the usual one."""
    model, optimizer, batches, loss, told = (
        setup["model"],
        setup["optimizer"],
        setup["batches"],
        loss_of(setup),
        [],
    )
    torch.manual_seed(0)
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
        told.append(round(float(value), 3) if value.isfinite() else None)
    return [told[0], told[-1]]


def both(make: Any, steps: int, seed: int = 6) -> dict[str, Any]:
    """A twin and its mistake, trained alike: the judgement of the one minus that of the other."""
    arms = []
    for broken in (False, True):
        torch.manual_seed(seed)
        arms.append(make.__wrapped__(broken))
    told = [judged(arms[0], arms[0])]
    losses = [loss for arm in arms for loss in trained(arm, steps)]
    told += [judged(arm, arms[0]) for arm in arms]
    return {"cost": round(told[2] - told[1], 3), "judged": told, "losses": losses}


def cost(name: str, steps: int = 200) -> dict[str, Any]:
    """Of a mistake, the mean of four seeds where the first says under 0.2. Of a control, how far its loss fell."""
    began, make = time.perf_counter(), globals()[name]
    torch.manual_seed(0)
    if name.startswith("case_"):
        row = both(make, steps)
        if row["cost"] < 0.2:
            row["seeds"] = [row["cost"], *(both(make, steps, seed)["cost"] for seed in (7, 8, 9))]
            row["cost"] = round(sum(row["seeds"]) / 4, 3)
    else:
        setup = make()
        told = [judged(setup, setup)]
        row = {"losses": trained(setup, steps), "judged": [*told, judged(setup, setup)]}
        row["fell"] = round(row["judged"][0] - row["judged"][1], 3)
    return row | {"steps": steps, "seconds": round(time.perf_counter() - began, 1)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    for _name in [n for n in globals() if n.startswith(("case_", "control_"))]:
        short = _name.removeprefix("case_")
        if wanted in _name if wanted else short not in COSTS:
            COSTS[short] = cost(_name)
            print(short, COSTS[short], flush=True)
            lines = (f"{json.dumps(n)}: {json.dumps(COSTS[n])}" for n in sorted(COSTS))
            COSTS_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
