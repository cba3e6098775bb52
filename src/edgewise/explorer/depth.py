"""Depth view: the share of networks that trained against depth, for a block and for its fixes.

A fix is chosen once, at one depth, and then kept at all others, so that a curve is of one network made deeper.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from edgewise import verbs
from edgewise.errors import BadInput
from edgewise.explorer.requests import DEEPEST, Document, NetworkSource, PageRequest, read
from edgewise.judgement.outcome import OUTCOME_BANDS, calibration
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.verdict import Remedy, Verdict, per_cent
from edgewise.present.html import KINDS

MOST_FIXES, MOST_DEPTHS = 3, 12
DEEPEST_WITH_POSITIONS = 96  # blocks: mask and positions are followed token by token
MOST_WORK = DEEPEST * 64**2  # blocks times squared tokens of one question, with a mask or positions: seconds
MOST_BLOCKS = 8 * DEEPEST  # of one question without them
Depth = Annotated[int, Field(ge=1, le=DEEPEST)]


class FixesRequest(PageRequest):
    """The depth at which fixes are looked for is that of the source."""

    source: NetworkSource
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


def answer(wanted: DepthRequest) -> Document:
    """Return the share at each depth, with its range and the outcome."""
    low, high = calibration()["range"]["depth"]
    _check_work(read(wanted.source), sum(wanted.depths))
    rows = [_row(wanted, each) for each in wanted.depths]
    return {"rows": rows, "tried": [low, high], "deepest": _deepest(read(wanted.source))}


def _row(wanted: DepthRequest | LimitRequest, blocks: int) -> Document:
    verdict = _verdict(wanted, blocks)
    chance = verdict.probability
    numbers = (None, None, None) if chance is None else (chance.value, chance.low, chance.high)
    share = dict(zip(("share", "low", "high"), numbers, strict=True))
    return {"depth": blocks, **share, "kind": KINDS[verdict.outcome], "outcome": verdict.outcome.value}


def _check_work(network: Architecture, blocks: int) -> None:
    """What is asked for at once must be answered in seconds."""
    positions = not network.symmetric
    if blocks > MOST_BLOCKS or (positions and blocks * network.tokens**2 > MOST_WORK):
        kind = f" of {network.tokens} tokens with a mask or positions" if positions else ""
        raise BadInput(
            f"{blocks:,} blocks{kind} are more than this page follows at once. Ask for fewer depths, or choose a "
            "shorter length."
        )


def _verdict(wanted: DepthRequest | LimitRequest, blocks: int) -> Verdict:
    return verbs.judge(verbs.predict(_network(wanted, blocks), readout=wanted.readout))


def _network(wanted: DepthRequest | LimitRequest, blocks: int) -> Architecture:
    """The source at another depth; a config decides itself what follows from its depth."""
    network = read(wanted.source.model_copy(update={"depth": blocks}))
    if wanted.fix is None:
        return network
    chosen = wanted.source.model_copy(update={"depth": wanted.at or wanted.source.depth})
    found = _fixes(chosen.model_dump_json(), wanted.readout)
    if wanted.fix >= len(found):
        raise BadInput(
            f"there are {len(found)} fixes at this depth, so none has the number {wanted.fix + 1}."
        )
    return network.replace(**found[wanted.fix].changes)


def fixes_answer(wanted: FixesRequest) -> Document:
    """Return the fixes at the depth of the source, in the shell's words."""
    found = _fixes(wanted.source.model_dump_json(), wanted.readout)
    return {"rows": [{"change": remedy.sentence, "note": remedy.note} for remedy in found]}


@lru_cache(maxsize=64)
def _fixes(source: str, readout: str) -> tuple[Remedy, ...]:
    network = read(NetworkSource.model_validate_json(source))
    return tuple(verbs.judge(verbs.predict(network, readout=readout)).remedies[:MOST_FIXES])


def _deepest(network: Architecture) -> int:
    return DEEPEST if network.symmetric else DEEPEST_WITH_POSITIONS


def limit(wanted: LimitRequest) -> Document:
    """Return the deepest network that trains, in a sentence: the way between two depths is halved at most eight
    times.
    """
    trains, above = wanted.trains, wanted.above
    if trains is not None and above is not None and trains >= above:
        raise BadInput(f"trains = {trains} must be less than above = {above}.")
    _check_work(read(wanted.source), above or 1)
    rows = []
    while trains is not None and above is not None and above - trains > 1:
        rows.append(_row(wanted, (trains + above) // 2))
        if _trains(rows[-1]):
            trains = rows[-1]["depth"]
        else:
            above = rows[-1]["depth"]
    after = _row(wanted, above) if above is not None else None
    sentence = _sentence(trains, after) + _beyond(trains)
    return {"limit": trains, "rows": rows, "sentence": sentence, "then": _then(trains, after)}


def _beyond(trains: int | None) -> str:
    deepest = calibration()["range"]["depth"][1]
    if (trains or 0) <= deepest:
        return ""
    return f" The record has no network of more than {deepest} blocks: there the share is extrapolated."


def _trains(row: Document) -> bool:
    """By the share alone: deep networks are unlike those of the record, and their outcome is left open for that."""
    return row["share"] is not None and row["share"] >= OUTCOME_BANDS.trains_from


def _sentence(trains: int | None, after: Document | None) -> str:
    """What the curve says, for somebody who does not look at it."""
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


def _then(trains: int | None, after: Document | None) -> str:
    if trains is None:
        return "at no depth"
    return f"up to {_blocks(trains)}" if after else f"to {_blocks(trains)} and beyond"


def _blocks(count: int) -> str:
    return f"{count} block{'s' if count != 1 else ''}"
