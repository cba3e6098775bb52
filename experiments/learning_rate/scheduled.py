"""The third population, judged: rehearsals and their rivals against 600 steps with warm-up and cosine.

`--ask` writes what every method says where the truth is finished, cheapest first (resumable); without it the table is
printed from the two files.
The rivals: the best constant of each optimizer in hindsight, a rule of width and depth fitted on the other half, the
range test by Lightning's rule (steepest fall) and fastai's (a tenth of the minimum), the critical rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import edgewise
from edgewise.rehearsal import learning_rate_at

from .blind import wilson
from .finders import UNIT as NUDGE
from .finders import critical, swept
from .networks import loss
from .scheduled_population import BLIND, DEVELOPMENT, LIMITS, Entry, batches, network, optimizer
from .scheduled_truth import WARMUP, cost, finished, read
from .truth import loss_at

RANGE = {"adamw95": (1e-6, 1.0), "adamw999": (1e-6, 1.0), "sgd": (1e-5, 10.0), "muon": (1e-5, 10.0)}
METHODS = {
    "rehearsal": "rehearsal",
    "constant": "best constant of each optimizer, in hindsight",
    "width_depth": "rule of width and depth, fitted on the other half",
    "mup": "muP's rule, tuned on the development networks",
    "range_steepest": "range test, steepest fall (Lightning)",
    "range_minimum": "range test, minimum / 10 (fastai)",
    "critical": "critical rate from the curvature",
}


def rehearsed(entry: Entry) -> dict[str, Any]:
    """What `learning_rate` says on the first batches of the training."""
    clock = time.process_time()
    rate = edgewise.learning_rate(
        network(entry),
        list(itertools.islice(batches(entry), 40)),
        loss,
        progress=False,
        optimizer=lambda model: optimizer(entry, model),
        warmup=WARMUP,
        schedule="cosine",
        clip=entry.clip,
    )
    return {
        "best": rate.best,
        "edge": rate.edge,
        "reason": rate.reason,
        "passes": rate.passes,
        "seconds": round(time.process_time() - clock, 1),
        "guess": rate.guess,
        "rehearsals": [(r.rate, len(r.losses), r.loss, r.end, r.reason) for r in rate.rehearsals],
    }


def asked(entry: Entry) -> dict[str, Any]:
    """What every method that trains says."""
    low, high = RANGE[entry.optimizer]
    model = network(entry).train()
    others: dict[str, Any] = swept(model, batches(entry), optimizer(entry, model, low), low, high)
    model = network(entry).train()
    others["critical"] = critical(model, batches(entry), optimizer(entry, model, NUDGE), low)
    found = {"name": entry.name, "rehearsal": rehearsed(entry)} | others
    return found | {"transfer": transferred(entry)} if entry.transfer else found


def transferred(entry: Entry) -> dict[str, Any]:
    """What `learning_rate_at` says from a quarter of the width and half of the depth, twice that width, that depth."""
    rate = learning_rate_at(
        lambda width, depth: network(entry.sized(depth, width)),
        (entry.width, entry.depth),
        list(itertools.islice(batches(entry), 40)),
        loss,
        progress=False,
        optimizer=lambda model: optimizer(entry, model),
        warmup=WARMUP,
        schedule="cosine",
        clip=entry.clip,
    )
    return {"best": rate.best, "error": rate.error, "reason": rate.reason}


def constants(truths: Mapping[Entry, Mapping[str, Any]]) -> dict[str, float]:
    """Return the rate of each optimizer that is within a factor 2 of most of its networks, then nearest to all."""
    found = {}
    for kind in {entry.optimizer for entry in truths}:
        logs = [math.log(t["best"]) for e, t in truths.items() if e.optimizer == kind and t["best"]]
        grid = np.linspace(min(logs), max(logs), 200)
        key = [(sum(abs(x - y) <= math.log(2) for y in logs), -sum(abs(x - y) for y in logs)) for x in grid]
        found[kind] = math.exp(grid[max(range(len(grid)), key=key.__getitem__)])
    return found


def by_size(truths: Mapping[Entry, Mapping[str, Any]]) -> dict[Entry, float]:
    """Return for every network the rule log rate = a + b log width + c log depth (a of each optimizer), fitted on
    the networks of the other half."""
    entries, kinds = list(truths), sorted({entry.optimizer for entry in truths})

    def row(entry: Entry) -> list[float]:
        return [float(entry.optimizer == k) for k in kinds] + [math.log(entry.width), math.log(entry.depth)]

    found = {}
    for half in (0, 1):
        fitted = [e for i, e in enumerate(entries) if i % 2 != half and truths[e]["best"]]
        matrix, values = [row(e) for e in fitted], [math.log(truths[e]["best"]) for e in fitted]
        rule = np.linalg.lstsq(np.array(matrix), np.array(values), rcond=None)[0]
        found |= {e: math.exp(float(np.dot(rule, row(e)))) for e in entries[half::2]}
    return found


def narrow(entries: Sequence[Entry]) -> dict[Entry, float]:
    """Return muP's rule: the rate of the development networks of an optimizer, over the width for AdamW."""
    runs = read(Path(__file__).parent / "results" / "scheduled_development.jsonl")
    tuned = {e: t for e in DEVELOPMENT if (t := finished(e, runs.get(e.name, {}))) is not None and t["best"]}

    def power(kind: str) -> float:
        return 1.0 if kind.startswith("adamw") else 0.0

    found = {}
    for entry in entries:
        kind = entry.optimizer[:5]
        logs = [
            math.log(t["best"] * e.width ** power(kind)) for e, t in tuned.items() if e.optimizer[:5] == kind
        ]
        found[entry] = math.exp(sum(logs) / len(logs)) / entry.width ** power(kind)
    return found


