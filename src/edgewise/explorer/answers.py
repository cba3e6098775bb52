"""Answers about networks as plain values: map, verdict with curves and fixes, report, random network, share by depth.

Over depth a fix is chosen at one depth and kept at all others, so that a curve is of one network made deeper.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from edgewise import __version__, verbs
from edgewise.arrays import Array
from edgewise.critical.phase_diagram import Lines, PhaseDiagram
from edgewise.errors import BadInput
from edgewise.explorer import requests
from edgewise.files import Document
from edgewise.judgement.grid import judged_diagram
from edgewise.judgement.outcome import OUTCOME_BANDS, tried
from edgewise.models.describe import describe
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.knobs import KNOBS
from edgewise.nouns.verdict import Outcome, Remedy, Verdict, finite, per_cent
from edgewise.present import wording
from edgewise.present.cards import DepthRows, code_lines, depth_rows, verdict_card
from edgewise.present.html import KINDS, prose, sentence_case
from edgewise.present.html_report import ReportSubject, after_fix, page

R = TypeVar("R", bound=BaseModel)
API = 1
LEFT_OUT = "The map leaves mask and positions out; the verdict of the dot does not."
MOST_STEPS = 64 * requests.LARGEST_GRID**2  # blocks times points: more would keep a reader waiting
LEVELS = (OUTCOME_BANDS.fails_up_to, OUTCOME_BANDS.trains_from)
WIDTHS = (256, 128, 64)  # of what is drawn: theory is of wide networks, and these answer in seconds
MOST_WORK = 24 * 256 * 256**2  # blocks times tokens times squared width
LONGEST_SIMULATED = 512  # tokens
MOST_FIXES, MOST_DEPTHS = 3, 12
DEEPEST_WITH_POSITIONS = 96  # blocks: mask and positions are followed token by token
# blocks times squared tokens of one question, with a mask or positions: seconds
MOST_DEPTH_WORK = requests.DEEPEST * 64**2
MOST_BLOCKS = 8 * requests.DEEPEST  # of one question without them
Depth = Annotated[int, Field(ge=1, le=requests.DEEPEST)]


def as_bytes(value: object) -> bytes:
    """Return JSON without spaces, on one line; a number that is not finite is an error of ours."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def rounded(values: Array) -> list[float | None]:
    """Return four digits of every number; null if it is not finite."""
    return [
        None if finite(value) is None else float(f"{value:.4g}") for value in np.asarray(values, dtype=float)
    ]


def as_json(function: Callable[[R], object], wanted: R) -> bytes:
    """Return the answer of a function to a request; what a worker process is given to compute."""
    return as_bytes(function(wanted))


def ready() -> bytes:
    """Load what the first reader would wait for."""
    source = requests.NetworkSource(preset="transformer", depth=2, tokens=4)
    x, y = (requests.KnobAxis(knob=knob, low=0.5, high=1.0) for knob in ("mlp_in_gain", "attention_branch"))
    as_json(point, requests.PointRequest(source=source))
    return as_json(map_answer, requests.MapRequest(source=source, points=2, x=x, y=y))


def catalogue() -> Document:
    """Return what can be chosen, and the limits."""
    from edgewise.models.source import preset_names

    return {
        "version": __version__,
        "api": API,
        "presets": ["transformer", *preset_names()],
        "knobs": [
            {"name": name, "label": requests.LABELS[name], "meaning": KNOBS[name].meaning}
            for name in requests.CHOICES
        ],
        "limits": {
            "depth": requests.DEEPEST,
            "tokens": requests.LONGEST,
            "points": requests.LARGEST_GRID,
            "tokens_with_positions": requests.LONGEST_WITH_POSITIONS,
        },
    }


