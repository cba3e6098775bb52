"""What the Gram recursion would need, and a refusal before it is begun where this machine does not have it.

Per draw, for n tokens and L blocks with S sampled heads: arrays of n^2 numbers, those of the attention probabilities
where they are held between forward and backward, and per head products of n x n matrices and features of its width.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.arrays import physical_memory
from edgewise.errors import BadInput
from edgewise.theory.gram.heads import Sampling

WORKING = 220.0  # bytes per pair of tokens: the largest layer at work
BETWEEN = 60.0  # bytes per pair of tokens and block: what the way back needs
PER_PAIR, PER_TRIPLE = 7e-8, 2e-11  # seconds per head and pair of tokens, and for each further token
PER_FEATURE, PER_PRODUCT = (
    2.5e-8,
    1.2e-10,
)  # per head, token and entry of a head; per pair of tokens and entry
SHARE = 0.8  # of the memory of the machine
LONGEST = 24 * 3600.0  # seconds


@dataclass(frozen=True)
class Cost:
    """Bytes at the peak, and seconds on one core."""

    memory: float
    seconds: float


def cost(tokens: int, depth: int, draws: int, sampling: Sampling, head_width: int = 64) -> Cost:
    """Estimated to a factor of about two."""
    pairs = float(tokens) ** 2
    held = depth * sampling.samples * 4.0 if sampling.keep else 0.0
    again = 1.0 if sampling.keep else 1.5  # probabilities are drawn a second time
    one = (
        pairs * (PER_PAIR + PER_TRIPLE * tokens + PER_PRODUCT * head_width)
        + PER_FEATURE * tokens * head_width
    )
    return Cost(pairs * (WORKING + depth * BETWEEN + held), draws * depth * sampling.samples * again * one)


def affordable(tokens: int, depth: int, draws: int, sampling: Sampling, head_width: int = 64) -> Cost:
    """The cost; what needs more memory than there is, or more than a day, is refused, saying what would fit."""

    def of(count: int) -> Cost:
        return cost(count, depth, draws, sampling, head_width)

    need, most = of(tokens), SHARE * physical_memory()
    if need.memory <= most and need.seconds <= LONGEST:
        return need
    fitting = tokens
    while fitting > 2 and (of(fitting).memory > most or of(fitting).seconds > LONGEST):
        fitting //= 2
    less = of(fitting)
    raise BadInput(
        f"{tokens:,} tokens through {depth:,} blocks with a mask or positions would need {_text(need)}, and this "
        f"machine has {physical_memory() / 1e9:.0f} GB. tokens = {fitting:,} needs {_text(less)}; without mask, "
        "window, RoPE and ALiBi the cost does not depend on the length."
    )


def _text(cost: Cost) -> str:
    hours = cost.seconds / 3600
    time = f"{hours:,.0f} h" if hours >= 1 else f"{max(cost.seconds / 60, 1):.0f} min"
    return f"{cost.memory / 1e9:,.1f} GB and about {time}"
