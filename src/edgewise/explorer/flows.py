"""Views of flows: where one block takes size and overlap of tokens, where training takes a row of attention.

The row is over three tokens: a point of a triangle (the simplex).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from pydantic import Field, field_validator

from edgewise.arrays import Array
from edgewise.critical.asymptotics import asymptotics
from edgewise.critical.phase_diagram import as_knobs, value_of
from edgewise.critical.stream_flow import displacement, orbits
from edgewise.errors import BadInput
from edgewise.explorer.answers import as_bytes, description, rounded, screen_parts
from edgewise.explorer.requests import NetworkSource, PageRequest, read, span_of
from edgewise.explorer.responses import ERRORS, by_thread, in_turn, json_reply
from edgewise.files import Document
from edgewise.nouns.architecture import Architecture, transformer
from edgewise.nouns.verdict import FixedPoint, per_cent
from edgewise.present import wording
from edgewise.present.html import prose
from edgewise.verbs import judge, predict

router = APIRouter()
GRID = (19, 15)  # arrows across and up
STARTS = (0.0, 0.3, 0.6, 0.9)
HIGHEST = 1 - 1e-9  # overlap at which arrows are still those of two different tokens
WIDEST = 1e-6, 1e6  # mean squares that the plane reaches
LABELS = {
    "mlp_in_gain": "gain into the MLP",
    "mlp_out_gain": "gain out of the MLP",
    "value_gain": "gain of values and output",
    "score_gain": "gain of queries and keys",
    "attention_strength": "strength of attention",
    "mlp_strength": "strength of the MLP",
    "attention_branch": "multiplier of attention",
    "mlp_branch": "multiplier of the MLP",
}
MOST = 8.0  # of a gain: beyond it attention is sharper than the tables of the theory
SLIDERS = tuple(LABELS)
Slider = Literal[SLIDERS]  # type: ignore[valid-type]
Setting = Annotated[float, Field(ge=0.0, le=MOST, allow_inf_nan=False)]
POSITIONS = {"causal": False, "window": None, "rope": False, "alibi": False}


class Start(PageRequest):
    """Where tokens begin: their mean square and the overlap of two."""

    norm: Annotated[float, Field(ge=WIDEST[0], le=WIDEST[1], allow_inf_nan=False)] = 1.0
    overlap: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] = 0.0


class FlowRequest(PageRequest):
    """A network, or without a source the plain block; positions of its sliders; start of one more path.

    verdict: also say whether it trains, which takes longer.
    """

    source: NetworkSource | None = None
    knobs: dict[Slider, Setting] = Field(default_factory=dict, max_length=len(SLIDERS))
    start: Start | None = None
    verdict: bool = False


@router.post("/flow", responses=ERRORS)
async def flow(wanted: FlowRequest) -> Response:
    """Return the flow of size and likeness under one block: arrows, paths, fixed points, sliders, and what it means."""
    return await by_thread(flow_answer, wanted)


@lru_cache(maxsize=1)
def plain_block() -> Architecture:
    """Return a block whose skips shrink as its branches grow: states stay of one size [Cowsik 2024, fig. 1]."""
    pair = {**_values("attention_strength", 0.5), **_values("mlp_strength", 0.8)}
    return transformer(depth=24, tokens=64, activation="tanh", **pair).replace(name="a plain block")


def flow_answer(wanted: FlowRequest) -> Document:
    """Return arrows, paths, fixed points, sliders and sentences of one block."""
    given = plain_block() if wanted.source is None else read(wanted.source)
    base = given if given.symmetric else given.replace(**POSITIONS)
    other = [name for name in wanted.knobs if name not in shown(base)]
    if other:
        raise BadInput(f"{other[0]} is not a slider of this network. It has {', '.join(shown(base))}.")
    network = moved(base, wanted.knobs)
    start = wanted.start or Start(norm=float(np.clip(network.embedding_norm, *WIDEST)), overlap=0.0)
    verdict = {"verdict": screen_parts(judge(predict(moved(given, wanted.knobs))))} if wanted.verdict else {}
    return (
        drawing(network, start)
        | verdict
        | {
            "name": given.name or "transformer",
            "note": description(given)["note"],
            "tokens": network.tokens,
            "sliders": sliders(base, network),
            "start": start.model_dump(),
            "caption": caption(given),
        }
    )


def moved(base: Architecture, values: Mapping[str, float]) -> Architecture:
    """Return the network with its sliders where they stand."""
    changes: dict[str, float] = {}
    for name, value in values.items():
        changes |= _values(name, min(value, 1.0) if name.endswith("_strength") else value)
    return base.replace(**changes) if changes else base


def _values(name: str, value: float) -> dict[str, float]:
    return {knob: float(number) for knob, number in as_knobs(name, np.asarray(value)).items()}


def sliders(base: Architecture, network: Architecture) -> list[Document]:
    """Return gains, and of every branch its strength where skip and branch are such a pair, else its multiplier."""
    rows = []
    for name in shown(base):
        value, home = float(value_of(name, network)), float(value_of(name, base))
        low, high = (
            (0.0, 1.0) if name.endswith("_strength") else (0.0, min(MOST, max(4.0, span_of(name, home)[1])))
        )
        rows.append(
            {"knob": name, "label": LABELS[name], "low": low, "high": high, "value": value, "home": home}
        )
    return rows


def shown(network: Architecture) -> list[str]:
    """Return the sliders of layers that are there, with one value for all blocks."""
    names = []
    for part, there in (("mlp", bool(network.mlp_width)), ("attention", bool(network.heads))):
        gains = ["mlp_in_gain", "mlp_out_gain"] if part == "mlp" else ["value_gain", "score_gain"]
        pair = f"{part}_strength" if value_of(f"{part}_strength", network) is not None else f"{part}_branch"
        names += [*gains, pair] if there else []
    return [name for name in names if not isinstance(value_of(name, network), tuple)]


def drawing(network: Architecture, start: Start) -> Document:
    """Return paths, the last one from `start`, fixed points, a grid of arrows that holds them all, a reading."""
    overlaps, norms = (*STARTS, start.overlap), (*(network.embedding_norm for _ in STARTS), start.norm)
    paths, points = orbits(network, overlaps, norms, tabulated=True), asymptotics(network).fixed_points
    low, high = extent(paths, points)
    norm, overlap = np.geomspace(low, high, GRID[0]), np.linspace(0.0, 1.0, GRID[1])
    with np.errstate(all="ignore"):
        arrows = displacement(network, norm, np.minimum(overlap, HIGHEST), tabulated=True)
    return {
        "norm": rounded(norm),
        "overlap": rounded(overlap),
        "arrows": [rounded(part.ravel()) for part in arrows],
        "paths": [pairs(path) for path in paths],
        "starts": list(STARTS),
        "points": [point.json() for point in points],
        "extent": [low, high],
        "depth": network.depth,
    } | reading(points, paths[0])


def extent(paths: Sequence[Array], points: Sequence[FixedPoint]) -> tuple[float, float]:
    """Return whole decades around every finite mean square, at least 0.1 to 10, so that the axis rarely changes."""
    norms = np.concatenate([*(path[:, 0] for path in paths), [point.norm for point in points], [0.11, 9.9]])
    norms = norms[np.isfinite(norms) & (norms > 0)].clip(*WIDEST)
    return float(10.0 ** np.floor(np.log10(norms.min()))), float(10.0 ** np.ceil(np.log10(norms.max())))


def reading(points: Sequence[FixedPoint], path: Array) -> dict[str, str]:
    """Return what the plane says of tokens: a line, and why."""
    stable = [point for point in points if point.stable]
    apart = [point for point in stable if point.overlap < 1 - 1e-6]
    if apart:
        overlap = wording.overlap(apart[0].overlap, 1 - apart[0].overlap)
        state = f"the overlap (cosine) of two tokens is {overlap}, at a mean square of {apart[0].norm:.2f}"
        split = " It has split off from the state in which all are alike, which now repels."
        title = "Tokens settle apart"
        why = f"Paths lead to a state in which {state}.{split if len(points) > 1 else ''}"
    elif stable:
        title, slowest = "All tokens end alike", max(abs(value) for value in stable[0].eigenvalues)
        pace = "at once" if slowest < 1e-9 else f"closer by {per_cent(1 - slowest)} with every block"
        why = f"Every path leads to the state in which all tokens point the same way, {pace}."
    elif points:
        title, why = "No state attracts", "The block leaves a state alone, but its neighbors move away."
    else:
        title, why = _without_rest(path)
    return {"title": title, "sentences": prose(f"{why} {_end(path)}")}


def _without_rest(path: Array) -> tuple[str, str]:
    """No fixed point: the stream grows, fades, or does not move."""
    before, last = path[-2, 0], path[-1, 0]
    if abs(last - before) <= 1e-9 * before:
        return "Nothing moves", "Every state stays as it is: the branches add nothing to the stream."
    if last < path[0, 0]:
        return "The stream fades", "No state stays as it is: every block makes the tokens smaller."
    growth = (
        f" The last one adds {per_cent(last / before - 1)} to the mean square." if np.isfinite(last) else ""
    )
    return "The stream grows", f"No state stays as it is: every block adds to the stream.{growth}"


def _end(path: Array) -> str:
    """Return the end of the network's own path."""
    blocks = len(path) - 1
    if np.isnan(path[-1, 0]):
        return "Attention comes to rest on a single token on the way; the path ends there."
    if not 0 < path[-1, 0] < np.inf:
        return f"Within {blocks} blocks it leaves the range of numbers."
    overlap = wording.overlap(path[-1, 1], 1 - path[-1, 1])
    return (
        f"After the {blocks} blocks of this network, two that start at right angles have overlap {overlap}."
    )