def description(network: Architecture, source_tokens: int | None = None) -> Document:
    """Return a network on the page: its name, sizes, and the axes it can be moved along."""
    axes = []
    for name in requests.axes_of(network):
        value = float(getattr(network, name))
        low, high = requests.span_of(name, value)
        axes.append({"knob": name, "label": requests.LABELS[name], "low": low, "high": high, "value": value})
    return {
        "name": network.name or "transformer",
        "depth": network.depth,
        "tokens": network.tokens,
        "axes": axes,
        "positions": not network.symmetric,
        "note": _note(network, source_tokens),
    }


def _note(network: Architecture, source_tokens: int | None) -> str:
    """Return the network in one sentence, and what the page does differently from its source."""
    activation = network.activation if isinstance(network.activation, str) else "own activation"
    heads = f"{network.heads} heads" if network.heads else "no attention"
    mask = "causal" if network.causal else "no mask"
    norm = wording.NORMS[network.norm]
    text = f"{network.depth} blocks of width {network.width}, {heads}, {activation}, {norm}, {mask}."
    if source_tokens is not None and source_tokens > network.tokens:
        text += (
            f" Followed over {network.tokens} of {wording.number(source_tokens)} tokens, to answer at once."
        )
    return text


def own_tokens(source: requests.NetworkSource) -> int | None:
    """Return the length that the source itself has if the page may follow a shorter one, else None."""
    if source.tokens is not None:
        return None
    if source.preset is not None:
        return getattr(describe(source.preset), "tokens", None)
    return requests.from_config(source.config or "", source.name, source.depth, None).tokens


def map_answer(wanted: requests.MapRequest) -> Document:
    """Return colors, and lines as pairs of coordinates."""
    result = share_map(requests.read(wanted.source), wanted.axes, wanted.points, wanted.readout)
    diagram = result.diagram
    return {
        "x": axis_of(diagram.x_name, diagram.x),
        "y": axis_of(diagram.y_name, diagram.y),
        "lines": {name: [_pairs(line) for line in lines] for name, lines in diagram.boundaries.items()},
        "caption": caption(result),
    } | colored(result.share, result.levels)


def colored(share: Array, levels: Mapping[float, Lines]) -> Document:
    """Return shares in thousandths row by row from below, and the lines of a quarter and three."""
    return {
        "share": [round(1000 * float(value)) for value in share.ravel()],
        "levels": {f"{level:g}": [_pairs(line) for line in lines] for level, lines in levels.items()},
    }


def axis_of(knob: str, values: Array) -> Document:
    return {"knob": knob, "low": float(values[0]), "high": float(values[-1]), "count": len(values)}


def _pairs(line: Any) -> list[list[float]]:
    return [[float(f"{x:.4g}"), float(f"{y:.4g}")] for x, y in line]


def caption(result: ShareMap) -> str:
    """Return what a point, a color and a line mean, and what is left out."""
    lines = result.diagram.boundaries
    parts = [
        "Each point is a network that differs from yours in two knobs. Color is the share of such networks that "
        "trained."
    ]
    solid = "Along the solid line two nearly equal tokens neither merge nor separate."
    dashed = "Along the dashed line the gradient neither grows nor fades."
    parts += [sentence for name, sentence in (("angle", solid), ("gradient", dashed)) if lines[name]]
    names = {"angle": "the line of steady tokens", "gradient": "the line of steady gradients"}
    absent = [name for kind, name in names.items() if not lines[kind]]
    if absent:
        parts.append(f"This plane does not contain {' or '.join(absent)}.")
    if not result.diagram.architecture.symmetric:
        parts.append(LEFT_OUT)
    return " ".join(parts)


def point(wanted: requests.PointRequest) -> Document:
    """Return the exact verdict of one network with its curves, and its fixes if they are requested."""
    network = requests.moved(wanted)
    trace = verbs.predict(network, readout=wanted.readout)
    verdict = verbs.judge(trace)
    answer = screen_parts(verdict) | {
        "curves": curves(depth_rows(verdict, trace)),
        "code": code_lines(network, wanted.readout),
    }
    return answer | ({"fixes": fixes(verdict, network)} if wanted.fixes else {})


