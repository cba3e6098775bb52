"""The sentences of a verdict for shell, notebook, page and report: they take numbers and leave notation out.

Shares: "about 34 %", "(32 to 36 %)", "almost none" below half a per cent; never 0 % or 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from edgewise.nouns.verdict import Kind, Outcome, Probability, Profile, Remedy, Verdict

EVEN, MILD = (
    2.0,
    10.0,
)  # gradients within these factors of the last block's are called even, or uneven somewhat
ALIKE = 0.05  # a starting overlap below this is called a right angle
MERGING = math.log(2) * 3  # halvings over the depth from which tokens are said to merge
NORMS = {
    "pre": "pre-norm",
    "post": "post-norm",
    "none": "no norm",
    "sandwich": "norms before and after each branch",
    "branch": "norm after each branch",
}


class Nouns(NamedTuple):
    """What a network consists of."""

    things: str = "tokens"
    thing: str = "token"
    blocks: str = "blocks"
    block: str = "block"


BLOCKS, LAYERS = Nouns(), Nouns("inputs", "input", "layers", "layer")


def nouns(verdict: Verdict) -> Nouns:
    """A perceptron has layers and inputs where a transformer has blocks and tokens."""
    return BLOCKS if verdict.perceptron is None else LAYERS


def title(verdict: Verdict) -> str:
    """Name, depth, norm, tokens: `gpt2 · 12 blocks · pre-norm · 128 tokens`."""
    profile = verdict.profile
    count = f"{profile.depth} {nouns(verdict).blocks if profile.depth > 1 else nouns(verdict).block}"
    norm = None if profile.norm is None else NORMS[profile.norm]
    tokens = None if profile.tokens is None else f"{profile.tokens} tokens"
    return " · ".join(part for part in (verdict.name or "this network", count, norm, tokens) if part)


def method(verdict: Verdict, seconds: float | None = None) -> str:
    """Where the numbers come from, and how long they took."""
    source = "measured" if verdict.profile.measured else "theory"
    return source if seconds is None else f"{source}, {seconds:.1f} s"


def per_cent(share: float) -> str:
    """A share as a person says it.

    >>> per_cent(0.344), per_cent(0.001), per_cent(0.9999)
    ('34 %', 'under 1 %', 'over 99 %')
    """
    return "under 1 %" if share < 0.005 else "over 99 %" if share > 0.995 else f"{100 * share:.0f} %"


def chance(probability: Probability | None) -> str:
    """How many of such networks trained, and how well that is known."""
    if probability is None:
        return "by its numbers; there are no records of such networks"
    value, low, high = probability.value, probability.low, probability.high
    if value < 0.005:
        return f"almost none of such networks trained ({'under 1' if high < 0.005 else f'up to {100 * high:.0f}'} %)"
    if value > 0.995:
        return f"nearly all such networks trained ({'over 99' if low > 0.995 else f'at least {100 * low:.0f}'} %)"
    return f"about {per_cent(value)} of such networks trained ({_between(low, high)})"


def why(verdict: Verdict) -> str:
    """What stands beside the outcome: how many of such networks trained, or why that is not known."""
    if verdict.capped:
        return f"{verdict.capped}; how many of such networks trained is not known"
    return chance(verdict.probability)


def errors(verdict: Verdict) -> list[str]:
    """Errors in the weights, which come before everything else."""
    return [finding.sentence for finding in verdict.findings if finding.kind is Kind.INITIALIZATION_ERROR]


def _between(low: float, high: float) -> str:
    first, last = (min(max(round(100 * share), 1), 99) for share in (low, high))
    return f"{first} to {last} %" if first < last else f"{last} %"


def unlike(probability: Probability | None) -> str:
    """In which ways the network is not among those that were tried; empty when it is."""
    outside = "; ".join(() if probability is None else probability.outside)
    for phrase in ("(those had ", "(those were "):
        outside = outside.replace(phrase, "(tried: ")
    return f"Outside of what was tried: {outside}." if outside else ""


def sentences(verdict: Verdict) -> Iterator[str]:
    """At most three: what happens to tokens, to gradients, and what else is wrong, or how attention spreads.

    A first loss far above chance comes before them.
    """
    names = nouns(verdict)
    yield from (finding.sentence for finding in verdict.findings if finding.kind is Kind.LARGE_FIRST_LOSS)
    lost = next((finding for finding in verdict.findings if finding.kind is Kind.STREAM_OUT_OF_RANGE), None)
    if lost is not None:
        yield lost.sentence
    else:
        yield tokens(verdict.profile, names)
        if verdict.profile.gradient:
            yield gradients(verdict.profile, names)
    others = [
        finding for finding in verdict.findings if finding.kind not in _TOLD and finding.severity != "note"
    ]
    if others:
        yield others[0].sentence
    elif verdict.profile.keys is not None:
        yield attention(verdict.profile)


_TOLD = {
    Kind.STREAM_OUT_OF_RANGE,
    Kind.RANK_COLLAPSE,
    Kind.FULL_COLLAPSE,
    Kind.TOKENS_SEPARATE,
    Kind.VANISHING_GRADIENT,
    Kind.EXPLODING_GRADIENT,
    Kind.ENTROPY_COLLAPSE,
    Kind.INITIALIZATION_ERROR,
    Kind.LARGE_FIRST_LOSS,
}


def tokens(profile: Profile, names: Nouns = BLOCKS) -> str:
    """How alike two tokens are at the output, and how fast that came about."""
    changes = 0.0 if profile.halving is None else profile.depth * math.log(2) / profile.halving
    fact = f"two that start {_start(profile.overlap[0])} {_end(profile)} at the output"
    things = names.things.capitalize()
    if profile.separation[-1] == 0:
        return f"{things} merge: all of them are identical at the output."
    assert profile.halving is not None or not changes
    if changes >= MERGING:
        pace = _pace(profile.halving, names)
        return f"{things} merge: {fact}, and half of what tells them apart is lost every {pace}."
    if changes <= -MERGING:
        pace = _pace(profile.halving, names)
        return (
            f"{things} drift apart: {fact}, and a small difference between two of them doubles every {pace}."
        )
    return f"{things} stay distinct: {fact}."


def _pace(halving: float | None, names: Nouns) -> str:
    """Every 4.5 blocks; what happens several times in one block is said so."""
    count = abs(halving or 0.0)
    if count < 0.95:
        return f"{count:.1f} {names.blocks}" if count >= 0.05 else f"fraction of a {names.block}"
    return names.block if round(count, 1) == 1.0 else f"{number(count)} {names.blocks}"


def _start(overlap: float) -> str:
    return "at right angles" if overlap < ALIKE else f"{100 * overlap:.0f} % alike"


def _end(profile: Profile) -> str:
    if profile.separation[-1] < 1 - ALIKE:
        return f"are {alike(profile.separation[-1])}"
    return "still are" if profile.overlap[0] < ALIKE else "are at right angles"


def alike(separation: float) -> str:
    """How alike two tokens are, from 1 - overlap.

    >>> alike(0.49), alike(0.0048), alike(1e-6)
    ('51 % alike', '99.5 % alike', 'more than 99.9 % alike')
    """
    if separation < 1e-3:
        return "more than 99.9 % alike"
    return f"{100 * (1 - separation):.{1 if separation < 0.02 else 0}f} % alike"


def gradients(profile: Profile, names: Nouns = BLOCKS) -> str:
    """What the first block gets of the last block's gradient, and the extreme on the way where that is worse."""
    row = profile.gradient
    first, low, high = row[0], min(row), max(row)
    share = f"the first {names.block} gets {of_the_last(first, names)}"
    if low >= 1 / EVEN and high <= EVEN:
        return f"Gradients stay even: {share}."
    grow = high >= 1 / max(low, 1e-300)
    worst, verb = (high, "grow") if grow else (low, "fade")
    somewhat = " somewhat" if 1 / MILD <= worst <= MILD else ""
    return f"Gradients {verb}{somewhat} towards the input: {share}{_extreme(row.index(worst), worst, first, names)}."


