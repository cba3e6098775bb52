"""Rescue: networks that do not train as configured, and what initialize_ makes of them.

Each network is trained on digits as it comes and after `initialize_(model, "critical")`, same data, same steps, the
rate chosen in each arm among the same by successive halving. *Trains* means a final loss below half of chance. Networks
that turn out to train as they come are not counted as rescued; a second list trains already and must not get worse.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from edgewise.study import Claim, Result, prove

sys.path.insert(0, str(Path(__file__).parent))
from networks import BROKEN, WHOLE

STEPS, SIZE = 120, 16
SEEDS = {"broken": 1, "whole": 3}  # half of chance is far from the noise of seeds; «not worse» is not
RATES = (3e-4, 1e-3, 3e-3)
GOAL = 0.9


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Every network at full scale; two quick ones otherwise."""
    if scale == "full":
        names = [("broken", name) for name in BROKEN] + [("whole", name) for name in WHOLE]
        same = {"steps": STEPS, "rates": RATES}
        return [{"list": kind, "network": name, "seeds": SEEDS[kind]} | same for kind, name in names]
    few = [("broken", "tanh perceptron, 20 layers, torch"), ("whole", "tanh perceptron, 3 layers, torch")]
    return [{"list": kind, "network": name, "steps": 40, "seeds": 2, "rates": [3e-3]} for kind, name in few]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Both arms of one network."""
    torch.set_num_threads(1)
    factory = (BROKEN if case["list"] == "broken" else WHOLE)[case["network"]]
    proof = prove(factory, "critical", steps=case["steps"], seeds=case["seeds"], rates=case["rates"], size=SIZE)
    found = proof.json()
    text = found.pop("plan").splitlines()
    for arm in ("plain", "planned"):
        found[arm]["losses"] = [[round(x, 3) for x in seed[::5] if x is not None] for seed in found[arm]["losses"]]
    return found | {"totals": [line for line in text if "log-changes" in line or "Stated" in line or "NO" in line]}


def _fails(arm: dict[str, Any], chance: float) -> bool:
    return float(np.mean(arm["finals"])) >= 0.5 * chance


def claim(results: list[Result]) -> Claim:
    """At least nine of ten that fail train afterwards; those that train are not worse beyond the noise of seeds."""
    broken = [r for r in results if r.case["list"] == "broken" and _fails(r.value["plain"], r.value["chance"])]
    saved = [r for r in broken if not _fails(r.value["planned"], r.value["chance"])]
    lost = [r.case["network"] for r in broken if r not in saved]
    fine = [r for r in results if not _fails(r.value["plain"], r.value["chance"])]
    worse = [r.case["network"] for r in fine if r.value["verdict"] == "hurts"]
    count = len({r.case["network"] for r in results})
    seeds = " or ".join(str(n) for n in sorted({r.case["seeds"] for r in results}))
    scale = f"{count} networks on digits, {results[0].case['steps']} steps, {seeds} seeds"
    rate = len(saved) / max(len(broken), 1)
    enough = len(broken) >= 30 or results[0].case["steps"] < STEPS
    rescue = Claim(
        f"Of at least 30 networks that do not train as configured, {GOAL:.0%} train after initialize_.",
        f"{len(saved)} of {len(broken)} ({rate:.0%}); not rescued: {'; '.join(lost) or 'none'}.", scale,
        (rate >= GOAL) if enough and broken else None, {"failed": len(broken), "rescued": len(saved), "lost": lost},
    )  # fmt: skip
    kept = Claim(
        "Networks that train already are not worse after initialize_.",
        f"{len(fine)} train as they come; worse beyond seed noise (p < 0.05): {'; '.join(worse) or 'none'}.", scale,
        not worse if fine else None, {"trained": len(fine), "worse": worse},
    )  # fmt: skip
    return Claim.all([rescue, kept])


def draw(results: list[Result]) -> Figure:
    """Final loss of every network, as it comes and after."""
    ordered = sorted(results, key=lambda r: -float(np.mean(r.value["plain"]["finals"])))
    figure = Figure(figsize=(9, max(3.5, 0.2 * len(ordered) + 1.2)), layout="constrained")
    axes = figure.subplots()
    for row, result in enumerate(ordered):
        before, after = (result.value[arm]["finals"] for arm in ("plain", "planned"))
        axes.plot([np.mean(before), np.mean(after)], [row, row], color="lightgrey", zorder=0)
        axes.scatter(before, [row] * len(before), color="tab:red", s=14, label="as it comes" if not row else None)
        axes.scatter(after, [row] * len(after), color="tab:blue", s=14, label="after initialize_" if not row else None)
    chance = results[0].value["chance"]
    axes.axvline(chance, color="grey", linestyle=":")
    axes.axvline(chance / 2, color="grey", linestyle="--")
    axes.set_yticks(range(len(ordered)), [r.case["network"] for r in ordered], fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("final loss (mean of the last 10 steps); dotted: chance, dashed: half of it")
    case = results[0].case
    axes.set_title(f"digits, {case['steps']} steps, a dot per seed, rates tuned in each arm", fontsize=9)
    axes.legend(fontsize=8)
    return figure