def screen_parts(verdict: Verdict) -> Document:
    """Return the screen of a verdict, piece by piece."""
    card = verdict_card(verdict, fixes=False)
    share = None if verdict.probability is None else finite(verdict.probability.value)
    then = card.answer if share is None else f"{card.answer}, {per_cent(share)}"
    return {
        "then": prose(then),
        "title": card.title,
        "method": card.source,
        "kind": KINDS[card.outcome],
        "outcome": sentence_case(card.answer).removesuffix("."),
        "share": share,
        "chance": sentence_case(card.reasons[0]),
        "unlike": prose(" ".join(card.reasons[1:])),
        "sentences": prose(" ".join(card.sentences)),
        "extrapolated": list(verdict.extrapolated),
    }


def curves(values: DepthRows) -> dict[str, list[float | None]]:
    """Return rows for small pictures; what is not finite is null."""
    return {name: [finite(v) for v in getattr(values, name)] for name in ("overlap", "gradient", "norm")}


def fixes(verdict: Verdict, network: Architecture) -> Document:
    """Return the remedies, the curves of the first, and what to say if there is none."""
    healthy = verdict.outcome in (Outcome.TRAINS, Outcome.UNDECIDED)
    remedies = () if healthy else verdict.remedies
    rows = []
    for remedy in remedies[:3]:  # with the knobs it sets if all are numbers that the map may have as axes
        moved = {
            k: v for k, v in remedy.changes.items() if isinstance(v, (int, float)) and k in requests.CHOICES
        }
        whole = len(moved) == len(remedy.changes) and all(hasattr(network, name) for name in moved)
        rows.append(
            {
                "change": remedy.sentence,
                "note": remedy.note,
                "then": prose(wording.then(remedy)),
                "kind": KINDS[remedy.outcome],
                "knobs": moved if whole else None,
            }
        )
    advice = "" if remedies else prose(wording.no_remedy(verdict))
    return {"rows": rows, "advice": advice, "healthy": healthy}


def report(wanted: requests.PointRequest) -> str:
    """Return the page of `edgewise report` for one network."""
    trace = verbs.predict(requests.moved(wanted), readout=wanted.readout)
    verdict = verbs.judge(trace)
    return page(ReportSubject(verdict, trace, after=after_fix(verdict, trace)))


@dataclass(frozen=True)
class ShareMap:
    """share (Y, X), the lines on which both exponents of near tokens vanish, and those of a quarter and three."""

    diagram: PhaseDiagram
    share: Array
    levels: Mapping[float, Lines]


def share_map(
    architecture: Architecture, axes: Mapping[str, tuple[float, float]], points: int, readout: str = "token"
) -> ShareMap:
    """Return the map of two knobs from low to high, `points` on each axis; fewer if the network is deep."""
    points = affordable(points, architecture.depth)
    diagram = judged_diagram(architecture, {k: (*span, points) for k, span in axes.items()}, readout)
    assert diagram.share is not None
    share = diagram.share
    return ShareMap(diagram, share, levels_of(diagram.x, diagram.y, share))


def affordable(points: int, depth: int) -> int:
    """Return how many points on an axis are answered in a few seconds."""
    if not 2 <= points <= requests.LARGEST_GRID:
        raise BadInput(f"points must be from 2 to {requests.LARGEST_GRID}, got {points}.")
    return max(2, min(points, int((MOST_STEPS / depth) ** 0.5)))


def levels_of(x: Array, y: Array, share: Array) -> dict[float, Lines]:
    """Return the lines on which a quarter and three quarters of the networks train."""
    from contourpy import contour_generator

    contours = contour_generator(x=x, y=y, z=share)
    return {level: [np.asarray(line) for line in contours.lines(level)] for level in LEVELS}


