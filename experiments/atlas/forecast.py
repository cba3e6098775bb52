"""Fit the expected slowdown on the trained atlas, say how well it does on families left out, write the shipped table.

    python -m experiments.atlas.forecast [--write]
    python -m experiments.atlas.forecast --blind     # the list that is kept apart, by a fit on all of the others

Each stage has a few constants: a linear form of parts that are never negative, with weights that are never negative,
so that a worse part is never a better start. What never arrives within 500 steps counts as `LONGEST`. A family is
forecast by a fit without it; correlations are means over shapes, as siblings are what a user can choose between.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score

import edgewise
import edgewise.judgement
from edgewise.errors import BadInput
from edgewise.judgement.outcome import LONGEST, SIZES, SLOWDOWN_TABLE, StartParts
from edgewise.nouns.trace import FirstLoss

from . import report, run, train

PARTS = tuple(asdict(StartParts()))
STAGES = {"predict": PARTS[:3], "measure": PARTS, "steps": (*PARTS, "standing")}
QUANTILES = (0.1, 0.9)  # of what is left over, for the range
STEPS = 20
LOWEST = 3.0  # keeps the log of a loss over that of the best constant answer from being negative
IMAGES = ("digits", "fashion", "regression")  # one label for a sequence
LEAST_SIBLINGS = 6
Row = dict[str, Any]


def rows(blind: bool = False) -> list[Row]:
    """Return one row for every start of the counted shapes: parts of every stage, trivial rules, log slowdown."""
    shapes = {run.name(shape): shape for shape in train.shapes(blind)}
    read = {row["shape"]: row["starts"] for row in run.read("readings", blind)}
    made = []
    for result in run.read("train", blind):
        if not report.counted(result) or result["shape"] not in read:
            continue
        best = min(result["sound"], key=lambda losses: math.inf if losses[-1] is None else losses[-1])
        runs = [(1.0, best)] + [
            (report.slowdown(o["runs"], result["target"]), o["runs"][0]) for o in result["others"]
        ]
        for (slow, losses), said in zip(runs, read[result["shape"]], strict=True):
            made.append(
                _row(shapes[result["shape"]], said, losses, result["constant"])
                | {"log": math.log(min(slow, LONGEST)), "never": math.isinf(slow)}
            )
    return made


def _row(shape: dict[str, Any], said: dict[str, Any], losses: list[float | None], constant: float) -> Row:
    first = said["first"]
    known_loss = first["chance"] is not None and first["loss"] is not None
    loss = FirstLoss(first["loss"], first["chance"]) if known_loss else None
    after = losses[STEPS // report.EVERY] if len(losses) > STEPS // report.EVERY else None
    standing = LOWEST if after is None else math.log(after / constant) + LOWEST
    curve = "pooled" if shape["task"] in IMAGES else "token"
    parts: dict[str, dict[str, float] | None] = {
        "predict": _parts(curve, said["predict"], None),
        "measure": (measured := _parts(curve, said["measure"], loss)),
        "steps": None if measured is None else measured | {"standing": max(0.0, standing)},
    }
    return {
        "shape": run.name(shape),
        "family": shape["family"],
        "depth": shape["depth"],
        "tokens": shape["tokens"],
        "curve": curve,
        "parts": parts,
        "rules": {
            "probability of predict": _risk(said["predict"]),
            "probability of measure": _risk(said["measure"]),
            "first gradient": -min(first["gradient"] or 0.0, 1e6),
            "depth": shape["depth"],
            "norm place": {"pre": 0, "sandwich": 0, "deep": 1, "post": 1, "none": 2}.get(
                shape.get("norm", "pre"), 0
            ),
            "first loss": 0.0 if measured is None else measured["excess"],
            "loss after 20 steps": standing,
        },
    }


def _parts(curve: str, said: dict[str, Any], loss: FirstLoss | None) -> dict[str, float] | None:
    """Parts of a start as `judge` makes them; None where what its blocks add is not known."""
    risk = said.get(
        "risk", (said.get("parts") or {}).get("risk")
    )  # of lines before the parts had a second side
    if risk is None or said.get("added") is None:
        return None
    return asdict(StartParts.of(curve, said["added"], risk, loss))


def _risk(said: dict[str, Any]) -> float:
    probability = said.get("probability")
    if probability is None:
        return {"will not train": 1.0, "risky": 0.5}.get(said.get("outcome", ""), 0.0)
    return 1.0 - float(probability)


def matrix(chosen: Sequence[Row], stage: str) -> np.ndarray:
    """Return the parts of a stage, one row for each network."""
    return np.array([[row["parts"][stage][name] for name in STAGES[stage]] for row in chosen])


Form = dict[str, LinearRegression]  # by where the loss is read


def fitted(chosen: Sequence[Row], stage: str) -> Form:
    """Return the linear forms of a stage with weights of at least zero."""
    forms = {}
    for curve in ("token", "pooled"):
        own = [row for row in chosen if row["curve"] == curve]
        forms[curve] = LinearRegression(positive=True).fit(matrix(own, stage), [row["log"] for row in own])
    return forms


def forecast(form: Form, chosen: Sequence[Row], stage: str) -> np.ndarray:
    """Log slowdown of networks by a fit."""
    values = [float(form[row["curve"]].predict(matrix([row], stage))[0]) for row in chosen]
    return np.minimum(values, math.log(LONGEST))


def known(every: Sequence[Row], stage: str) -> list[Row]:
    """Return the rows whose parts are known."""
    return [row for row in every if row["parts"][stage] is not None]


def left_out(every: Sequence[Row], stage: str) -> np.ndarray:
    """Log slowdown, each forecast without the network's own family."""
    logs = np.zeros(len(every))
    for family in {row["family"] for row in every}:
        own = np.array([row["family"] == family for row in every])
        form = fitted([row for row in every if row["family"] != family], stage)
        logs[own] = forecast(form, [row for row in every if row["family"] == family], stage)
    return logs


