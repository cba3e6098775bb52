"""One random network of a description beside its theory: drawn, run forward and backward, and nothing fitted."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from edgewise.errors import BadInput
from edgewise.explorer.answers import curves
from edgewise.explorer.requests import PointRequest, moved
from edgewise.nouns.architecture import Architecture
from edgewise.present.svg import Rows

WIDTHS = (256, 128, 64)  # of what is drawn: theory is of wide networks, and these answer in seconds
MOST_WORK = 24 * 256 * 256**2  # blocks times tokens times squared width
LONGEST = 512  # tokens


class SimulateRequest(PointRequest):
    """Where the dot is, and which random network."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


def answer(wanted: SimulateRequest) -> dict[str, Any]:
    """The three curves of one random network, and how it differs from the description."""
    from edgewise.study.random_network import simulated

    network = moved(wanted)
    drawn = narrower(network)
    with np.errstate(all="ignore"):
        orbit = simulated(drawn, seed=wanted.seed)
        logs = (orbit.token_gradient if wanted.readout == "token" else orbit.pooled_gradient) + np.log(
            orbit.norm
        )
        rows = Rows(
            _plain(1 - orbit.separation), _plain(np.exp((logs - logs[-1]) / 2)), _plain(np.sqrt(orbit.norm))
        )
    return {"curves": curves(rows), "note": _note(network, drawn)}


def _plain(row: Any) -> tuple[float, ...]:
    return tuple(row.tolist())


def narrower(network: Architecture) -> Architecture:
    """The same description at a width that can be drawn here: gains are per fan-in, so theory is the same."""
    if network.tokens > LONGEST:
        raise BadInput(f"a network of {network.tokens:,} tokens is not drawn here. Choose at most {LONGEST}.")
    widths = [width for width in (network.width, *WIDTHS) if width <= max(network.width, WIDTHS[-1])]
    work = network.depth * network.tokens
    width = next((each for each in widths if each <= WIDTHS[0] and work * each**2 <= MOST_WORK), None)
    if width is None:
        raise BadInput(
            f"{network.depth} blocks of {network.tokens} tokens are not drawn here. Choose a smaller depth or length."
        )
    return network if width == network.width else _resized(network, width)


def _resized(network: Architecture, width: int) -> Architecture:
    share = width / network.width
    heads = max(
        (h for h in range(1, width + 1) if width % h == 0 and h <= max(1, network.heads * share)), default=1
    )
    changes: dict[str, Any] = {
        "width": width,
        "mlp_width": max(1, round(network.mlp_width * share)),
        "heads": heads,
        "head_width": None,
        "kv_heads": None,
    }
    absent = {name for name in ("heads", "mlp_width") if not getattr(network, name)}
    return network.replace(**{name: value for name, value in changes.items() if name not in absent})


def _note(network: Architecture, drawn: Architecture) -> str:
    width = "" if drawn.width == network.width else f" of width {drawn.width} instead of {network.width}"
    return f"Circles: one random network{width}, drawn and run; lines: theory."