class SimulateRequest(requests.PointRequest):
    """Where the dot is, and which random network."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


def simulate(wanted: SimulateRequest) -> Document:
    """Return the three curves of one random network, and how it differs from the description."""
    from edgewise.nets.build import simulated

    network = requests.moved(wanted)
    drawn = narrower(network)
    with np.errstate(all="ignore"):
        orbit = simulated(drawn, seed=wanted.seed)
        logs = (orbit.token_gradient if wanted.readout == "token" else orbit.pooled_gradient) + np.log(
            orbit.norm
        )
        values = 1 - orbit.separation, np.exp((logs - logs[-1]) / 2), np.sqrt(orbit.norm)
    rows = DepthRows(*(tuple(row.tolist()) for row in values))
    width = "" if drawn.width == network.width else f" of width {drawn.width} instead of {network.width}"
    note = f"Circles: one random network{width}, drawn and run; lines: theory."
    return {"curves": curves(rows), "note": note}


def narrower(network: Architecture) -> Architecture:
    """Return the same description at a width that can be drawn here: gains are per fan-in, so theory is the same."""
    if network.tokens > LONGEST_SIMULATED:
        raise BadInput(
            f"a network of {network.tokens:,} tokens is not drawn here. Choose at most {LONGEST_SIMULATED}."
        )
    widths = [width for width in (network.width, *WIDTHS) if width <= max(network.width, WIDTHS[-1])]
    work = network.depth * network.tokens
    width = next((each for each in widths if each <= WIDTHS[0] and work * each**2 <= MOST_WORK), None)
    if width is None:
        raise BadInput(
            f"{network.depth} blocks of {network.tokens} tokens are not drawn here. Choose a smaller depth or length."
        )
    if width == network.width:
        return network
    share = width / network.width
    heads = max(
        (h for h in range(1, width + 1) if width % h == 0 and h <= max(1, network.heads * share)), default=1
    )
    changes: Document = {
        "width": width,
        "mlp_width": max(1, round(network.mlp_width * share)),
        "heads": heads,
        "head_width": None,
        "kv_heads": None,
    }
    absent = {name for name in ("heads", "mlp_width") if not getattr(network, name)}
    return network.replace(**{name: value for name, value in changes.items() if name not in absent})


class FixesRequest(requests.PageRequest):
    """The depth at which fixes are looked for is that of the source."""

    source: requests.NetworkSource
    readout: Literal["token", "pooled"] = "token"


class DepthRequest(FixesRequest):
    """fix: which of the fixes found at `at` blocks is made; none for the network as it is."""

    fix: Annotated[int, Field(ge=0, lt=MOST_FIXES)] | None = None
    at: Depth | None = None
    depths: Annotated[list[Depth], Field(min_length=1, max_length=MOST_DEPTHS)]


class LimitRequest(FixesRequest):
    """trains: a depth at which it does; above: a deeper one at which it does not. None if there is none."""

    fix: Annotated[int, Field(ge=0, lt=MOST_FIXES)] | None = None
    at: Depth | None = None
    trains: Depth | None = None
    above: Depth | None = None


def depth_answer(wanted: DepthRequest) -> Document:
    """Return the share at each depth, with its range and the outcome."""
    low, high = tried()["depth"]
    _check_work(requests.read(wanted.source), sum(wanted.depths))
    rows = [_row(wanted, each) for each in wanted.depths]
    deepest = requests.DEEPEST if requests.read(wanted.source).symmetric else DEEPEST_WITH_POSITIONS
    return {"rows": rows, "tried": [low, high], "deepest": deepest}


def _row(wanted: DepthRequest | LimitRequest, blocks: int) -> Document:
    verdict = verbs.judge(verbs.predict(_network(wanted, blocks), readout=wanted.readout))
    chance = verdict.probability
    numbers = (None, None, None) if chance is None else (chance.value, chance.low, chance.high)
    share = dict(zip(("share", "low", "high"), numbers, strict=True))
    return {"depth": blocks, **share, "kind": KINDS[verdict.outcome], "outcome": verdict.outcome.value}


def _check_work(network: Architecture, blocks: int) -> None:
    """Raise for more work than is answered in seconds."""
    positions = not network.symmetric
    if blocks > MOST_BLOCKS or (positions and blocks * network.tokens**2 > MOST_DEPTH_WORK):
        kind = f" of {network.tokens} tokens with a mask or positions" if positions else ""
        raise BadInput(
            f"{blocks:,} blocks{kind} are more than this page follows at once. Ask for fewer depths, or choose a "
            "shorter length."
        )


def _network(wanted: DepthRequest | LimitRequest, blocks: int) -> Architecture:
    """Return the source at another depth; a config decides itself what follows from its depth."""
    network = requests.read(wanted.source.model_copy(update={"depth": blocks}))
    if wanted.fix is None:
        return network
    chosen = wanted.source.model_copy(update={"depth": wanted.at or wanted.source.depth})
    found = _fixes(chosen.model_dump_json(), wanted.readout)
    if wanted.fix >= len(found):
        raise BadInput(
            f"there are {len(found)} fixes at this depth, so none has the number {wanted.fix + 1}."
        )
    return network.replace(**found[wanted.fix].changes)


def depth_fixes(wanted: FixesRequest) -> Document:
    """Return the fixes at the depth of the source, in the shell's words."""
    found = _fixes(wanted.source.model_dump_json(), wanted.readout)
    return {"rows": [{"change": remedy.sentence, "note": remedy.note} for remedy in found]}