def within(every: Sequence[Row], score: Callable[[int], float]) -> tuple[float, int]:
    """Rank correlation with the slowdown, the mean over shapes with enough siblings, and how many these are."""
    found = []
    for shape in dict.fromkeys(row["shape"] for row in every):
        places = [k for k, row in enumerate(every) if row["shape"] == shape]
        scores = [score(k) for k in places]
        if len(places) >= LEAST_SIBLINGS:
            flat = len(set(scores)) == 1  # a rule that cannot tell siblings apart ranks nothing
            found.append(0.0 if flat else spearmanr(scores, [every[k]["log"] for k in places])[0])
    return float(np.mean(found)), len(found)


def seeds(every: Sequence[Row]) -> tuple[float, int]:
    """Rank correlation between the slowdowns of two seeds of one shape: the limit of any forecast."""
    by_shape: dict[str, list[float]] = {}
    for row in every:
        by_shape.setdefault(row["shape"], []).append(row["log"])
    pairs = [
        (logs, by_shape[other])
        for name, logs in by_shape.items()
        for other in [name.rsplit("-", 1)[0] + f"-{int(name.rsplit('-', 1)[1]) + 50_000}"]
        if other in by_shape
    ]
    return float(np.mean([spearmanr(a, b)[0] for a, b in pairs])) if pairs else math.nan, len(pairs)


def scores(every: Sequence[Row], stage: str) -> dict[str, float]:
    """How well a stage does on families left out."""
    chosen = known(every, stage)
    return judged(chosen, left_out(chosen, stage))


def judged(chosen: Sequence[Row], logs: np.ndarray) -> dict[str, float]:
    """Rank correlation within shapes, the share of those that arrive within a factor of two, AUROC of never."""
    truth, dead = np.array([row["log"] for row in chosen]), np.array([row["never"] for row in chosen])
    return {
        "networks": len(chosen),
        "rank": within(chosen, lambda k: logs[k])[0],
        "within_two": float(np.mean(np.abs(logs - truth)[~dead] <= math.log(2))),
        "auroc_never": float(roc_auc_score(dead, logs)) if dead.any() and np.ptp(logs) else 0.5,
    }


