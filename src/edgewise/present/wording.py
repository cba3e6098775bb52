"""The sentences of a verdict for shell, notebook, page and report: they take numbers and leave notation out.

Shares: "about 34 %", "(32 to 36 %)", "almost none" below half a per cent; never 0 % or 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from edgewise.judgement.outcome import band
from edgewise.nouns.card import Line
from edgewise.nouns.verdict import Exponent, Kind, Outcome, Profile, Remedy, Verdict, per_cent
from edgewise.repair.plan import counting_word

# gradients within these factors of the last block's are called even, or uneven somewhat
EVEN, MILD = 2.0, 10.0
LISTED = 4  # numbers of blocks that are not a run
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
    """Return what its parts are called: a perceptron has layers and inputs, a transformer blocks and tokens."""
    return BLOCKS if verdict.perceptron is None else LAYERS


def title(verdict: Verdict) -> str:
    """Name, depth, norm, tokens: `gpt2 · 12 blocks · pre-norm · 128 tokens`."""
    profile = verdict.profile
    count = f"{profile.depth} {nouns(verdict).blocks if profile.depth > 1 else nouns(verdict).block}"
    norm = None if profile.norm is None else NORMS[profile.norm]
    tokens = None if profile.tokens is None else f"{profile.tokens} tokens"
    return " · ".join(part for part in (verdict.name or "this network", count, norm, tokens) if part)


def method(verdict: Verdict, seconds: float | None = None) -> str:
    """Return the source of the numbers, and how long they took."""
    source = "measured" if verdict.profile.measured else "theory"
    return source if seconds is None else f"{source}, {seconds:.1f} s"


def why(verdict: Verdict) -> str:
    """Return what stands beside the outcome: how many of such networks trained, or why that is not known."""
    if verdict.capped:
        return f"{verdict.capped}; how many of such networks trained is not known"
    if verdict.probability is None:
        return "by its numbers; such networks were not among those that were trained"
    earned = {Outcome.TRAINS: "nothing seen prevents it; "}.get(verdict.outcome, "")
    if verdict.outcome is Outcome.RISKY and band(verdict.probability.value) is Outcome.TRAINS:
        earned = "slow; "
    return earned + verdict.probability.sentence


def steps(verdict: Verdict) -> str:
    """Return how many times the steps of a sound start; empty if that is not known, or training is not expected."""
    known = verdict.slowdown is not None and verdict.outcome in (Outcome.TRAINS, Outcome.RISKY)
    return verdict.slowdown.sentence if known and verdict.slowdown is not None else ""


def unseen(verdict: Verdict) -> str:
    """Return what the answer is about, and what it did not see."""
    what = (
        "learning rate, optimizer and labels" if verdict.profile.measured else "weights, last layer and data"
    )
    return f"About the start of training only; {what} are not seen."


def unlike(verdict: Verdict) -> str:
    """In which ways the network is not among those that were tried; empty when it is."""
    return "" if verdict.probability is None else verdict.probability.unlike


def errors(verdict: Verdict) -> list[str]:
    """Errors in the weights, which come before everything else."""
    return [finding.sentence for finding in verdict.findings if finding.kind is Kind.INITIALIZATION_ERROR]


def sentences(verdict: Verdict) -> Iterator[str]:
    """Yield at most three: what happens to tokens, to gradients, and what else is wrong, or how attention spreads.

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
    """Return how the overlap of two tokens changes from the start to the output, and how fast."""
    changes = 0.0 if profile.halving is None else profile.depth * math.log(2) / profile.halving
    start, end = (overlap(profile.overlap[i], profile.separation[i]) for i in (0, -1))
    fact = f"the overlap (cosine) of two goes from {start} to {end}"
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


