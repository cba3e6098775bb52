"""The prose of a verdict: what `print(verdict)` shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from edgewise.verdict import Exponent, FixedPoint, Outcome, Probability, Verdict

_HEADLINES = {
    Outcome.TRAINS: "should train as configured",
    Outcome.RISKY: "is risky as configured",
    Outcome.FAILS: "will not train as configured",
    Outcome.UNDECIDED: "cannot be decided: the error bar reaches from fine to failing",
}


def headline(verdict: Verdict) -> str:
    """One line: the name, the outcome, the depth."""
    name = verdict.name or "The network"
    unit = "blocks" if verdict.perceptron is None else "layers"
    return f"{name} {_HEADLINES[verdict.outcome]} ({verdict.depth} {unit}; {verdict.source})."


class Line(NamedTuple):
    """One line of the paragraph; `severity` is that of the finding it states, else empty."""

    text: str
    severity: str = ""


def paragraph(verdict: Verdict) -> str:
    """Headline, numbers, findings with remedies, what was ruled out, what is extrapolated."""
    return "\n".join(line.text for line in lines(verdict))


def lines(verdict: Verdict) -> Iterator[Line]:
    """The paragraph line by line, the headline first, with the severity of each finding."""
    yield Line(headline(verdict))
    if verdict.departure:
        yield Line(verdict.departure)
    inside = (*map(Line, _numbers(verdict)), *_findings(verdict), *map(Line, _caveats(verdict)))
    for text, severity in inside:
        yield Line(text if verdict.perceptron is None else _of_layers(text), severity)


def _of_layers(text: str) -> str:
    """A perceptron has layers and inputs where a transformer has blocks and tokens."""
    words = {"Tokens": "Inputs", "tokens": "inputs", "block": "layer", "the stream": "the signal"}
    for word, other in words.items():
        text = text.replace(word, other)
    return text


def _numbers(verdict: Verdict) -> Iterator[str]:
    yield f"Angle exponent {verdict.angle}{_change(verdict.angle)}: {verdict.phase.sentence}{_scale(verdict)}."
    if verdict.relative_gradient is not None and verdict.gradient is not None:
        relative = verdict.relative_gradient
        yield (
            f"Gradient exponent, relative to the stream ({verdict.readout} readout): {relative}{_change(relative)}; "
            f"raw {verdict.gradient.at_depth:+.4f}."
        )
    if verdict.probability is not None:
        yield _probability(verdict.probability)
    if verdict.power_law is not None:
        yield f"The stream grows without bound, so 1 - overlap follows the power {verdict.power_law:+.2f} of its norm."
    for point in verdict.fixed_points:
        yield _fixed_point(point)
    attention = verdict.attention
    if attention is not None and attention.condensation is not None and attention.entropy is not None:
        yield (
            f"Attention: condensation ratio v/(2 log n) at most {attention.condensation:.2f}, expected entropy at "
            f"least {attention.entropy:.2f} of {attention.uniform_entropy:.2f} nats."
        )
    if verdict.perceptron is not None:
        yield from _perceptron(verdict.perceptron)


def _probability(forecast: Probability) -> str:
    """How often such networks trained, and whether this one is like them."""
    spread = f"{forecast.low:.0%} to {forecast.high:.0%} when one model family is left out of the fit"
    if forecast.outside:
        unlike = "; ".join(forecast.outside)
        return f"Forecast: {forecast.value:.0%} of networks of this score trained ({spread}); unlike them: {unlike}."
    return f"Forecast: {forecast.value:.0%} of such networks trained in the recorded sweep ({spread})."


def _change(exponent: Exponent) -> str:
    if exponent.change is None or not math.isfinite(exponent.change):
        return ""
    error = f" ± {exponent.change_error:.2f}" if exponent.change_error else ""
    return f" (changes by e^{exponent.change:.2f}{error} over the depth, extrapolated from its second half)"


def _scale(verdict: Verdict) -> str:
    scale = verdict.depth_scale
    return "" if scale is None or not math.isfinite(scale) else f", by a factor e every {scale:.3g} blocks"


def _fixed_point(point: FixedPoint) -> str:
    kind = "stable" if point.stable else "unstable"
    first, second = point.eigenvalues
    at = f"norm {point.norm:.4g}, overlap {point.overlap:.4g}"
    return f"Fixed point ({kind}): {at}, eigenvalues {first:.4g}, {second:.4g}."


def _perceptron(facts: dict[str, object]) -> Iterator[str]:
    for name, value in facts.items():
        if value is None:
            continue  # a scale or a limit that this network does not have
        text = f"{value:.6g}" if isinstance(value, float) else value
        yield f"  {name.replace('_', ' ')}: {text}"


def _findings(verdict: Verdict) -> Iterator[Line]:
    for finding in verdict.findings:
        yield Line(f"[{finding.severity}] {finding.sentence}", finding.severity)
        yield Line(f"    What to do: {finding.remedy}")
    if verdict.ruled_out:
        yield Line("Ruled out: " + "; ".join(verdict.ruled_out) + ".")


def _caveats(verdict: Verdict) -> Iterator[str]:
    for reason in verdict.extrapolated:
        yield f"Extrapolated: {reason}."
    yield "This is a statement about initialization; what training does later is not covered."


# Set here, so that the record need not import its prose.
Verdict.__str__ = paragraph  # type: ignore[method-assign, assignment]
