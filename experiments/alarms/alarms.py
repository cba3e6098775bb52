"""Are the alarms right? 80 runs that fail in known ways and 64 healthy ones, under the detectors of `edgewise.watch`.

Thresholds were chosen on the runs with odd seeds; the claim is about those with even ones. Rows are trained once and
kept (`rows.py`); detectors read them again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.monitor.again import alarms_again
from edgewise.study import Claim, Result

from .population import CAUSES, FILE
from .rows import rows_of
from .score import NONE, Scored, confusion, failing, healthy

GOALS = {"detection": 0.95, "warning": 20, "false alarms": 1.0, "wrong cause": 0.15}
FEW = 5  # runs below which a median decides nothing
REPORTED, FRESH = "reported", "fresh"
SCALE = "small encoders on film reviews and digits, every step sampled, even seeds, which were looked at twice"


def cases(scale: str = "small") -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(FILE.read_text())["runs"]
    if scale == "full":
        return runs
    few = [next(run for run in runs if run["name"] == name and run["half"] == REPORTED) for name in CAUSES]
    return [{**run, "steps": 30} for run in (few[0], runs[-1])]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    folder, outcome = rows_of(case)
    alarms = [{"kind": a.kind.value, "step": a.step, "place": a.place, "since": a.since} for a in alarms_again(folder)]
    return {**outcome, "alarms": alarms}


def claim(results: Sequence[Result]) -> Claim:
    full = len(results) > 2
    runs = failing(results, REPORTED)
    return Claim.all([
        _detection(runs, full), _warning(runs, full), _false(results, full), _cause(runs, full), _fresh(results, full),
    ])  # fmt: skip


def _fresh(results: Sequence[Result], full: bool) -> Claim:
    """The same questions of runs that were made when nothing was left to choose."""
    runs, (alarms, steps, kinds) = failing(results, FRESH), healthy(results, FRESH)
    caught, wrong = sum(run.detected for run in runs), sum(run.detected and not run.right for run in runs)
    early = sum(run.early for run in runs)
    return Claim(
        "The same holds for a seed that was added after the even ones had been looked at, on digits alone.",
        f"{caught} of {len(runs)} failing runs, {wrong} by a wrong cause; {alarms} false alarms in {steps} healthy "
        f"steps ({', '.join(kinds) or 'none'}) and {early} early ones.",
        "small encoders on digits, seed 5",
        None if not full else bool(
            caught >= GOALS["detection"] * len(runs) and wrong <= GOALS["wrong cause"] * caught
            and 1e4 * alarms <= GOALS["false alarms"] * steps
        ),
        {"caught": caught, "runs": len(runs), "wrong": wrong, "alarms": alarms, "steps": steps, "early": early},
    )  # fmt: skip


def _detection(runs: Sequence[Scored], full: bool) -> Claim:
    caught = sum(run.detected for run in runs)
    missed = [run.name for run in runs if not run.detected]
    words = f"Missed: {', '.join(missed)}." if missed else "None is missed."
    share = caught / max(len(runs), 1)
    return Claim(
        f"At least {GOALS['detection']:.0%} of failing runs raise an alarm before their loss turns or within 20 steps.",
        f"{caught} of {len(runs)} ({share:.0%}). {words}", SCALE, share >= GOALS["detection"] if full else None,
        {"caught": caught, "runs": len(runs), "missed": missed},
    )  # fmt: skip


def _warning(runs: Sequence[Scored], full: bool) -> Claim:
    """Where logits grow; beside it all failures whose loss turns."""
    turned = [run for run in runs if run.warning is not None]
    logits = [run.warning for run in turned if run.first in ("logit_growth", "entropy_collapse")]
    every = [run.warning for run in turned]
    middle = median(w for w in logits if w is not None) if logits else None
    return Claim(
        f"Where logits grow, the first alarm comes {GOALS['warning']} steps or more before the loss turns (median).",
        f"Median {middle} steps in {len(logits)} runs with such an alarm first whose loss turns; "
        f"{median(w for w in every if w is not None) if every else None} in all {len(every)} runs whose loss turns.",
        SCALE, None if middle is None or len(logits) < FEW or not full else middle >= GOALS["warning"],
        {"logits": sorted(w for w in logits if w is not None), "all": sorted(w for w in every if w is not None)},
    )  # fmt: skip


def _false(results: Sequence[Result], full: bool) -> Claim:
    alarms, steps, kinds = healthy(results, REPORTED)
    rate = 1e4 * alarms / max(steps, 1)
    early = sum(run.early for run in failing(results, REPORTED))
    return Claim(
        f"At most {GOALS['false alarms']:g} false alarm in 10,000 healthy steps.",
        f"{alarms} in {steps} healthy steps ({rate:.2f} in 10,000){': ' if kinds else ''}"
        f"{', '.join(f'{kind} {n}' for kind, n in kinds.most_common())}. {early} more in failing runs, before "
        "anything was wrong.",
        SCALE, rate <= GOALS["false alarms"] if full else None,
        {"alarms": alarms, "steps": steps, "kinds": dict(kinds), "early": early},
    )  # fmt: skip


def _cause(runs: Sequence[Scored], full: bool) -> Claim:
    caught = [run for run in runs if run.detected]
    wrong = [f"{run.name} called {run.first}" for run in caught if not run.right]
    share = len(wrong) / max(len(caught), 1)
    table = {name: dict(counts) for name, counts in confusion(runs).items()}
    return Claim(
        f"At most {GOALS['wrong cause']:.0%} of first alarms name a wrong cause.",
        f"{len(wrong)} of {len(caught)} ({share:.0%}){': ' if wrong else '.'}{', '.join(sorted(wrong))}", SCALE,
        share <= GOALS["wrong cause"] if full else None, {"confusion": table},
    )  # fmt: skip


def draw(results: Sequence[Result]) -> Figure:
    """First alarm against what was wrong, and the steps of warning of every run whose loss turned."""
    runs = failing(results, REPORTED)
    figure = Figure(figsize=(11.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1.0))
    names = [name for name in CAUSES if any(run.name == name for run in runs)]
    _matrix(left, runs, names)
    for place, name in enumerate(names):
        leads = [run.warning for run in runs if run.name == name and run.warning is not None]
        right.plot(leads, np.full(len(leads), place) + np.linspace(-0.2, 0.2, len(leads)), "o", alpha=0.7)
    right.axvline(0, color="0.4", linewidth=0.8)
    right.set_yticks(range(len(names)), [""] * len(names))
    right.set_ylim(len(names) - 0.5, -0.5)
    right.set_xscale("symlog", linthresh=10)
    right.set_xlim(-30, 600)
    right.set_xlabel("steps from the first alarm to the turn of the loss")
    right.set_title("Warning; nothing where the loss never turns", fontsize=10)
    alarms, steps, _ = healthy(results, REPORTED)
    figure.suptitle(f"Alarms on the runs with even seeds; {alarms} false ones in {steps:,} healthy steps")
    return figure


def _matrix(axes: Any, runs: Sequence[Scored], names: Sequence[str]) -> None:
    table = confusion(runs)
    kinds = [*dict.fromkeys(kind for name in names for kind in table[name] if kind != NONE), NONE]
    counts = np.array([[table[name][kind] for kind in kinds] for name in names])
    axes.imshow(counts, cmap="Blues", aspect="auto", vmin=0)
    for i, name in enumerate(names):
        for j, kind in enumerate(kinds):
            if counts[i, j]:
                right = kind in CAUSES[name]
                dark = counts[i, j] > counts.max() / 2
                axes.text(j, i, f"{counts[i, j]}{'' if right else ' ✗'}", ha="center", va="center",
                          color="white" if dark else "black")  # fmt: skip
    axes.set_xticks(range(len(kinds)), [kind.replace("_", "\n") for kind in kinds], fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_title("What was wrong, and the first alarm (✗: another cause)", fontsize=10)
