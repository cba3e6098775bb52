"""The map of a network with mask and positions: each point follows the network token by token, so that it takes long.

Points are drawn with one set of few random heads, which moves a share by less than 0.005; the verdict of a single
network, which has more and twice, is never read from here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.explorer import networks
from edgewise.explorer.answers import LEFT_OUT, axis_of, coloured
from edgewise.explorer.requests import AxesRequest, Knob, Request, Source, Value, read
from edgewise.explorer.share_map import levels_of
from edgewise.judgement.probability import training_probability
from edgewise.judgement.reading import read as read_trace
from edgewise.judgement.score import score_of
from edgewise.nouns.architecture import Architecture

HEADS, DRAWS = 8, 1
FEW = 16  # tokens of the first look
COARSE, FINE = 9, 17  # points on an axis; every other one of the second is one of the first
PIECE_SECONDS = 1.0  # then others have their turn


class SharesRequest(Request):
    """Places on the plane of two knobs, of a network followed over so many tokens."""

    source: Source
    x: Knob
    y: Knob
    readout: Literal["token", "pooled"] = "token"
    tokens: int
    places: Annotated[list[tuple[Value, Value]], Field(max_length=FINE**2)]


class Stage(NamedTuple):
    """One look at the plane: how many points on an axis, over how many tokens."""

    points: int
    tokens: int


def stages(tokens: int) -> list[Stage]:
    """Few points and tokens first, then more."""
    first = [Stage(COARSE, FEW)] if tokens > FEW else []
    return [*first, Stage(COARSE, tokens), Stage(FINE, tokens)]


def refuse_without_positions(wanted: AxesRequest) -> None:
    if read(wanted.source).symmetric:
        raise BadInput(
            "this network has neither a mask nor positions: its map leaves nothing out. Ask for `map`."
        )


def places(wanted: AxesRequest, stage: Stage) -> list[tuple[float, float]]:
    """Row by row from below, as shares are stored."""
    x, y = (grid(low, high, stage.points).tolist() for low, high in wanted.axes.values())
    return [(across, up) for up in y for across in x]


def grid(low: float, high: float, points: int) -> Array:
    return np.linspace(low, high, FINE)[:: (FINE - 1) // (points - 1)]


def shares(wanted: SharesRequest) -> list[float]:
    """The share at the first of the places, as many as are done in a second, at least one."""
    ends, found = time.monotonic() + PIECE_SECONDS, []
    base = read(wanted.source).replace(tokens=wanted.tokens)
    for x, y in wanted.places:
        found.append(share(networks.changed(base, {wanted.x: x, wanted.y: y}), wanted.readout))
        if time.monotonic() > ends:
            break
    return found


def share(network: Architecture, readout: str) -> float:
    """The probability of training of one network; 0 where its stream vanishes or leaves the range of numbers."""
    from edgewise.theory.gram.recursion import propagate_gram

    try:
        trace = propagate_gram(network, readout=readout, draws=DRAWS, samples=HEADS)
    except BadInput as refusal:
        if "divide by zero" in str(refusal):  # a gain of 0: nothing passes
            return 0.0
        raise
    score = score_of(read_trace(trace))
    return 0.0 if score is None else training_probability(score, trace).value


def map_answer(
    wanted: AxesRequest, stage: Stage, values: Mapping[tuple[float, float], float], plain: dict[str, Any]
) -> dict[str, Any]:
    """The map of a stage in the form of that without positions, whose lines it keeps."""
    (x_name, x_span), (y_name, y_span) = wanted.axes.items()
    x, y = grid(*x_span, stage.points), grid(*y_span, stage.points)
    share = np.array([values[place] for place in places(wanted, stage)]).reshape(len(y), len(x))
    return (
        plain
        | coloured(share, levels_of(x, y, share))
        | {
            "x": axis_of(x_name, x),
            "y": axis_of(y_name, y),
            "caption": caption(plain["caption"], stage),
        }
    )


def caption(plain: str, stage: Stage) -> str:
    """What was followed, and what is interpolated."""
    size = f"{stage.points} × {stage.points}"
    return plain.replace(
        LEFT_OUT,
        f"Colour has mask and positions in it: {size} networks were followed over {stage.tokens} tokens, and what lies "
        "between them is interpolated. Lines leave mask and positions out. The verdict of the dot is exact.",
    )


def slices(rest: list[tuple[float, float]], count: int) -> Iterator[list[tuple[float, float]]]:
    """Runs of places for so many workers, none of them long."""
    size = max(1, min(32, -(-len(rest) // count)))
    for first in range(0, min(len(rest), size * count), size):
        yield rest[first : first + size]