def table(every: Sequence[Row]) -> dict[str, Any]:
    """Return what is shipped: constants of the two stages before training."""
    stages: dict[str, dict[str, Any]] = {}
    for stage in ("predict", "measure"):
        chosen = known(every, stage)
        forms, logs = fitted(chosen, stage), left_out(chosen, stage)
        rest = np.array([row["log"] for row in chosen]) - logs
        stages[stage] = {"left_out": {name: round(value, 3) for name, value in judged(chosen, logs).items()}}
        for curve, form in forms.items():
            low, high = np.quantile(rest[[row["curve"] == curve for row in chosen]], QUANTILES)
            weights = dict.fromkeys(PARTS, 0.0) | dict(zip(STAGES[stage], form.coef_.tolist(), strict=True))
            ends = {"offset": float(form.intercept_), "low": min(0.0, low), "high": max(0.0, high)}
            stages[stage][curve] = {name: round(float(value), 4) for name, value in (weights | ends).items()}
    chosen = known(every, "measure")
    return {
        "made_by": "python -m experiments.atlas.forecast --write",
        "networks": len(chosen),
        "never": sum(row["never"] for row in chosen),
        "shapes": len({row["shape"] for row in chosen}),
        "range": _range({row["shape"] for row in chosen}),
        "stages": stages,
    }


def _range(counted: set[str]) -> dict[str, list[Any]]:
    """What the sound networks of these shapes are like, by their descriptions."""
    found: dict[str, set[Any]] = {}
    for shape in train.shapes():
        if run.name(shape) not in counted:
            continue
        task = train.data(shape["task"], shape["tokens"])
        batch = next(task.batches(shape["batch"], shape["seed"]))
        try:
            described = edgewise.describe(train.build(shape, task, shape["starts"][0]), (batch[0],))
        except BadInput as error:
            print(f"{run.name(shape)} is not described: {error}")
            continue
        for name in ("depth", "tokens", "norm", "norm_kind", "activation"):
            found.setdefault(name, set()).add(getattr(described, name))
    sizes = {name: [min(found[name]), max(found[name])] for name in SIZES}
    return sizes | {name: sorted(map(str, values)) for name, values in found.items() if name not in SIZES}


def probabilities(every: Sequence[Row], stage: str) -> str:
    """How well the probability of a stage holds: Brier score beside that of the base rate, and the firm words."""
    arrives = np.array([not row["never"] for row in every], float)
    chance = np.array([1 - row["rules"][f"probability of {stage}"] for row in every])
    sure, lost = arrives[chance >= 0.75], arrives[chance <= 0.25]
    brier, base = np.mean((chance - arrives) ** 2), arrives.mean() * (1 - arrives.mean())
    return (
        f"probability of {stage}: Brier {brier:.3f} (base rate {base:.3f}); "
        f"{int(sure.sum())} of {len(sure)} from 75 % on arrive, {int(lost.sum())} of {len(lost)} up to 25 %"
    )


def lines(every: Sequence[Row], fit_on: Sequence[Row] = ()) -> list[str]:
    """Say how the stages do, beside rules that need no fit; on families left out, or by a fit on other shapes."""
    count, (limit, pairs) = len({row["shape"] for row in every}), seeds(every)
    never = sum(row["never"] for row in every)
    said = [
        f"{len(every)} starts of {count} shapes, {never} never arrive; "
        f"two seeds of {pairs} shapes rank alike by {limit:.2f}"
    ]
    for stage in STAGES:
        chosen = known(every, stage)
        form = fitted(known(fit_on, stage), stage) if fit_on else None
        numbers = judged(chosen, forecast(form, chosen, stage)) if form else scores(every, stage)
        said.append(f"{stage:<24}" + "  ".join(f"{name} {value:.3g}" for name, value in numbers.items()))
    always = judged(every, np.zeros(len(every)))
    said.append(f"{'always 1':<24}" + "  ".join(f"{name} {value:.3g}" for name, value in always.items()))
    for stage in ("predict", "measure"):
        said.append(probabilities(every, stage))
    for rule in every[0]["rules"]:
        rank, _ = within(every, lambda k, rule=rule: every[k]["rules"][rule])
        dead = [row["never"] for row in every]
        auroc = roc_auc_score(dead, [row["rules"][rule] for row in every]) if any(dead) else math.nan
        said.append(f"{rule:<24}rank {rank:.3g}  auroc_never {auroc:.3g}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the table that judge reads")
    parser.add_argument("--blind", action="store_true", help="judge the list that is kept apart")
    options = parser.parse_args()
    every = rows()
    print("\n".join(lines(rows(blind=True), fit_on=every) if options.blind else lines(every)))
    if options.write:
        path = Path(edgewise.judgement.__file__).parent / SLOWDOWN_TABLE
        path.write_text(json.dumps(table(every), indent=2) + "\n")


if __name__ == "__main__":
    main()
