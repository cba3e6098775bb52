"""Local solutions and vanishing gradients with targets that can be reached: softmax beside the Gaussian [Song 2024].

Only W^Q is trained, and the targets are the outputs of the same layer with other queries of the same size: the loss can
be zero. `wide`: H D = 64 and 1,024 trained weights for 15 numbers; `tight`: H D = 8 and 16 weights. Fixed before any
run: a run rests at a local solution when its loss is above a millionth of its start and the last step, one of a line
search, lowered it by less than a millionth of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.kernel_theorems import descend_queries, random_layer
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

TOLERANCE = 0.006  # of the largest number in an entry; seeds scatter by 0.064 or more
KERNELS = ("softmax", "gaussian")
SIZES = {"wide": (16, 4, 16), "tight": (4, 2, 2)}  # D, H, d
SCALES = (0.3, 1.0, 2.0)  # of queries and keys
SOLVED = RESTS = 1e-6
POINTS = 40


def cases(scale: str = "small") -> list[dict[str, Any]]:
    seeds, steps = (8, 2000) if scale == "full" else (1, 8)
    return [
        {
            "samples": 3,
            "tokens": 5,
            "size": size,
            "kernel": kernel,
            "query_key_scale": qk,
            "seed": seed,
            "steps": steps,
        }
        for seed in range(seeds)
        for size in SIZES
        for qk in SCALES
        for kernel in KERNELS
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Where a run from one draw of queries ends whose targets come from another draw; slopes are |grad f|^2 / 2f."""
    shape = (case["samples"], case["tokens"], *SIZES[case["size"]], case["kernel"])
    layer, other = (
        random_layer(*shape, query_key_scale=case["query_key_scale"], seed=case["seed"] + more)
        for more in (0, 1000)
    )
    teacher = layer.with_weights(query=other.query)
    run = descend_queries(layer.with_weights(targets=teacher.outputs()), case["steps"])
    last = float(1 - run.losses[-1] / run.losses[-2]) if len(run.losses) > 1 else 0.0
    kept = np.unique(np.geomspace(1, max(len(run.steps), 1), POINTS).astype(int)) - 1
    slopes = (run.slopes / run.slopes[0])[kept].tolist() if len(run.steps) else []
    return {
        "fell_to": run.fell_to,
        "last_fall": last,
        "steps": len(run.steps),
        "gamma": run.start.gamma,
        "at": kept.tolist(),
        "loss": rounded((run.losses / run.losses[0])[kept], 4),
        "slopes": rounded(slopes, 4),
        "least_slope": float(run.slopes.amin() / run.slopes[0]) if len(run.steps) else 0.0,
    }


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([*(_local(results, size) for size in SIZES), _vanishing(results)])


def scale_of(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    return f"{case['samples'] * case['tokens']} targets, all reachable, at most {case['steps']} steps, {seeds} seeds"


def resting(run: Result) -> bool:
    return bool(run.value["fell_to"] >= SOLVED and run.value["last_fall"] < RESTS)


def _local(results: Sequence[Result], size: str) -> Claim:
    """More often at rest above zero, beyond what chance would do (one-sided Fisher test at 5 %)."""
    from scipy.stats import fisher_exact

    runs = {kernel: select(results, kernel=kernel, size=size) for kernel in KERNELS}
    rests = {kernel: sum(map(resting, group)) for kernel, group in runs.items()}
    unsolved = {kernel: sum(r.value["fell_to"] >= SOLVED for r in group) for kernel, group in runs.items()}
    count = len(runs["softmax"])
    table = [[rests[kernel], count - rests[kernel]] for kernel in KERNELS]
    chance = float(fisher_exact(table, alternative="greater").pvalue)
    fewer = rests["softmax"] <= rests["gaussian"]
    return Claim(
        f"Softmax attention can have more local solutions than the Gaussian [poster]; {size} layer.",
        f"At rest above zero: softmax {rests['softmax']} and Gaussian {rests['gaussian']} of {count} runs "
        f"(chance of as many more: {chance:.2g}); not solved within the run: {unsolved['softmax']} and "
        f"{unsolved['gaussian']}.",
        scale_of(results),
        None if count < 9 or not any(rests.values()) or (not fewer and chance > 0.05) else not fewer,
        {"at_rest": rests, "not_solved": unsolved, "runs": count, "chance": chance},
        rows=("B8",),
    )


def _vanishing(results: Sequence[Result]) -> Claim:
    """In pairs of the same draw: whose least |grad f|^2 / 2f on the way, over that at the start, is smaller?"""
    from scipy.stats import binomtest

    pairs = [
        (
            r.value["least_slope"],
            select(results, kernel="gaussian", **{k: r.case[k] for k in ("size", "query_key_scale", "seed")})[
                0
            ].value["least_slope"],
        )
        for r in select(results, kernel="softmax")
    ]
    smaller = sum(a < b for a, b in pairs)
    chance = float(binomtest(smaller, len(pairs)).pvalue)
    medians = [float(np.median([pair[k] for pair in pairs])) for k in (0, 1)]
    return Claim(
        "There is a vanishing gradient issue in softmax attention that the Gaussian does not have [poster].",
        f"Least |grad f|^2 / 2f of a run over that at its start, median: softmax {medians[0]:.2g}, Gaussian "
        f"{medians[1]:.2g}; smaller with softmax in {smaller} of {len(pairs)} pairs (two-sided chance {chance:.2g}).",
        scale_of(results),
        None if len(pairs) < 9 or chance > 0.05 else smaller > len(pairs) / 2,
        {"softmax_smaller": smaller, "pairs": len(pairs), "medians": medians, "chance": chance},
        rows=("B8",),
    )


def draw(results: Sequence[Result]) -> Figure:
    losses = [
        _panel(results, kernel, size, "loss", "loss over the first loss")
        for size in SIZES
        for kernel in KERNELS
    ]
    slopes = [
        _panel(results, kernel, "wide", "slopes", "|grad f|² / 2f over its start") for kernel in KERNELS
    ]
    return Sheet(
        "Targets that the queries can reach: who gets there", (*losses, *slopes), scale_of(results), columns=2
    ).draw()


def _panel(results: Sequence[Result], kernel: str, size: str, name: str, label: str) -> Panel:
    curves = []
    for group, strength in enumerate(SCALES):
        for run in select(results, kernel=kernel, size=size, query_key_scale=strength):
            y = np.maximum(np.array(run.value[name], dtype=float), 1e-14)
            x = np.array(run.value["at"], dtype=float)[: len(y)] + 1
            curves.append(Curve(f"queries and keys x {strength:g}", x, y, group, "thin"))
    first = (kernel, size, name) == (KERNELS[0], "tight", "loss")  # where curves leave room for a legend
    name_of = {"gaussian": "Gaussian"}.get(kernel, kernel)
    return Panel(
        f"{name_of}, {size} layer",
        "step + 1",
        label,
        tuple(curves),
        log_x=True,
        log_y=True,
        legend=first,
        legend_at="lower left",
        y_range=(1e-15, 30.0) if name == "loss" else (1e-7, 1e2),
    )