def judged(rates: Mapping[Entry, float | None], truths: Mapping[Entry, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the factors to the best rate, nats given away and advice above the edge; none named is a miss."""
    factors, given, above, dead = [], [], 0, 0
    for entry, truth in truths.items():
        rate = rates[entry]
        if truth["best"] is None:
            dead += rate is not None
            continue
        factors.append(math.inf if rate is None else math.exp(abs(math.log(rate / truth["best"]))))
        if rate is not None:
            given.append(max(0.0, loss_at(rate, truth["rates"], truth["losses"]) - min(truth["losses"])))
            above += rate > truth["edge"]
    within = sum(f <= 2 for f in factors)
    return {
        "networks": len(factors),
        "within": within,
        "interval": wilson(within, len(factors)),
        "unnamed": sum(map(math.isinf, factors)),
        "median": float(np.median(factors)),
        "given": float(np.median(given)),
        "given90": float(np.quantile(given, 0.9)),
        "above": above,
        "dead_named": dead,
    }


def table(answers: Sequence[Mapping[str, Any]], truths: Mapping[Entry, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores of all methods."""
    by_name = {a["name"]: a for a in answers}
    best, sizes = constants(truths), by_size(truths)
    rates: dict[str, dict[Entry, float | None]] = {
        "rehearsal": {e: by_name[e.name]["rehearsal"]["best"] for e in truths},
        "constant": {e: best[e.optimizer] for e in truths},
        "width_depth": dict(sizes),
        "mup": dict(narrow(list(truths))),
    }
    for method in ("range_steepest", "range_minimum", "critical"):
        rates[method] = {e: by_name[e.name][method] for e in truths}
    return {method: judged(row, truths) for method, row in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--ask", action="store_true")
    parser.add_argument("--development", action="store_true")
    arguments = parser.parse_args()
    population = DEVELOPMENT if arguments.development else BLIND
    lines = arguments.answers.read_text().splitlines() if arguments.answers.exists() else []
    known = {row["name"]: row for row in map(json.loads, lines)}
    runs = read(arguments.truth)
    found = {entry: finished(entry, runs.get(entry.name, {})) for entry in population}
    for entry in sorted(population, key=cost) if arguments.ask else ():
        if entry.name not in known and found[entry] is not None:
            known[entry.name] = asked(entry)
            with arguments.answers.open("a") as file:
                file.write(json.dumps(known[entry.name]) + "\n")
    truths = {entry: truth for entry, truth in found.items() if truth is not None and entry.name in known}
    for entry, truth in truths.items():
        ours = known[entry.name]["rehearsal"]
        print(
            f"{entry.name:44s} best {_text(truth['best'])} edge {_text(truth['edge'])} "
            f"loss {truth['lowest']:.3f}; named {_text(ours['best'])} edge {_text(ours['edge'])} "
            f"{ours['passes']} steps, {ours['seconds']} s"
        )
    for method, row in table(list(known.values()), truths).items() if truths else ():
        low, high = row["interval"]
        print(
            f"{METHODS[method]}: {row['within']} of {row['networks']} within 2 ({low:.0%} to {high:.0%}), "
            f"{row['unnamed']} not named, {row['given']:.3f} nat in the median (90 %: {row['given90']:.3f}), "
            f"{row['above']} above the edge, {row['dead_named']} named of those that train at none"
        )
    moved = [(known[e.name]["transfer"]["best"], t["best"]) for e, t in truths.items() if e.transfer]
    near = sum(a is not None and b is not None and max(a / b, b / a) <= 1.5 for a, b in moved)
    print(
        f"from small sizes: {near} of {len(moved)} within 1.5, {sum(a is None for a, _ in moved)} not named"
    )
    print(f"{len(truths)} of {len(population)} finished; limits {LIMITS}")


def _text(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:.2g}"


if __name__ == "__main__":
    main()