def gradients(profile: Profile, names: Nouns = BLOCKS) -> str:
    """Return what the first block gets of the last block's gradient, and the extreme on the way if that is worse."""
    row = profile.gradient
    first, low, high = row[0], min(row), max(row)
    share = f"the first {names.block} gets {of_the_last(first, names)}"
    if low >= 1 / EVEN and high <= EVEN:
        return f"Gradients stay even: {share}."
    grow = high >= 1 / max(low, 1e-300)
    worst, verb = (high, "grow") if grow else (low, "fade")
    somewhat = " somewhat" if 1 / MILD <= worst <= MILD else ""
    if worst == first or (worst and first and max(worst / first, first / worst) < 1.25):
        return f"Gradients {verb}{somewhat} towards the input: {share}."
    place = f"{names.block} {row.index(worst)} gets {of_the_last(worst, names)}"
    return f"Gradients {verb}{somewhat} on the way to the input: {place}, the first {names.block} {_part(first)}."


def of_the_last(ratio: float, names: Nouns = BLOCKS) -> str:
    """`12 % of the last block's`, `14 times the last block's`."""
    if 0.95 <= ratio <= 1.05:
        return f"as much as the last {names.block}"
    part = _part(ratio)
    return f"{part}{' of' if part.endswith('%') else ''} the last {names.block}'s"


def _part(ratio: float) -> str:
    """Return a ratio as a person says it: per cent up to 2, then times."""
    if ratio < 0.0005:
        return "less than 0.1 %"
    if ratio < 0.01:
        return f"{100 * ratio:.1f} %"
    if ratio < 2:
        return f"{100 * ratio:.0f} %"
    return f"{number(ratio)} times" if ratio < 1e6 else "more than a million times"


def attention(profile: Profile) -> str:
    """Return how many tokens are attended to, of those that can be seen."""
    assert profile.keys is not None
    count, visible = max(1, round(profile.keys)), profile.visible
    if visible is None or profile.tokens is None:
        return f"Each token attends to about {count} tokens."
    if visible >= 0.99 * profile.tokens:
        share = f"{min(count / profile.tokens, 1.0):.0%}"
        extent = f"about {count} of {profile.tokens} tokens ({share})".replace("%", " %")
    else:  # a mask: how many a token sees depends on its place, the share of them much less
        extent = f"about {min(profile.keys / visible, 1.0):.0%} of the tokens it may see".replace("%", " %")
    if profile.keys < 0.1 * visible:
        return f"Attention is sharp: each token attends to {extent}."
    return f"Each token attends to {extent}."


def number(value: float) -> str:
    """Below 10 with one decimal, above whole, thousands with a gap.

    >>> number(4.52), number(14.2), number(13400)
    ('4.5', '14', '13 400')
    """
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}".replace(",", " ")


def whole_sentence(text: str) -> str:
    """Return half a sentence as a whole one, with a capital letter and a period.

    >>> whole_sentence("nearly all of them trained"), whole_sentence("Why?")
    ('Nearly all of them trained.', 'Why?')
    """
    text = capitalised(text)
    return text if not text or text[-1] in ".!?:" else f"{text}."


def then(remedy: Remedy) -> str:
    """Return what a change leads to: `trains, 93 %`."""
    if remedy.probability is None:
        return remedy.outcome.value
    return f"{remedy.outcome.value}, {per_cent(remedy.probability)}"


def no_remedy(verdict: Verdict) -> str:
    """Return what to say if no change is proven: general advice, or that none of those that were tried helps."""
    if verdict.outcome is Outcome.TRAINS or not verdict.findings:
        return ""
    first = verdict.findings[0]
    return first.advice if first.search is None else first.search.why_none


LOSSES = {
    "token": "a loss per token",
    "pooled": "a loss of the mean over tokens",
    "class": "a loss of one token",
    "own": "the model's own loss",
}