@lru_cache(maxsize=64)
def _fixes(source: str, readout: str) -> tuple[Remedy, ...]:
    network = requests.read(requests.NetworkSource.model_validate_json(source))
    return tuple(verbs.judge(verbs.predict(network, readout=readout)).remedies[:MOST_FIXES])


def depth_limit(wanted: LimitRequest) -> Document:
    """Return the deepest network that trains: the way between two depths is halved at most eight times."""
    trains, above = wanted.trains, wanted.above
    if trains is not None and above is not None and trains >= above:
        raise BadInput(f"trains = {trains} must be less than above = {above}.")
    _check_work(requests.read(wanted.source), above or 1)
    rows = []
    while trains is not None and above is not None and above - trains > 1:
        rows.append(_row(wanted, (trains + above) // 2))
        # alone: deep networks are unlike the record, which leaves their outcome open
        share = rows[-1]["share"]
        if share is not None and share >= OUTCOME_BANDS.trains_from:
            trains = rows[-1]["depth"]
        else:
            above = rows[-1]["depth"]
    after = _row(wanted, above) if above is not None else None
    sentence, deepest = _sentence(trains, after), tried()["depth"][1]
    if (trains or 0) > deepest:
        sentence += (
            f" The record has no network of more than {deepest} blocks: there the share is extrapolated."
        )
    then = "at no depth"
    if trains is not None:
        then = f"up to {_blocks(trains)}" if after else f"to {_blocks(trains)} and beyond"
    return {"limit": trains, "rows": rows, "sentence": sentence, "then": then}


def _sentence(trains: int | None, after: Document | None) -> str:
    """Return the curve as text."""
    most = _share(OUTCOME_BANDS.trains_from)
    if trains is None:
        return f"Fewer than {most} of such networks trained, at every depth that was followed."
    if after is None:
        return (
            f"At least {most} of such networks train at every depth that was followed, to {_blocks(trains)}."
        )
    then = "none can be given" if after["share"] is None else _share(after["share"])
    return f"Up to {_blocks(trains)} at least {most} of such networks train; with {after['depth']}, {then}."


def _share(value: float) -> str:
    return per_cent(value).replace(" %", "\u00a0%")


def _blocks(count: int) -> str:
    return f"{count} block{'s' if count != 1 else ''}"
