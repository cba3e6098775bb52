"""Rescue: networks that do not train as configured, and what initialize_ makes of them.

Each network is trained on digits as it comes and after `initialize_(model)`: same data, same steps, the
rate chosen in each arm among the same three by successive halving, and a third of it tried before a network is called
untrainable. This is the protocol of train.py, whose record is the first arm of its own networks. *Trains* means
a final loss below half of chance, as there. The population is `networks.py`; the plain networks of the literature are
reported beside it, and networks that train already must not get worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import edgewise
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, prove, recorded_results, tasks
from edgewise.study.train import TRAINS, seeded, train, trapezoid

from .networks import PLAIN, REPORTED, WHOLE
from .starts import network

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = ("plan",)  # sentences
STEPS, SIZE, TRIAL = 200, 16, 0.2
RATES = [3e-4, 1e-3, 2.5e-3]
GOAL = 0.9
FORECAST = Path(__file__).parent / "recorded" / "train.jsonl"
LISTS: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "reported": REPORTED,
    "whole": WHOLE,
    "literature": PLAIN,
}
ORDER = ("forecast", "reported", "whole", "trained", "literature")
SEEDS = {
    "reported": 1,
    "literature": 1,
    "whole": 3,
}  # half of chance is far from seed noise; "not worse" is not
FIRST = 5  # starts per family whose trained networks must not get worse


def _recorded() -> list[dict[str, Any]]:
    """The forecast's runs of digits under AdamW: knobs, seed, and the final loss as configured."""
    runs = recorded_results(FORECAST)
    wanted = [run for run in runs if (run.case["task"], run.case["optimizer"]) == ("digits", "adamw")]
    return [
        {
            "network": f"forecast, {run.case['family']} {run.case['start']}",
            "start": run.case["start"],
            "seed": run.case["seed"],
            "knobs": run.case["knobs"],
            "recorded": run.value["final"],
            "list": "forecast" if _fails([run.value["final"]], run.value["chance"]) else "trained",
        }
        for run in wanted
    ]


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Every network at full scale; three quick ones otherwise."""
    if scale == "full":
        forecast = [case for case in _recorded() if case["list"] == "forecast" or case["start"] < FIRST]
        named = [
            {"list": kind, "network": name, "seeds": SEEDS[kind]} for kind in LISTS for name in LISTS[kind]
        ]
        ordered = sorted([*forecast, *named], key=lambda case: ORDER.index(case["list"]))
        return [case | {"steps": STEPS, "rates": RATES} for case in ordered]
    start = next(case for case in _recorded() if case["network"] == "forecast, gpt 16")
    few = [("literature", "tanh perceptron, 20 layers, torch"), ("whole", "tanh perceptron, 3 layers, torch")]
    named = [{"list": kind, "network": name, "seeds": 2} for kind, name in few]
    return [case | {"steps": 6, "rates": [1e-3]} for case in (start, *named)]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Both arms of one network; the first is the forecast's record where there is one."""
    torch.set_num_threads(1)
    with _denormals_flushed():
        return _both_arms(case)