def _extreme(block: int, value: float, first: float, names: Nouns) -> str:
    """Another block that is off by half as much again."""
    if value == first or (value and first and max(value / first, first / value) < 1.5):
        return ""
    return f", and {names.block} {block} {'even' if value > first else 'only'} {_part(value)}"


def of_the_last(ratio: float, names: Nouns = BLOCKS) -> str:
    """`12 % of the last block's`, `14 times the last block's`."""
    if 0.95 <= ratio <= 1.05:
        return f"as much as the last {names.block}"
    part = _part(ratio)
    return f"{part}{' of' if part.endswith('%') else ''} the last {names.block}'s"


def _part(ratio: float) -> str:
    """A ratio as a person says it: per cent up to 2, then times."""
    if ratio < 0.0005:
        return "less than 0.1 %"
    if ratio < 0.01:
        return f"{100 * ratio:.1f} %"
    if ratio < 2:
        return f"{100 * ratio:.0f} %"
    return f"{number(ratio)} times" if ratio < 1e6 else "more than a million times"


def attention(profile: Profile) -> str:
    """How many tokens attention looks at, of those it can see."""
    assert profile.keys is not None
    looks, visible = f"about {max(1, round(profile.keys))}", profile.visible
    if visible is None or profile.tokens is None:
        return f"Attention looks at {looks} tokens at a time."
    if visible >= 0.99 * profile.tokens:
        extent = f"{looks} of {profile.tokens} tokens"
    else:  # a mask: how many a token sees depends on its place, the share of them much less
        extent = f"about {min(profile.keys / visible, 1.0):.0%} of the tokens it may see".replace("%", " %")
    if profile.keys < 0.1 * visible:
        return f"Attention is sharp: it looks at {extent}."
    return f"Attention looks at {extent}."


def number(value: float) -> str:
    """Below 10 with one decimal, above whole, thousands with a gap.

    >>> number(4.52), number(14.2), number(13400)
    ('4.5', '14', '13 400')
    """
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}".replace(",", " ")


def then(remedy: Remedy) -> str:
    """What a change leads to: `trains, 93 %`."""
    if remedy.probability is None:
        return remedy.outcome.value
    return f"{remedy.outcome.value}, {per_cent(remedy.probability)}"


def no_remedy(verdict: Verdict) -> str:
    """What to say where no change is proven: general advice, or that none of those that were tried helps."""
    if verdict.outcome is Outcome.TRAINS or not verdict.findings:
        return ""
    first = verdict.findings[0]
    return first.advice if first.search is None else first.search.why_none
