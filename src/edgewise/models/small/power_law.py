"""A number at the config's sizes from its values in small models: c width^a share^b depth^e.

Matrices drawn with one standard deviation give gains that grow with the square root of the width, projections that
are scaled by the depth go with 1/sqrt(depth), scores that are not divided by sqrt(head width) grow with it. All these
exponents are multiples of one half; what follows no such law is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from edgewise.errors import BadInput

UNIT, LARGEST = 0.5, 2.0  # exponents are multiples of the one up to the other
TOLERANCE = 0.17  # of an exponent: gains of small models scatter by a few hundredths


class NoPowerLaw(BadInput):
    """A number that follows no power of a size, as far as the models that were read tell."""


@dataclass(frozen=True)
class Sizes:
    """What gains may depend on, as logarithms: the width, the share of one head in it, the number of layers."""

    width: float
    share: float
    depth: float


WORDS = {"width": "the width", "share": "the width of a head", "depth": "the depth"}


def extrapolate(
    what: str, sizes: Sequence[Sizes], values: Sequence[float | None], full: Sizes
) -> float | None:
    """The value at full size; `sizes[0]` is where all directions start, every other differs from it in one."""
    if all(value is None for value in values):
        return None
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        raise BadInput(
            f"{what} could be read at some sizes only; not described. Build the model and describe that."
        )
    if all(abs(number - numbers[0]) <= 1e-6 * abs(numbers[0]) for number in numbers):
        return numbers[0]
    if min(numbers) <= 0 <= max(numbers):
        raise BadInput(f"{what} is zero or changes sign with the size: {_text(numbers)}; not described.")
    logs = [math.log(abs(number)) for number in numbers]
    exponents = _exponents(what, sizes, logs)
    constants = [log - _power(exponents, point) for log, point in zip(logs, sizes, strict=True)]
    return math.copysign(math.exp(sum(constants) / len(constants) + _power(exponents, full)), numbers[0])


def _exponents(what: str, sizes: Sequence[Sizes], logs: Sequence[float]) -> Sizes:
    exponents = dict.fromkeys(WORDS, 0.0)
    for point, log in zip(sizes[1:], logs[1:], strict=True):
        name = next(f.name for f in fields(Sizes) if getattr(point, f.name) != getattr(sizes[0], f.name))
        slope = (log - logs[0]) / (getattr(point, name) - getattr(sizes[0], name))
        exponents[name] = UNIT * round(slope / UNIT)
        if abs(slope - exponents[name]) > TOLERANCE or abs(exponents[name]) > LARGEST:
            raise NoPowerLaw(
                f"{what} grows as {WORDS[name]} to the power {slope:.2f}. Expected a multiple of 1/2, as every usual "
                "initialization has, so its value at full size is not known. Build the model and describe that."
            )
    return Sizes(**exponents)


def _power(exponents: Sizes, point: Sizes) -> float:
    return sum(a * x for a, x in zip(astuple(exponents), astuple(point), strict=True))


def _text(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)
