"""Fit the expected slowdown on the trained atlas, say how well it does on families left out, write the shipped table.

    python -m experiments.atlas.forecast [--write]
    python -m experiments.atlas.forecast --blind     # the list that is kept apart, by a fit on all of the others

Each stage has a few constants: a linear form of parts that are never negative, with weights that are never negative,
so that a worse part is never a better start. The weights are fitted on differences between siblings, since what a shape
costs is not its start's doing. What never arrives within 500 steps counts as `LONGEST`. A family is forecast by a fit
without it; correlations are means over shapes, as siblings are what a user can choose between.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score

import edgewise
import edgewise.judgement
from edgewise.errors import BadInput
from edgewise.judgement.outcome import LONGEST, SIZES, SLOWDOWN_TABLE, StartParts, without_skips
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import FirstLoss
from edgewise.repair.initialize import GAINED, SCALES

from . import report, run, train

PARTS = tuple(asdict(StartParts()))
STAGES = {"predict": PARTS[:-1], "measure": PARTS, "steps": (*PARTS, "standing", "above")}
QUANTILES = (0.1, 0.9)  # of what is left over, for the range
STEPS = 20
UNSURE = 0.1  # share of what the best constant answer leaves, below which more or less of it counts little
HIGHEST = 2.0  # log of a loss over that of the best constant answer, beyond which it is lost anyway
IMAGES = ("digits", "fashion", "regression")  # one label for a sequence
LEAST_SIBLINGS = 6
Row = dict[str, Any]


def rows(blind: bool = False) -> list[Row]:
    """Return one row for every start of the counted shapes: parts of every stage, trivial rules, log slowdown."""
    shapes = {run.name(shape): shape for shape in train.shapes(blind)}
    read, described = (
        {row["shape"]: row["starts"] for row in run.read(what, blind)} for what in ("readings", "described")
    )
    made = []
    for result in run.read("train", blind):
        if not report.counted(result) or result["shape"] not in read.keys() & described.keys():
            continue
        best = min(result["sound"], key=lambda losses: math.inf if losses[-1] is None else losses[-1])
        runs = [(1.0, best)] + [
            (report.slowdown(o["runs"], result["target"]), o["runs"][0]) for o in result["others"]
        ]
        said = [one | two for one, two in zip(*(k[result["shape"]] for k in (read, described)), strict=True)]
        for (slow, losses), one in zip(runs, said, strict=True):
            made.append(
                _row(shapes[result["shape"]], one, losses, result["constant"])
                | {"log": math.log(min(slow, LONGEST)), "never": math.isinf(slow)}
            )
    return made


def _row(shape: dict[str, Any], said: dict[str, Any], losses: list[float | None], constant: float) -> Row:
    first = said["first"]
    known_loss = first["chance"] is not None and first["loss"] is not None
    loss = FirstLoss(first["loss"], first["chance"]) if known_loss else None
    after = losses[STEPS // report.EVERY] if len(losses) > STEPS // report.EVERY else None
    left = HIGHEST if after is None else math.log(after / constant)
    learned = -math.log(max(0.0, 1 - math.exp(left)) + UNSURE) - math.log(1 / (1 + UNSURE))
    steps = {"standing": max(0.0, learned), "above": min(max(0.0, left), HIGHEST)}
    curve = "pooled" if shape["task"] in IMAGES else "token"
    network = Architecture.from_dict(said["network"]) if "network" in said else None
    parts: dict[str, dict[str, float] | None] = {
        "predict": _parts(curve, network, said["predict"], None),
        "measure": (measured := _parts(curve, network, said["measure"], loss)),
        "steps": None if measured is None else measured | steps,
    }
    return {
        "shape": run.name(shape),
        "family": shape["family"],
        "start": said["start"],
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
            "loss after 20 steps": left,
        },
    }


def _parts(
    curve: str, network: Architecture | None, said: dict[str, Any], loss: FirstLoss | None
) -> dict[str, float] | None:
    """Parts of a start as `judge` makes them; None where what its blocks add is not known."""
    # The first lines hold the risk beside the parts, of which there were fewer.
    risk = said.get("risk", (said.get("parts") or {}).get("risk"))
    if network is None or not said.get("norm"):
        return None
    if risk is None and not without_skips(network):
        return None
    parts = StartParts.of(curve, said["added"], network, said["norm"][0], risk or 0.0, loss)
    return None if parts is None else asdict(parts)


def _risk(said: dict[str, Any]) -> float:
    probability = said.get("probability")
    if probability is None:
        return {"will not train": 1.0, "risky": 0.5}.get(said.get("outcome", ""), 0.0)
    return 1.0 - float(probability)


def matrix(chosen: Sequence[Row], stage: str) -> np.ndarray:
    """Return the parts of a stage, one row for each network."""
    return np.array([[row["parts"][stage][name] for name in STAGES[stage]] for row in chosen])


@dataclass(frozen=True)
class Line:
    """Weights of at least zero, and an offset."""

    weights: np.ndarray
    offset: float

    def __call__(self, parts: np.ndarray) -> np.ndarray:
        return np.asarray(parts @ self.weights + self.offset)


Form = dict[str, Line]  # by where the loss is read


def among_siblings(chosen: Sequence[Row], values: np.ndarray) -> np.ndarray:
    """Return values less their mean over the siblings of each shape."""
    names = np.array([row["shape"] for row in chosen])
    centered = np.array(values, dtype=float)
    for name in set(names):
        centered[names == name] -= centered[names == name].mean(axis=0)
    return centered


def fitted(chosen: Sequence[Row], stage: str) -> Form:
    """Return the linear forms of a stage; a part in which no siblings differ has the weight of the other form."""
    forms, alike = {}, {}
    for curve in ("token", "pooled"):
        own = [row for row in chosen if row["curve"] == curve]
        parts, logs = matrix(own, stage), np.array([row["log"] for row in own])
        differences = among_siblings(own, parts)
        fit = LinearRegression(positive=True, fit_intercept=False)
        weights = fit.fit(differences, among_siblings(own, logs)).coef_
        forms[curve] = Line(weights, float(np.mean(logs - parts @ weights)))
        alike[curve] = ~np.any(differences, axis=0)
    for curve, other in (("token", "pooled"), ("pooled", "token")):
        forms[curve].weights[alike[curve]] = forms[other].weights[alike[curve]]
    return forms


def forecast(form: Form, chosen: Sequence[Row], stage: str) -> np.ndarray:
    """Log slowdown of networks by a fit."""
    values = [float(form[row["curve"]](matrix([row], stage))[0]) for row in chosen]
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
            weights = dict.fromkeys(PARTS, 0.0) | dict(zip(STAGES[stage], form.weights.tolist(), strict=True))
            ends = {"offset": form.offset, "low": min(0.0, low), "high": max(0.0, high)}
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


def fastest(chosen: Sequence[Row], logs: np.ndarray) -> list[str]:
    """Steps of the scale with the fewest expected ones over those of the sound start, as `fastest_plan` would choose.

    Goal, from before any was chosen: 1.5 times fewer in the median, nowhere more than 5 % worse.
    """
    taken: dict[str, list[float]] = {"token": [], "pooled": []}
    for shape in dict.fromkeys(row["shape"] for row in chosen):
        places = [k for k, row in enumerate(chosen) if row["shape"] == shape]
        sound = next((k for k in places if chosen[k]["start"][0] == "sound"), None)
        scaled = [k for k in places if chosen[k]["start"][0] == "blocks" and chosen[k]["start"][1] in SCALES]
        if sound is None or not scaled:
            continue
        best = min(scaled, key=lambda k: logs[k])
        gains = logs[best] <= logs[sound] - math.log(GAINED)
        taken[chosen[sound]["curve"]].append(math.exp(chosen[best]["log"]) if gains else 1.0)
    return [
        f"fastest scale, one label a {where}: {len(steps)} sound starts, {sum(k != 1 for k in steps)} changed, "
        f"steps {np.median(steps):.2f} in the median, {max(steps):.2f} at worst, {sum(k > 1.05 for k in steps)} of "
        "them more than 5 % worse"
        for where, steps in (("token", taken["token"]), ("sequence", taken["pooled"]))
        if steps
    ]


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
    chosen = known(every, "measure")
    form = fitted(known(fit_on, "measure"), "measure") if fit_on else None
    said += fastest(chosen, forecast(form, chosen, "measure") if form else left_out(chosen, "measure"))
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