def caption(given: Architecture) -> str:
    """Return what a point, an arrow, a line and a disc mean, and what is left out."""
    text = (
        "A point is a state of the tokens: their size, and the overlap of two. Arrows show where one block "
        "takes it, longer where it moves further; tokens become more alike on warm ground, less alike on blue. Lines "
        "are networks, one dot a block; the full disc attracts, the ring repels."
    )
    if not given.symmetric:
        text += " Mask and positions are left out here."
    if any(isinstance(value, tuple) for value in given.knobs().values()):
        text += " Arrows are those of the last block."
    return text


def pairs(path: Array) -> list[list[float]]:
    """Return points of a path until the stream overflows."""
    keep = np.isfinite(path).all(1) & (path[:, 0] > 0)
    inside = path[: len(path) if keep.all() else int(np.argmin(keep))]
    return [[float(f"{q:.5g}"), float(f"{c:.5g}")] for q, c in inside]


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


@router.post("/simplex", responses=ERRORS)
async def simplex(wanted: SimplexRequest) -> Response:
    """Return three ways to the target: paths on the triangle, condition numbers and losses along them."""
    return await by_thread(simplex_answer, wanted)


@router.get("/simplex/condition")
def condition() -> Response:
    """Return the condition number of the softmax over the triangle, on a lattice."""
    return json_reply(in_turn(_condition))


