"""Answers of the API as plain values: verdicts in the shell's sentences, maps as numbers for a canvas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgewise import __version__, verbs
from edgewise.arrays import Array
from edgewise.critical.phase_diagram import Lines
from edgewise.explorer import networks
from edgewise.explorer.share_map import CHOICES, LARGEST_GRID, ShareMap, axes_of, share_map, span_of
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.knobs import KNOBS
from edgewise.nouns.verdict import Outcome, Remedy, Verdict, finite, per_cent
from edgewise.present import wording
from edgewise.present.html import KINDS
from edgewise.present.html_report import Subject, after_fix, page
from edgewise.present.markup import prose, sentence_case
from edgewise.present.python_code import code_lines
from edgewise.present.svg import Rows, rows

API = 1
LEFT_OUT = "The map leaves mask and positions out; the verdict of the dot does not."
LABELS = {
    "mlp_in_gain": "gain of the MLP input matrix",
    "mlp_out_gain": "gain of the MLP output matrix",
    "value_gain": "gain of values and output together",
    "score_gain": "gain of queries and keys together",
    "mlp_bias": "spread of the hidden bias",
    "attention_branch": "multiplier of the attention branch",
    "mlp_branch": "multiplier of the MLP branch",
    "attention_skip": "multiplier of the skip around attention",
    "mlp_skip": "multiplier of the skip around the MLP",
    "embedding_norm": "mean square at the input",
}


def as_bytes(value: Any) -> bytes:
    """JSON without spaces, on one line; a number that is not finite is an error of ours."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def catalogue() -> dict[str, Any]:
    """What can be chosen, and the limits."""
    from edgewise.models.source import preset_names

    return {
        "version": __version__,
        "api": API,
        "presets": ["transformer", *preset_names()],
        "knobs": [{"name": name, "label": LABELS[name], "meaning": KNOBS[name].meaning} for name in CHOICES],
        "limits": {
            "depth": networks.DEEPEST,
            "tokens": networks.LONGEST,
            "points": LARGEST_GRID,
            "tokens_with_positions": networks.LONGEST_WITH_POSITIONS,
        },
    }


def description(network: Architecture, source_tokens: int | None = None) -> dict[str, Any]:
    """A network on the page: its name, sizes, and the axes it can be moved along."""
    axes = []
    for name in axes_of(network):
        value = float(getattr(network, name))
        low, high = span_of(name, value)
        axes.append({"knob": name, "label": LABELS[name], "low": low, "high": high, "value": value})
    return {
        "name": network.name or "transformer",
        "depth": network.depth,
        "tokens": network.tokens,
        "axes": axes,
        "positions": not network.symmetric,
        "note": _note(network, source_tokens),
    }


def _note(network: Architecture, source_tokens: int | None) -> str:
    """The network in one sentence, and what the page does differently from its source."""
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


def map_answer(
    network: Architecture, axes: Mapping[str, tuple[float, float]], points: int, readout: str
) -> dict[str, Any]:
    """Colours, and lines as pairs of coordinates."""
    result = share_map(network, axes, points, readout)
    diagram = result.diagram
    return {
        "x": axis_of(diagram.x_name, diagram.x),
        "y": axis_of(diagram.y_name, diagram.y),
        "lines": {name: [_pairs(line) for line in lines] for name, lines in diagram.boundaries.items()},
        "caption": caption(result),
    } | coloured(result.share, result.levels)


def coloured(share: Array, levels: Mapping[float, Lines]) -> dict[str, Any]:
    """Shares in thousandths row by row from below, and the lines of a quarter and three."""
    return {
        "share": [round(1000 * float(value)) for value in share.ravel()],
        "levels": {f"{level:g}": [_pairs(line) for line in lines] for level, lines in levels.items()},
    }


def axis_of(knob: str, values: Array) -> dict[str, Any]:
    return {"knob": knob, "low": float(values[0]), "high": float(values[-1]), "count": len(values)}


def _pairs(line: Any) -> list[list[float]]:
    return [[float(f"{x:.4g}"), float(f"{y:.4g}")] for x, y in line]


def caption(result: ShareMap) -> str:
    """What a point, a colour and a line mean, and what is left out."""
    lines = result.diagram.boundaries
    parts = [
        "Each point is a network that differs from yours in two knobs. Colour is the share of such networks that "
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


def point(network: Architecture, readout: str, with_fixes: bool) -> dict[str, Any]:
    """The exact verdict of one network with its curves; the fixes take longer and are worked out when asked for."""
    trace = verbs.predict(network, readout=readout)
    verdict = verbs.judge(trace)
    answer = screen_parts(verdict) | {
        "curves": curves(rows(verdict, trace)),
        "code": code_lines(network, readout),
    }
    return answer | ({"fixes": fixes(verdict, network)} if with_fixes else {})


def screen_parts(verdict: Verdict) -> dict[str, Any]:
    """The screen of a verdict, piece by piece."""
    share = None if verdict.probability is None else finite(verdict.probability.value)
    then = verdict.outcome.value if share is None else f"{verdict.outcome.value}, {per_cent(share)}"
    return {
        "then": prose(then),
        "title": wording.title(verdict),
        "method": wording.method(verdict),
        "kind": KINDS[verdict.outcome],
        "outcome": sentence_case(verdict.outcome.value).removesuffix("."),
        "share": share,
        "chance": sentence_case(wording.why(verdict)),
        "unlike": prose(wording.unlike(verdict)),
        "sentences": prose(" ".join([*wording.sentences(verdict)])),
        "extrapolated": list(verdict.extrapolated),
    }


def curves(values: Rows) -> dict[str, list[float | None]]:
    """Rows for small pictures; what is not finite is null."""
    return {name: [finite(v) for v in getattr(values, name)] for name in ("overlap", "gradient", "norm")}


def fixes(verdict: Verdict, network: Architecture) -> dict[str, Any]:
    """The remedies, the curves of the first, and what to say where there is none."""
    healthy = verdict.outcome in (Outcome.TRAINS, Outcome.UNDECIDED)
    remedies = () if healthy else verdict.remedies
    return {
        "rows": [_remedy(remedy, network) for remedy in remedies[:3]],
        "advice": "" if remedies else prose(wording.no_remedy(verdict)),
        "healthy": healthy,
    }


def _remedy(remedy: Remedy, network: Architecture) -> dict[str, Any]:
    """A change, what it leads to, and the knobs it sets where they are numbers that the map may have as axes."""
    moved = {k: v for k, v in remedy.changes.items() if isinstance(v, (int, float)) and k in CHOICES}
    whole = len(moved) == len(remedy.changes) and all(hasattr(network, name) for name in moved)
    return {
        "change": remedy.sentence,
        "note": remedy.note,
        "then": prose(wording.then(remedy)),
        "kind": KINDS[remedy.outcome],
        "knobs": moved if whole else None,
    }


def report(network: Architecture, readout: str) -> str:
    """The page of `edgewise report` for one network."""
    trace = verbs.predict(network, readout=readout)
    verdict = verbs.judge(trace)
    return page(Subject(verdict, trace, after=after_fix(verdict, trace)))
