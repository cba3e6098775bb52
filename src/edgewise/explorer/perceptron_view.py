"""Perceptron view: length and correlation maps, the plane of order and chaos, a circle of inputs."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Response
from numpy.typing import ArrayLike
from pydantic import Field
from starlette.requests import Request as HttpRequest

from edgewise.arrays import Array
from edgewise.explorer.answers import rounded
from edgewise.explorer.requests import PageRequest
from edgewise.explorer.responses import ERRORS, by_thread, by_worker, pieces
from edgewise.files import Document
from edgewise.nouns.architecture import Perceptron
from edgewise.nouns.knobs import ACTIVATIONS
from edgewise.nouns.verdict import per_cent
from edgewise.present import wording
from edgewise.present.html import prose
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.perceptron.edge_of_chaos import boundary, length_fixed_point
from edgewise.theory.perceptron.maps import PerceptronMaps, PerceptronTheory
from edgewise.theory.perceptron.step import FAR, chi_1, separation_map

router = APIRouter()
MOST_WEIGHT, MOST_BIAS = 6.0, 1.5  # variances that the plane reaches
PLANE = (72, 48)  # nodes
CURVE, STEPS = 101, 16  # points of a map, layers that are followed
FADED = 1e-9  # a length at which every activation is linear
CAPTIONS = {
    "length": "The curve is what one layer does to the mean square of a signal; the staircase follows one through the "
    "layers to where curve and diagonal meet.",
    "correlation": "The same for how alike two inputs are, at the length where the first staircase ends. A curve that "
    "leaves the corner above the diagonal makes near inputs merge; one below it drives them apart.",
    "plane": "Each point is a family of random networks. On the line nearby inputs neither merge nor part; the warmer "
    "the color, the faster gradients fade on its left or explode on its right.",
    "circle": "A circle of inputs inside one random network of width 256, seen along its two widest directions, drawn "
    "to one size. The two dots are a pair that starts as alike as the second staircase.",
}
LARGEST_SIGNAL = 1e60
NEAR = 1e-7  # radians
WIDTH, ANGLES = 256, 240  # of the random network, and points on its circle


class PerceptronRequest(PageRequest):
    """A random perceptron, and the pair of inputs that is followed through it."""

    activation: Literal[ACTIVATIONS] = "tanh"  # type: ignore[valid-type]
    weight_variance: Annotated[float, Field(ge=0.0, le=MOST_WEIGHT, allow_inf_nan=False)] = 1.5
    bias_variance: Annotated[float, Field(ge=0.0, le=MOST_BIAS, allow_inf_nan=False)] = 0.05
    length: Annotated[float, Field(ge=0.01, le=10.0, allow_inf_nan=False)] = 3.0
    correlation: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] = 0.9
    seed: Annotated[int, Field(ge=0, le=10**6)] = 0

    def described(self) -> Perceptron:
        return Perceptron(self.activation, self.weight_variance, self.bias_variance, STEPS, WIDTH)


class PlaneRequest(PageRequest):
    """The plane of one activation."""

    activation: Literal[ACTIVATIONS] = "tanh"  # type: ignore[valid-type]


@router.post("/perceptron", responses=ERRORS)
async def perceptron(wanted: PerceptronRequest) -> Response:
    """Return both maps with a pair of inputs followed through them, the limits, and what they mean."""
    return await by_thread(maps_answer, wanted)


@router.post("/perceptron/plane", responses=ERRORS)
async def perceptron_plane(wanted: PlaneRequest) -> Response:
    """Return the growth of small differences over weight and bias variance, and the line on which there is none."""
    return await by_thread(plane_answer, wanted)


@router.post("/perceptron/circle", responses=ERRORS)
async def perceptron_circle(wanted: PerceptronRequest, request: HttpRequest) -> Response:
    """Return a circle of inputs after every layer of one random network, and how long theory says that it is."""
    return await by_worker(pieces, request, circle_answer, wanted)


def maps_answer(wanted: PerceptronRequest) -> Document:
    """Return curves, staircases (the value after every layer), fixed points and the reading."""
    maps = PerceptronMaps(wanted.described())
    limits = maps.limits
    lengths, correlations = length_orbit(maps, wanted.length), correlation_orbit(maps, wanted.correlation)
    top = length_window(limits.length_fixed_point, wanted.length)
    x, c = np.linspace(0, top, CURVE), np.linspace(0, 1, CURVE)
    points = [(q, slope) for q, slope in maps.length_fixed_points() if q <= top]
    return {
        "length": {
            "x": rounded(x),
            "y": rounded(maps.length(x)),
            "orbit": rounded(lengths),
            "top": top,
            "points": [{"at": q, "stable": abs(slope) < 1} for q, slope in points],
        },
        "correlation": {
            "x": rounded(c),
            "y": rounded(correlation_curve(maps, c)),
            "orbit": rounded(correlations),
            "top": 1.0,
            "points": correlation_points(limits),
        },
        "layers": STEPS,
        "captions": CAPTIONS,
    } | reading(limits, wanted)


def length_orbit(maps: PerceptronMaps, start: float) -> Array:
    values = [start]
    for _ in range(STEPS):
        values.append(float(maps.length(values[-1])) if values[-1] < LARGEST_SIGNAL else math.inf)
    return np.array(values)


def correlation_orbit(maps: PerceptronMaps, start: float) -> Array:
    values = [start]
    for _ in range(STEPS):
        values.append(float(np.clip(correlation_curve(maps, values[-1]), 0.0, 1.0)))
    return np.array(values)


def correlation_curve(maps: PerceptronMaps, correlation: ArrayLike) -> Array:
    """Return the map at q*, where signals that fade or grow without end are followed to the ends of the tables."""
    network, length = maps.perceptron, np.clip(maps.limits.length_fixed_point, FADED, FAR)
    variances = network.weight_variance, network.bias_variance
    separation = 1 - np.asarray(correlation, dtype=float)
    return 1 - separation_map(
        activation(network.activation), *variances, np.full_like(separation, length), separation
    )


def length_window(fixed_point: float, start: float) -> float:
    """Return half a unit above start and fixed point; four times the start without a fixed point."""
    highest = max(fixed_point, start) if math.isfinite(fixed_point) else 4 * start
    return max(1.0, math.ceil(2.2 * highest) / 2)


def correlation_points(limits: PerceptronTheory) -> list[Document]:
    """Return c = 1, stable where small differences shrink, and c* below it where they do not."""
    below = limits.correlation_fixed_point
    at_one = {"at": 1.0, "stable": not below < 1 - 1e-6}
    return [at_one] if not below < 1 - 1e-6 else [{"at": below, "stable": True}, at_one]


def reading(limits: PerceptronTheory, wanted: PerceptronRequest) -> Document:
    """Return the phase as text, how far a signal reaches, and where the edge is."""
    title, first = _phase(limits)
    edge = limits.boundary_weight_variance
    away = math.isfinite(edge) and limits.phase != "critical"
    nearest = f" The edge is at a weight variance of {edge:.3g}." if away else ""
    text = f"{first} {_reach(limits.trainable_depth)}{nearest}"
    return {
        "title": title,
        "phase": limits.phase,
        "sentences": prose(text),
        "edge": edge if away else None,
        "name": f"{wanted.activation}, weight variance {wanted.weight_variance:.3g}, bias variance "
        f"{wanted.bias_variance:.3g}",
    }


def _phase(limits: PerceptronTheory) -> tuple[str, str]:
    """Return what happens to nearby inputs and to gradients; where lengths have no limit, to lengths."""
    length, change = limits.length_fixed_point, _change(limits.chi_1)
    if math.isinf(length):
        return "Signals explode", f"Signals, and gradients on their way back, {change} with every layer."
    if length < 1e-6 and limits.phase == "ordered":
        return "Signals fade", f"Signals, and gradients on their way back, {change} with every layer."
    fades = length < 1e-6
    settles = (
        "Signals fade, slower and slower." if fades else f"Signals settle at a mean square of {length:.3g}."
    )
    if limits.phase == "critical":
        return "The edge of chaos", f"Nearby inputs keep their distance, and gradients their size. {settles}"
    title = "Order: inputs merge" if limits.phase == "ordered" else "Chaos: inputs part"
    what = "The squared distance of nearby inputs, and gradients on their way back,"
    return title, f"{what} {change} with every layer. {settles}"


def _change(factor: float) -> str:
    if math.isinf(factor):
        return "grow faster and faster"
    if factor < 1:
        return f"shrink by {per_cent(1 - factor)}"
    return f"grow by {per_cent(factor - 1)}" if factor < 2 else f"grow {wording.number(factor)} times larger"


def _reach(depth: float) -> str:
    """Return the rule of thumb of [Schoenholz 2017], six depth scales."""
    rule = "By the rule of Schoenholz and others (2017)"
    if math.isinf(depth):
        return f"{rule} depth alone does not stop such networks from training."
    return f"{rule} such networks train up to {f'about {depth:.0f} layers' if depth >= 1.5 else 'a single layer'}."


def plane_answer(wanted: PlaneRequest) -> Document:
    """Return log chi_1 on a grid, and the line where it vanishes."""
    phi = activation(wanted.activation)
    x, y = np.linspace(0, MOST_WEIGHT, PLANE[0]), np.linspace(0, MOST_BIAS, PLANE[1])
    sw2, sb2 = np.meshgrid(x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.log(chi_1(phi, sw2, length_fixed_point(phi, sw2, sb2)))
    line = np.stack(boundary(phi, largest_bias_variance=MOST_BIAS), axis=-1)
    inside = line[line[:, 0] <= MOST_WEIGHT] if len(line) else line
    return {
        "x": {"high": MOST_WEIGHT, "count": PLANE[0]},
        "y": {"high": MOST_BIAS, "count": PLANE[1]},
        "rate": rounded(np.clip(np.nan_to_num(rates, neginf=-9, posinf=9), -9, 9).ravel()),
        "edge": [[float(f"{a:.4g}"), float(f"{b:.4g}")] for a, b in inside],
        "words": {"left": "order: inputs merge", "right": "chaos: neighbors part", "edge": "edge of chaos"},
    }


def circle_answer(wanted: PerceptronRequest) -> Document:
    """Return the circle from the length where signals settle, so that only its shape changes.

    Else from the given one.
    """
    network = wanted.described()
    settled = PerceptronMaps(network).limits.length_fixed_point
    start = settled if FADED < settled < FAR else wanted.length
    # The circle after every layer, in its two widest directions, with its length and a pair on it.
    layers, speeds = simulated(network, start, math.acos(wanted.correlation), wanted.seed)
    with np.errstate(all="ignore"):
        theory = PerceptronMaps(network).circle(angles=np.zeros(1), start_length=start).euclidean_length
    return {
        "layers": [[[round(float(a), 4), round(float(b), 4)] for a, b in view] for view in views(layers)],
        "stretched": rounded(speeds / speeds[0]),
        "theory": rounded(theory[: len(layers)] / theory[0]),
        "pair": rounded(cosines(layers)),
    }


def simulated(network: Perceptron, length: float, pair: float, seed: int) -> tuple[Array, Array]:
    """Return every layer's circle and the pair after it (L + 1, ANGLES + 3, N), and mean speeds along it, while finite.

    Speeds are those of points next to each other (NEAR): a finely folded curve needs no fine sampling.
    """
    import torch

    from edgewise.nets.build import RandomPerceptron, circle

    angles = np.concatenate([np.linspace(0, 2 * np.pi, ANGLES + 1), [0.0, pair]])
    both = torch.from_numpy(np.concatenate([angles, angles + NEAR]))
    with torch.no_grad():
        model = RandomPerceptron(network, seed=seed).double()
        layers, beside = np.split(model.preactivations(circle(both, WIDTH, length, seed)).numpy(), 2, axis=1)
    with np.errstate(all="ignore"):
        speeds = np.linalg.norm((beside - layers)[:, :ANGLES], axis=-1).mean(1) / NEAR
    inside = np.isfinite(speeds) & (np.abs(layers).max((1, 2)) < LARGEST_SIGNAL)
    count = len(layers) if inside.all() else int(np.argmin(inside))
    return layers[:count], speeds[:count]


def views(layers: Array) -> list[Array]:
    """Return each layer in its two widest directions, of one size, turned to lie as the layer before does."""
    drawn: list[Array] = []
    for layer in layers:
        curve = layer - layer[:ANGLES].mean(0)
        _, _, directions = np.linalg.svd(curve[:ANGLES:4], full_matrices=False)
        flat = curve @ directions[:2].T
        flat /= max(float(np.abs(flat).max()), 1e-300)
        if drawn:
            left, _, right = np.linalg.svd(flat.T @ drawn[-1])
            flat = flat @ (left @ right)
        drawn.append(flat)
    return drawn


def cosines(layers: Array) -> Array:
    """Return how alike the two inputs of the pair are after every layer; nan once a signal is gone."""
    one, other = layers[:, -2], layers[:, -1]
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(1) / np.where(sizes > 0, sizes, np.nan))