def explain(verdict: Verdict) -> Iterator[Line]:
    """Exponents, forecast, attention, findings with all their remedies, what was ruled out, what is extrapolated."""
    rest = [f"Extrapolated: {reason}." for reason in verdict.extrapolated]
    rest += [f"Assumed: {note}." for note in verdict.notes]
    findings = []
    for finding in verdict.findings:
        findings.append(Line(f"[{finding.severity}] {finding.sentence}", finding.severity))
        findings.append(Line(f"    What to do: {finding.remedy}"))
    if verdict.ruled_out:
        findings.append(Line("Ruled out: " + "; ".join(verdict.ruled_out) + "."))
    yield from _in_its_words(verdict, (*map(Line, _numbers(verdict)), *findings, *map(Line, rest)))


def details(verdict: Verdict) -> Iterator[Line]:
    """Yield which theory or measurement, fixed points, power laws, a perceptron's limits."""
    yield from _in_its_words(verdict, map(Line, _details(verdict)))


def _in_its_words(verdict: Verdict, lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines in its words: a perceptron has layers and inputs, a transformer blocks and tokens."""
    words_of_layers = {"Tokens": "Inputs", "tokens": "inputs", "block": "layer", "the stream": "the signal"}
    for line in lines:
        text = line.text
        for word, other in words_of_layers.items() if verdict.perceptron is not None else ():
            text = text.replace(word, other)
        yield line._replace(text=text)


def _numbers(verdict: Verdict) -> Iterator[str]:
    yield (
        f"Angle exponent: {verdict.angle}. The growth rate of 1 - overlap, which is how much two tokens differ; "
        f"{verdict.phase.sentence}{_scale(verdict)}.{_change(verdict.angle)}"
    )
    if verdict.relative_gradient is not None and verdict.gradient is not None:
        relative = verdict.relative_gradient
        yield (
            f"Gradient exponent: {relative}. The growth rate towards the input of the squared gradient, relative to "
            f"the stream, for {LOSSES.get(verdict.readout or '', 'the loss')} (not divided by the stream's size: "
            f"{verdict.gradient.at_depth:+.4f}).{_change(relative)}"
        )
    if verdict.slowdown is not None:
        yield (
            f"Added by blocks: {-math.expm1(-verdict.slowdown.added):.3g} of the stream at the output. {steps(verdict)}"
        ).rstrip()
    forecast = verdict.probability
    if forecast is not None:
        low, high = 100 * forecast.low, 100 * forecast.high
        yield (
            f"Forecast: {100 * forecast.value:.1f} %. The share of recorded networks with numbers like these that "
            f"trained; {low:.1f} to {high:.1f} % when one kind of network is left out of the records."
        )
    attention = verdict.attention
    if attention is not None and attention.entropy is not None:
        uniform = attention.uniform_entropy
        yield (
            f"Attention entropy: at least {attention.entropy:.2f} nats"
            f"{'' if uniform is None or math.isnan(uniform) else f' of {uniform:.2f}'}. "
            "Its exponential is the number of tokens that a token attends to."
        )
    if attention is not None and attention.condensation is not None:
        yield (
            f"Condensation: at most {attention.condensation:.2f}. The variance of the attention scores over twice the "
            "logarithm of the number of tokens; from 1 on attention rests on a few tokens."
        )


def _change(exponent: Exponent) -> str:
    if exponent.change is None or not math.isfinite(exponent.change):
        return ""
    error = (
        f" ± {exponent.change_error:.2f}" if exponent.change_error and exponent.change_error >= 0.005 else ""
    )
    return f" At the rate of the second half the whole depth changes it by a factor e^{exponent.change:.2f}{error}."


def _scale(verdict: Verdict) -> str:
    scale = verdict.depth_scale
    return "" if scale is None or not math.isfinite(scale) else f", by a factor e every {scale:.3g} blocks"


def _details(verdict: Verdict) -> Iterator[str]:
    yield f"Source: {verdict.source}."
    if verdict.embedding_jump is not None:
        yield f"Across the first block the relative gradient changes by e^{verdict.embedding_jump:.2f}."
    if verdict.power_law is not None:
        yield f"The stream grows without bound, so 1 - overlap follows the power {verdict.power_law:+.2f} of its norm."
    for point in verdict.fixed_points:
        kind, (first, second) = "stable" if point.stable else "unstable", point.eigenvalues
        at = f"norm {point.norm:.4g}, overlap {point.overlap:.4g}"
        yield f"Fixed point ({kind}): {at}, eigenvalues {first:.4g}, {second:.4g}."
    for name, value in (verdict.perceptron or {}).items():
        if value is not None:  # a scale or a limit that this network does not have
            yield f"{name.replace('_', ' ').capitalize()}: {f'{value:.6g}' if isinstance(value, float) else value}"
    if verdict.remedies:
        yield (
            "Remedies: " + "; ".join(f"{r.sentence} ({then(r)}; {r.changes})" for r in verdict.remedies) + "."
        )


def vouched(verdict: Verdict) -> Iterator[str]:
    """Yield what the numbers do not vouch for."""
    if verdict.profile.left_out:
        yield f"{verdict.profile.left_out}."
    if verdict.extrapolated:
        yield f"Extrapolated: {'; '.join(verdict.extrapolated)}."
    yield from (f"Assumed: {note}." for note in verdict.notes if note.startswith("tokens: "))


def overlap(value: float, separation: float) -> str:
    """Return an overlap with more digits the nearer it is to 1.

    >>> overlap(0.4, 0.6), overlap(0.996, 0.004), overlap(1.0, 1e-5), overlap(1.0, 0.0)
    ('0.40', '0.996', '>0.9999', '1')
    """
    if separation == 0:
        return "1"
    if separation < 1e-4:
        return ">0.9999"
    digits = 2 if separation >= 0.01 else 3 if separation >= 0.001 else 4
    return f"{value + 0.0:.{digits}f}".replace("-0.00", "0.00")


def size(gradient: float) -> str:
    """Return two decimals in the middle, whole numbers above 10, bounds beyond what anyone compares.

    >>> size(0.5), size(14.2), size(1e7), size(1e-5)
    ('0.50', '14', '>999999', '<0.001')
    """
    if gradient > 999_999:
        return ">999999"
    if gradient >= 9.995:
        return f"{gradient:.0f}"
    if gradient >= 0.0995:
        return f"{gradient:.2f}"
    return f"{gradient:.3f}" if gradient >= 0.0005 else "<0.001"


def capitalised(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def group(names: Sequence[str]) -> str:
    """Return many parameters as the part of the model they share: `layers.1-23`; one as itself.

    >>> group(["layers.1.attn.q", "layers.2.attn.q", "layers.2.mlp.w", "layers.1.mlp.w"])
    'layers.1-2'
    >>> group(["layers.1.attn.w", "layers.2.mlp.w"])
    'layers.1-2.*.w'
    >>> group(["layers.0.mlp.b", "layers.1.mlp.b"])
    'layers.0-1.mlp.b'
    >>> group(["1.layers.0.mlp.b", "1.layers.1.mlp.b"])
    '1.layers.0-1.mlp.b'
    """
    place = counting_word(names)
    parts = [name.split(".") for name in names]
    stacks = {tuple(words[:place]) for words in parts}
    if len(names) == 1 or place is None or len(stacks) > 1:
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    inside = {".".join(words[place + 1 :]) for words in parts}
    ends = {rest.rpartition(".")[2] for rest in inside}
    tail = [inside.pop()] if len(inside) == 1 else ["*", ends.pop()] if len(ends) == 1 else []
    return ".".join([*stacks.pop(), span(sorted({int(words[place]) for words in parts})), *tail])


def span(numbers: Sequence[int]) -> str:
    """Return `1-23` for a run, `0,2,4` for a few others, `0..38` for many."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers)) if len(numbers) <= LISTED else f"{numbers[0]}..{numbers[-1]}"
