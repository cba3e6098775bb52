"""The truth of the third population: 600 steps with warm-up and cosine at a grid of rates of factor 1.5.

best  the rate of the grid with the lowest final loss, and the parabola through it and its neighbors
edge  the largest rate of the grid whose final loss, as those of all rates between, is within 0.15 nat of the best

`python -m experiments.learning_rate.scheduled_truth --store FILE` appends one line per run and goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .networks import held_out, loss
from .scheduled_population import BLIND, DEVELOPMENT, Entry, batches, network, optimizer
from .truth import best_rate

STEPS, WARMUP = 600, 60
FACTOR, MARGIN = 1.5, 0.15
UNIT = {"adamw95": 1e-3, "adamw999": 1e-3, "sgd": 0.03, "muon": 0.01}  # rate of rung 0
FIRST = 2
LOWEST, HIGHEST, MOST = -12, 18, 14  # rungs, and runs of one network
LEARNS = {"text": 2.7, "images": 2.0}  # final losses; frequencies alone give 2.85 and 2.30


def multiplier(step: int, steps: int = STEPS, warmup: int = WARMUP) -> float:
    """Return the share of the rate in one step: linear warm-up, then half a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def train(entry: Entry, rate: float, steps: int = STEPS) -> float:
    """Return the final loss on held-out data; infinite if the run diverged."""
    model = network(entry).train()
    made, data = optimizer(entry, model, 1.0), batches(entry)
    shares = [group["lr"] for group in made.param_groups]
    losses: list[float] = []
    for step in range(steps):
        for group, share in zip(made.param_groups, shares, strict=True):
            group["lr"] = share * rate * multiplier(step, steps, steps // 10)
        value = loss(model, next(data))
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]) or losses[-1] > losses[0] + 20:
            return math.inf
        if step > steps // 3 and sum(losses[-20:]) / 20 > losses[0] + 1:
            return math.inf
        made.zero_grad()
        value.backward()
        if entry.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), entry.clip)
        made.step()
    with torch.no_grad():
        final = float(loss(model.eval(), held_out(entry.row())))
    return final if math.isfinite(final) else math.inf


def search(at: Callable[[int], float], learns: float) -> dict[int, float]:
    """Return final losses by rung: every second one until best and edge are inside, then those between."""
    known: dict[int, float] = {}

    def look(rung: int) -> float:
        rung = min(max(rung, LOWEST), HIGHEST)
        if rung not in known:
            known[rung] = at(rung)
        return known[rung]

    look(FIRST)
    look(FIRST + 2)
    if min(known.values()) > learns:
        for rung in (FIRST - 4, FIRST - 8, LOWEST, FIRST + 6):
            if look(rung) < learns:
                break
        else:
            return known
    while len(known) < MOST:
        before = len(known)
        best = min(known, key=lambda k: known[k])
        look(best - 2)
        look(best + 2)
        above = [k for k in sorted(known) if k > best]
        if all(known[k] <= known[best] + MARGIN for k in above):
            look(above[-1] + 2)
        if len(known) == before:
            break
    for _ in range(3):
        best = min(known, key=lambda k: known[k])
        look(best - 1)
        look(best + 1)
    best = min(known, key=lambda k: known[k])
    for low, high in zip(sorted(known), sorted(known)[1:], strict=False):
        if low >= best and known[high] > known[best] + MARGIN:
            if high - low > 1:
                look((low + high) // 2)
            break
    return known


def summary(entry: Entry, known: Mapping[int, float]) -> dict[str, Any]:
    """Return rates, losses, the best rate and the edge; neither if no rate learned."""
    rungs = sorted(known)
    rates = [UNIT[entry.optimizer] * FACTOR**k for k in rungs]
    losses = [known[k] for k in rungs]
    place = min(range(len(rungs)), key=losses.__getitem__)
    if losses[place] > LEARNS[entry.task]:
        return {"rates": rates, "losses": losses, "best": None, "edge": None, "lowest": losses[place]}
    last = place
    while last + 1 < len(rungs) and losses[last + 1] <= losses[place] + MARGIN:
        last += 1
    regular = 0 < place < len(rungs) - 1 and rungs[place + 1] - rungs[place - 1] == 2
    best, lowest = best_rate(rates, losses) if regular else (rates[place], losses[place])
    return {"rates": rates, "losses": losses, "best": best, "edge": rates[last], "lowest": lowest}


def read(store: Path) -> dict[str, dict[int, float]]:
    """Return the losses of all runs by network and rung."""
    runs: dict[str, dict[int, float]] = {}
    for line in store.read_text().splitlines() if store.exists() else ():
        row = json.loads(line)
        runs.setdefault(row["name"], {})[row["rung"]] = math.inf if row["loss"] is None else row["loss"]
    return runs


def finished(entry: Entry, runs: Mapping[int, float]) -> dict[str, Any] | None:
    """Return the summary if the search needs no run that is missing."""
    try:
        known = search(runs.__getitem__, LEARNS[entry.task])
    except KeyError:
        return None
    return summary(entry, known)


def measure(entry: Entry, store: Path) -> None:
    """Train what is missing of one network."""
    before = read(store).get(entry.name, {})

    def at(rung: int) -> float:
        if rung not in before:
            clock = time.process_time()
            final = train(entry, UNIT[entry.optimizer] * FACTOR**rung)
            row = {"name": entry.name, "rung": rung, "loss": final if math.isfinite(final) else None}
            with store.open("a") as file:
                file.write(json.dumps(row | {"seconds": round(time.process_time() - clock, 1)}) + "\n")
            before[rung] = final
        return before[rung]

    search(at, LEARNS[entry.task])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="JSONL, one line per run")
    parser.add_argument("--development", action="store_true", help="those that the rule was made on")
    arguments = parser.parse_args()
    for entry in DEVELOPMENT if arguments.development else sorted(BLIND, key=cost):
        measure(entry, arguments.store)


def cost(entry: Entry) -> float:
    """Return about what a step costs, so that the cheapest networks are finished first."""
    tokens = entry.batch * (24 if entry.task == "text" else 16)
    return entry.depth * (2e5 + tokens * (entry.width**2 + 50 * entry.width))


if __name__ == "__main__":
    main()