@cache
def _condition() -> bytes:
    """log10 of the condition number at (i, j, LATTICE - i - j), i outermost; corners and edges a little inside."""
    rows = np.array(
        [(i, j, LATTICE - i - j) for i in range(LATTICE + 1) for j in range(LATTICE + 1 - i)], float
    )
    inside = np.maximum(rows / LATTICE, 0.2 / LATTICE)
    return as_bytes(
        {"steps": LATTICE, "values": rounded(condition_numbers(np.log(inside / inside.sum(1)[:, None])))}
    )


def simplex_answer(wanted: SimplexRequest) -> Document:
    """Return the three flows, in the same units of time."""
    paths, scale, deviation = row_paths(wanted)
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
    } | simplex_reading(drawn, deviation)


def row_paths(wanted: SimplexRequest) -> tuple[dict[str, Array], float, float]:
    """Return log rows (times, 3) of the gradient with these keys, its decoupled limit, the natural gradient."""
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


def simplex_reading(drawn: Mapping[str, Any], deviation: float) -> dict[str, str]:
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
    return {"title": _faster(gradient["arrives"], natural["arrives"]), "sentences": prose(" ".join(parts))}


def _arrives(path: Mapping[str, Any]) -> str:
    time = path["arrives"]
    return "is not there at time 10 000" if time is None else f"is there at time {wording.number(time)}"


def _faster(gradient: float | None, natural: float | None) -> str:
    if natural is None:
        return "The natural gradient does not arrive"
    if gradient is None:
        return "Only the natural gradient arrives"
    ratio = gradient / natural
    if 1 / 1.5 <= ratio <= 1.5:
        return "Both take equally long"
    faster = "natural gradient" if ratio > 1.5 else "gradient"
    return f"The {faster} is {wording.number(max(ratio, 1 / ratio))} times faster"