@contextmanager
def _denormals_flushed() -> Iterator[None]:
    """Dead networks are slow otherwise; the processor's state is put back for whoever comes next."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _both_arms(case: dict[str, Any]) -> dict[str, Any]:
    chance = tasks.task("digits").chance
    options = {"trial": TRIAL, "schedule": trapezoid, "second_look": TRAINS * chance}
    if "knobs" in case:
        return _after(case, options) | {"chance": chance}
    factory = LISTS[case["list"]][case["network"]]
    proof = prove(
        factory,
        "critical",
        steps=case["steps"],
        seeds=case["seeds"],
        rates=case["rates"],
        size=SIZE,
        **options,
    )
    document = proof.json()
    arms = {arm: {key: document[arm][key] for key in ("finals", "rates")} for arm in ("plain", "planned")}
    return arms | {
        "verdict": proof.verdict,
        "difference": proof.difference.mean,
        "chance": chance,
        "plan": _promise(proof.plan),
    }


def _after(case: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """A network of the forecast after initialize_, on the batches of its record."""
    data, seed = tasks.task("digits"), case["seed"]
    make = seeded(network, seed, case["knobs"], data)
    plan = edgewise.critical_plan(make(), next(iter(data.batches(SIZE, seed)))[0])

    def planned() -> nn.Module:
        model = make()
        edgewise.initialize_(model, plan=plan, generator=seed)
        return model

    batches = partial(data.batches, SIZE, seed)
    best = train(
        planned, batches, optimizer="adamw", rates=case["rates"], steps=case["steps"], **options
    ).best
    final = best.losses[0] if math.isinf(best.final()) else best.final()
    return {
        "plain": {"finals": [case["recorded"]], "rates": []},
        "planned": {"finals": [final], "rates": [best.rate]},
        "plan": _promise(str(plan)),
    }


STARTS = ("Plan", "Total", "Expected", "Nothing")
REFUSALS = ("No gain brings", "NO:")  # as plans say it, and as they did when the record was written


def _promise(plan: str) -> list[str]:
    """What the plan promised, or why not."""
    lines = [line.strip() for line in plan.splitlines()]
    return [line for line in lines if line.startswith(STARTS) or any(words in line for words in REFUSALS)]


def _fails(finals: list[float | None], chance: float) -> bool:
    """A run that diverged has no final loss."""
    return any(final is None for final in finals) or float(np.mean(finals)) >= TRAINS * chance  # type: ignore[arg-type]


def _of(results: list[Result], *kinds: str) -> list[Result]:
    return [r for r in results if r.case["list"] in kinds]


def _rescue(results: list[Result], published: str, enough: int, scale: str) -> Claim:
    """How many of those that fail as they come train afterwards."""
    broken = [r for r in results if _fails(r.value["plain"]["finals"], r.value["chance"])]
    lost = [r for r in broken if _fails(r.value["planned"]["finals"], r.value["chance"])]
    refused = [
        r.case["network"]
        for r in lost
        if any(words in line for line in r.value["plan"] for words in REFUSALS)
    ]
    rate = 1 - len(lost) / max(len(broken), 1)
    names = [r.case["network"] for r in lost]
    return Claim(
        published,
        f"{len(broken) - len(lost)} of {len(broken)} ({rate:.0%}); not rescued: {'; '.join(names) or 'none'}; of "
        "these "
        f"the plan says NO beforehand to {len(refused)}.",
        scale,
        rate >= GOAL if len(broken) >= enough else None,
        {"failed": len(broken), "rescued": len(broken) - len(lost), "lost": names, "refused": refused},
        rows=("C36",),
    )


def claim(results: list[Result]) -> Claim:
    """Nine of ten that fail train afterwards; those that train are not worse beyond the noise of seeds."""
    scale = f"{len(results)} networks on digits, {results[0].case['steps']} steps of {SIZE}"
    rescue = _rescue(
        _of(results, "forecast", "reported"),
        "Of at least 30 networks that do not train as configured (the forecast's "
        f"records, user reports) {GOAL:.0%} train after initialize_.",
        30,
        scale,
    )
    beside = _rescue(
        _of(results, "literature"), "The same of plain deep networks of the literature.", 1, scale
    )
    whole = [r for r in _of(results, "whole") if not _fails(r.value["plain"]["finals"], r.value["chance"])]
    worse = [r.case["network"] for r in whole if r.value["verdict"] == "hurts"]
    trained = _of(results, "trained")
    gaps = [r.value["planned"]["finals"][0] - r.case["recorded"] for r in trained]
    harmless = Claim(
        "Networks that train already are not worse after initialize_.",
        f"{len(whole)} with {SEEDS['whole']} seeds: worse beyond seed noise (p < 0.05): {'; '.join(worse) or 'none'}. "
        f"{len(gaps)} of the forecast: median change {np.median(gaps) if gaps else math.nan:+.3f}, "
        f"{sum(gap > 0 for gap in gaps)} higher and {sum(gap <= 0 for gap in gaps)} lower.",
        scale,
        not worse if len(whole) > 1 else None,
        {"worse": worse, "gaps": [round(gap, 4) for gap in gaps]},
        rows=("C36",),
    )
    return Claim.all([rescue, harmless, beside])


SIDES = {
    "counted: the forecast's failures, user reports": ("forecast", "reported"),
    "not counted: literature, networks that train anyway": ("literature", "whole", "trained"),
}


def draw(results: list[Result]) -> Figure:
    """Final loss of every network, as it comes and after; the two sides of the claim beside each other."""
    panels = tuple(
        _losses(title, [r for kind in kinds for r in _of(results, kind)]) for title, kinds in SIDES.items()
    )
    case = results[0].case
    scale = (
        f"digits, {case['steps']} steps of {SIZE}, rates tuned per arm, a dot per seed; where no orange dot is "
        "seen it lies under the blue one; dotted: chance and its half"
    )
    return Sheet("Final losses before and after initialize_", panels, scale).draw()


def _losses(title: str, listed: list[Result]) -> Panel:
    curves = []
    for group, arm, label in ((1, "plain", "as it comes"), (0, "planned", "after initialize_")):
        points = [
            (4 * r.value["chance"] if final is None else min(final, 4 * r.value["chance"]), row)
            for row, r in enumerate(listed)
            for final in r.value[arm]["finals"]
        ]
        x, y = np.array(points, dtype=float).reshape(-1, 2).T
        curves.append(Curve(label, x, y, group, "points"))
    chance = listed[0].value["chance"] if listed else 1.0
    return Panel(
        title,
        "final loss (last 10 steps), at most four times chance",
        "",
        tuple(curves),
        log_x=True,
        places=(chance, TRAINS * chance),
        y_names=tuple(r.case["network"] for r in listed),
    )
