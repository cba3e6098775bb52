"""How many times the steps of a sound start a network needs, by what its start shows.

    log slowdown = a quiet + b full + c risk + e excess + d

quiet   log of how far F over the whole depth, what blocks add to their stream, is below `ENOUGH`: they learn late
full    log of how far it is above: they write over what the stream carries
risk    the risk of `probability`: the late changes of angle and gradient, and the late F
excess  log of the first loss over that of guessing, if it was measured

All constants depend on where the loss is read: with one label for a sequence blocks may write much more. The table
`slowdown.json` is written by `python -m experiments.atlas.forecast` from the trained atlas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources

from edgewise.files import Document
from edgewise.judgement.probability import RiskScore, curve_of, risks
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import FirstLoss, Trace
from edgewise.nouns.verdict import Slowdown

TABLE = "slowdown.json"
# F that is neither too little nor too much, and below which less of it changes nothing: weights that grow in the first
# steps do not start from zero. Chosen with the constants, among nine pairs on 26 shapes (research/forecast.md).
ENOUGH = {"token": 1.0, "pooled": 8.0}
LEAST = 1e-2
LOUDEST = 10.0  # a risk beyond this one changes nothing either
NAMED = 1.25  # times the steps of a sound start, from which on what costs the most is named
CAUSES = {
    "quiet": "its blocks add little to the stream and have to grow first",
    "full": "its blocks write over what the stream carries",
    "risk": "its blocks change the stream or the gradient much",
    "excess": "its first loss is far above that of guessing",
}
LONGEST = 5.0  # what "never within 500 steps", 3.3 times those of a sound start, counts as


@dataclass(frozen=True)
class StartParts:
    """What the expected slowdown is made of, none negative."""

    quiet: float = 0.0
    full: float = 0.0
    risk: float = 0.0
    excess: float = 0.0

    @classmethod
    def of(cls, curve: str, added: float, risk: float, loss: FirstLoss | None = None) -> StartParts:
        """Return the parts: F over the whole depth, the risk and the first loss, by where the loss is read."""
        above = math.log((added + LEAST) / (ENOUGH[curve] + LEAST))
        excess = 0.0 if loss is None else math.log(max(loss.value, loss.chance) / loss.chance)
        return cls(max(0.0, -above), max(0.0, above), min(risk, LOUDEST), min(excess, LOUDEST))


def parts_of(score: RiskScore, trace: Trace) -> StartParts | None:
    """Return the parts of a start; None if what its blocks add to the stream is not known."""
    if score.added is None or not isinstance(trace.architecture, Architecture) or trace.step:
        return None
    risk = sum(risks(score, trace).values())
    return StartParts.of(curve_of(trace), score.added, risk, trace.first_loss)


@cache
def slowdown_table() -> Document:
    """Return the table: constants by stage, the range of what was trained, and how well it did on families left out."""
    table: Document = json.loads(resources.files("edgewise.judgement").joinpath(TABLE).read_text())
    return table


def log_slowdown(parts: StartParts, constants: Mapping[str, float]) -> float:
    """Return the logarithm of the expected slowdown, at most that of what never arrives."""
    value = sum(constants[name] * size for name, size in asdict(parts).items()) + constants["offset"]
    return min(value, math.log(LONGEST))


def expected(score: RiskScore, trace: Trace) -> Slowdown | None:
    """Return the expected slowdown of a start; None if it is not known."""
    parts = parts_of(score, trace)
    if parts is None:
        return None
    table = slowdown_table()
    constants = table["stages"]["predict" if trace.source.startswith("theory") else "measure"][
        curve_of(trace)
    ]
    log = log_slowdown(parts, constants)
    low, high = (min(math.exp(log + constants[end]), LONGEST) for end in ("low", "high"))
    costs = {name: constants[name] * size for name, size in asdict(parts).items()}
    worst = max(costs, key=lambda name: costs[name])
    (shallow, deep), (short, long) = (table["range"][name] for name in ("blocks", "tokens"))
    tried = f"{table['networks']} networks of {shallow} to {deep} blocks and {short} to {long} tokens"
    cause = CAUSES[worst] if log >= math.log(NAMED) and costs[worst] > 0 else ""
    assert score.added is not None
    return Slowdown(math.exp(log), low, high, score.added, tried, cause)
