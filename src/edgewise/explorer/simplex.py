"""Simplex view: a row of attention over three tokens as a point of a triangle that training moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from pydantic import Field, field_validator

from edgewise.arrays import Array
from edgewise.explorer.answers import as_bytes
from edgewise.explorer.flow import rounded
from edgewise.explorer.requests import Document, PageRequest
from edgewise.explorer.responses import REFUSED, in_turn, json_reply
from edgewise.nouns.verdict import per_cent
from edgewise.present import wording
from edgewise.present.markup import prose

router = APIRouter()
TIMES = (0.0, *np.geomspace(0.01, 1e4, 121).tolist())
SMALLEST = 1e-4  # of a weight: a row of attention never quite reaches an edge
ARRIVED = 0.01  # of the loss at the start
TOLERANCE = 1e-7
LATTICE = 48  # steps along an edge of the triangle
NAMES = {"gradient": "gradient", "replicator": "replicator", "natural": "natural gradient"}
CAPTIONS = {
    "triangle": "A point is a row of attention over three tokens; in a corner all weight is on one of them. Lines lead "
    "from the start to the target. The stronger the blue, the more the softmax learns in one direction before another.",
    "condition": "How many times faster the fastest direction of the softmax learns than the slowest, along each path.",
    "loss": "How far each path still is from the target, as squared distance; both scales are logarithmic.",
}
Weight = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Row = Annotated[list[Weight], Field(min_length=3, max_length=3)]


class SimplexRequest(PageRequest):
    """Where the row of attention starts, where it should go, and how far the keys are from orthogonal ones."""

    start: Row = Field(default_factory=lambda: [0.05, 0.15, 0.8])
    target: Row = Field(default_factory=lambda: [0.75, 0.2, 0.05])
    mixing: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] = 0.4
    seed: Annotated[int, Field(ge=0, le=10**6)] = 0

    @field_validator("start", "target")
    @classmethod
    def _weights(cls, row: list[float]) -> list[float]:
        if not abs(sum(row) - 1) < 1e-3:
            raise ValueError("the three weights of a row of attention must sum to 1")
        inside = np.maximum(row, SMALLEST)
        return [float(value) for value in inside / inside.sum()]


@router.post("/simplex", responses=REFUSED)
def simplex(wanted: SimplexRequest) -> Response:
    """Return three ways to the target: paths on the triangle, condition numbers and losses along them."""
    return json_reply(in_turn(lambda: _simplex(wanted.model_dump_json())))


@router.get("/simplex/condition")
def condition() -> Response:
    """Return the condition number of the softmax over the triangle, on a lattice."""
    return json_reply(in_turn(_condition))


@lru_cache(maxsize=500)
def _simplex(request: str) -> bytes:
    return as_bytes(answer(SimplexRequest.model_validate_json(request)))


@lru_cache(maxsize=1)
def _condition() -> bytes:
    """log10 of the condition number at (i, j, LATTICE - i - j), i outermost; corners and edges a little inside."""
    rows = np.array(
        [(i, j, LATTICE - i - j) for i in range(LATTICE + 1) for j in range(LATTICE + 1 - i)], float
    )
    inside = np.maximum(rows / LATTICE, 0.2 / LATTICE)
    return as_bytes(
        {"steps": LATTICE, "values": rounded(condition_numbers(np.log(inside / inside.sum(1)[:, None])))}
    )


def answer(wanted: SimplexRequest) -> Document:
    """Return the three flows, in the same units of time."""
    paths, scale, deviation = flows(wanted)
    target = np.array(wanted.target)
    drawn = {}
    for name, path in paths.items():
        losses = 0.5 * np.square(np.exp(path) - target).sum(1)
        drawn[name] = {
            "name": NAMES[name],
            "row": [[round(float(w), 5) for w in row] for row in np.exp(path)],
            "condition": rounded(condition_numbers(path)),
            "loss": rounded(np.log10(np.maximum(losses, 1e-16))),
            "arrives": arrival(losses),
        }
    return {
        "times": rounded(np.array(TIMES)),
        "paths": drawn,
        "start": wanted.start,
        "target": wanted.target,
        "deviation": deviation,
        "scale": scale,
        "captions": CAPTIONS,
    } | reading(drawn, deviation)


def flows(wanted: SimplexRequest) -> tuple[dict[str, Array], float, float]:
    """Return log rows (times, 3) of the gradient with these keys, of its decoupled limit and of the natural
    gradient.
    """
    import torch

    from edgewise.laboratory.replicator import coherence, follow, orthogonal_keys

    start, target = (torch.tensor(row, dtype=torch.float64) for row in (wanted.start, wanted.target))
    keys = orthogonal_keys(1, 3, mixing=wanted.mixing, seed=wanted.seed)
    measured = coherence(keys)

    def path(scale: Any, squared: bool = True) -> Array:
        logs = follow(lambda s: s - target, start, TIMES, scale, squared, TOLERANCE)
        return np.asarray(logs.numpy())

    paths = {
        "gradient": path(keys[0] @ keys[0].T),
        "replicator": path(measured.scale),
        "natural": path(1.0, False),
    }
    return paths, measured.scale, measured.deviation


def condition_numbers(log_rows: Array) -> Array:
    """Return log10 of kappa(J) of every row."""
    import torch

    from edgewise.softmax_jacobian import extremes

    return np.asarray(extremes(torch.from_numpy(log_rows).log_softmax(-1)).condition.numpy() / math.log(10))


def arrival(losses: Array) -> float | None:
    """Return the time at which the loss is a hundredth of what it was; None if it is not within the times shown."""
    wanted = ARRIVED * losses[0]
    below = np.flatnonzero(losses <= wanted)
    if not len(below) or losses[0] < 1e-12:
        return None
    k = int(below[0])
    share = math.log(losses[k - 1] / wanted) / math.log(losses[k - 1] / losses[k])
    return float(f"{TIMES[k - 1] + share * (TIMES[k] - TIMES[k - 1]):.3g}")


def reading(drawn: Mapping[str, Any], deviation: float) -> dict[str, str]:
    """Return who arrives when, and what the condition number did meanwhile."""
    gradient, natural = drawn["gradient"], drawn["natural"]
    if gradient["loss"][0] < -12:
        return {"title": "Already there", "sentences": "The row starts at its target. Move one of the two."}
    worst = wording.number(10 ** max(value for value in gradient["condition"] if value is not None))
    parts = [
        f"The gradient {_arrives(gradient)}, the natural gradient {_arrives(natural)}.",
        f"On the gradient's path one direction of the softmax learns up to {worst} times faster than another.",
        "The keys are orthogonal, so that the gradient moves the row exactly as the replicator does."
        if deviation < 0.005
        else f"The keys are {per_cent(deviation)} away from orthogonal; with orthogonal ones the gradient would "
        "take the path of the replicator.",
    ]
    return {"title": _title(gradient["arrives"], natural["arrives"]), "sentences": prose(" ".join(parts))}


def _arrives(path: Mapping[str, Any]) -> str:
    time = path["arrives"]
    return "is not there at time 10 000" if time is None else f"is there at time {wording.number(time)}"


def _title(gradient: float | None, natural: float | None) -> str:
    if gradient is None or natural is None:
        return (
            "Only the natural gradient arrives"
            if natural is not None
            else "The natural gradient does not arrive"
        )
    ratio = gradient / natural
    if ratio < 1 / 1.5:
        return f"The gradient is {wording.number(1 / ratio)} times faster"
    return (
        f"The natural gradient is {wording.number(ratio)} times faster"
        if ratio > 1.5
        else "Both take equally long"
    )
