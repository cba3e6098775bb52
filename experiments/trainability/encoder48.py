"""Proof: torch's encoder of 48 layers on digits, as it comes and after initialize_.

The same as `edgewise.study.prove(factory)` with its built-in task, one case per seed so that workers share them.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from edgewise.present import proof_sheet
from edgewise.study import Claim, Result, prove
from edgewise.study.proof import Arm, Proof, compare

TOLERANCE = 0.001  # of the largest number in an entry; seeds scatter by 0.014 or more
NOT_COMPARED = ("plan",)  # sentences
WIDTH, SIZE = 32, 32


def encoder(depth: int) -> nn.Module:
    """As its documentation builds it: post-norm, copies of one layer."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Three seeds of 48 layers and 200 steps; two of 3 layers and 5 steps at small scale."""
    if scale == "full":
        return [{"depth": 48, "steps": 200, "rates": [3e-4, 1e-3], "seed": seed} for seed in range(3)]
    return [{"depth": 3, "steps": 5, "rates": [1e-3], "seed": seed} for seed in range(2)]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Both arms of one seed."""
    torch.set_num_threads(1)
    proof = prove(
        lambda: encoder(case["depth"]),
        "critical",
        steps=case["steps"],
        seeds=1,
        rates=case["rates"],
        size=SIZE,
        first_seed=case["seed"],
    )
    return proof.json()


def _arm(results: list[Result], name: str, title: str) -> Arm:
    parts = [r.value[name] for r in results]
    return Arm(
        title,
        tuple(tuple(part["losses"][0]) for part in parts),
        tuple(part["rates"][0] for part in parts),
        tuple(part["finals"][0] for part in parts),
    )


def _proof(results: list[Result]) -> Proof:
    """One proof of all seeds; the recorded curves are thinned, so that their steps are counted anew."""
    plain, planned = _arm(results, "plain", "as it is"), _arm(results, "planned", "after initialize_")
    first = results[0].value
    points = max(len(seed) for arm in (plain, planned) for seed in arm.losses)
    difference = compare(plain.finals, planned.finals)
    return Proof(plain, planned, difference, first["chance"], points, first["plan"], first["task"])


def claim(results: list[Result]) -> Claim:
    """It does not train as it comes, and does afterwards."""
    proof, case = _proof(results), results[0].case
    decided = len(results) > 2
    c = proof.difference
    return Claim(
        "torch's encoder of 48 layers does not learn as it comes (pytorch#55270, #86274); after initialize_ it does.",
        f"{proof.plain.trained(proof.chance)} of {len(results)} seeds train as they come, "
        f"{proof.planned.trained(proof.chance)} after; difference {c.mean:+.3f}, p = {c.p_value:.2g}.",
        f"{case['depth']} layers of width {WIDTH}, digits, {case['steps']} steps, {len(results)} seeds",
        (proof.rescued and proof.verdict == "helps") if decided else None,
        {
            "difference": c.mean,
            "effect": c.effect,
            "p_value": c.p_value,
            "plain": list(proof.plain.finals),
            "planned": list(proof.planned.finals),
        },
        rows=("C36",),
    )


def draw(results: list[Result]) -> Figure:
    """Both bands."""
    proof, case = _proof(results), results[0].case
    title = f"torch.nn.TransformerEncoder, {case['depth']} layers, learning to read digits"
    seeds = f"width {WIDTH}, {len(results)} seeds (band: lowest to highest)"
    scale = f"{seeds},\nrates tuned per arm; dotted: a guess at random"
    return proof_sheet(proof, title, scale, stride=case["steps"] / proof.steps).draw()
