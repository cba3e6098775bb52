"""The numbers behind a verdict with a sentence on each (`--explain`), and what is left of them (`--verbose`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from edgewise import words
from edgewise.nouns.verdict import Exponent, FixedPoint, Probability, Verdict
from edgewise.screen import Line

LOSSES = {
    "token": "a loss per token",
    "pooled": "a loss of the mean over tokens",
    "class": "a loss of one token",
    "own": "the model's own loss",
}


def explain(verdict: Verdict) -> Iterator[Line]:
    """Exponents, forecast, attention, findings with all their remedies, what was ruled out, what is extrapolated."""
    yield from _in_its_words(
        verdict, (*map(Line, _numbers(verdict)), *_findings(verdict), *map(Line, _rest(verdict)))
    )


def details(verdict: Verdict) -> Iterator[Line]:
    """Which theory or measurement, fixed points, power laws, a perceptron's limits."""
    yield from _in_its_words(verdict, map(Line, _details(verdict)))


def _in_its_words(verdict: Verdict, lines: Iterable[Line]) -> Iterator[Line]:
    """A perceptron has layers and inputs where a transformer has blocks and tokens."""
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
    if verdict.probability is not None:
        yield _probability(verdict.probability)
    attention = verdict.attention
    if attention is not None and attention.entropy is not None:
        uniform = attention.uniform_entropy
        yield (
            f"Attention entropy: at least {attention.entropy:.2f} nats"
            f"{'' if uniform is None or math.isnan(uniform) else f' of {uniform:.2f}'}. "
            "Its exponential is the number of tokens that attention looks at."
        )
    if attention is not None and attention.condensation is not None:
        yield (
            f"Condensation: at most {attention.condensation:.2f}. The variance of the attention scores over twice the "
            "logarithm of the number of tokens; from 1 on attention rests on a few tokens."
        )


def _probability(forecast: Probability) -> str:
    """How often such networks trained, and how far that moves."""
    return (
        f"Forecast: {100 * forecast.value:.1f} %. The share of recorded networks with numbers like these that trained; "
        f"{100 * forecast.low:.1f} to {100 * forecast.high:.1f} % when one kind of network is left out of the records."
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


def _findings(verdict: Verdict) -> Iterator[Line]:
    for finding in verdict.findings:
        yield Line(f"[{finding.severity}] {finding.sentence}", finding.severity)
        yield Line(f"    What to do: {finding.remedy}")
    if verdict.ruled_out:
        yield Line("Ruled out: " + "; ".join(verdict.ruled_out) + ".")


def _rest(verdict: Verdict) -> Iterator[str]:
    for reason in verdict.extrapolated:
        yield f"Extrapolated: {reason}."
    for note in verdict.notes:
        yield f"Assumed: {note}."


def _details(verdict: Verdict) -> Iterator[str]:
    yield f"Source: {verdict.source}."
    if verdict.embedding_jump is not None:
        yield f"Across the first block the relative gradient changes by e^{verdict.embedding_jump:.2f}."
    if verdict.power_law is not None:
        yield f"The stream grows without bound, so 1 - overlap follows the power {verdict.power_law:+.2f} of its norm."
    yield from map(_fixed_point, verdict.fixed_points)
    for name, value in (verdict.perceptron or {}).items():
        if value is not None:  # a scale or a limit that this network does not have
            yield f"{name.replace('_', ' ').capitalize()}: {f'{value:.6g}' if isinstance(value, float) else value}"
    if verdict.remedies:
        yield (
            "Remedies: "
            + "; ".join(f"{r.sentence} ({words.then(r)}; {r.changes})" for r in verdict.remedies)
            + "."
        )


def _fixed_point(point: FixedPoint) -> str:
    kind = "stable" if point.stable else "unstable"
    first, second = point.eigenvalues
    at = f"norm {point.norm:.4g}, overlap {point.overlap:.4g}"
    return f"Fixed point ({kind}): {at}, eigenvalues {first:.4g}, {second:.4g}."
