"""How much memory this machine has: what an answer would need is refused before it is begun."""

from __future__ import annotations

import os
from typing import Any

from edgewise.errors import BadInput

PER_PAIR = 8.0  # bytes for each pair of tokens: the weights of one head and their gradient


def physical_memory() -> float:
    """Bytes; where the system does not say, enough that nothing is refused."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def refuse_tokens(tokens: Any) -> None:
    """The length of a random input that a model is to run on: whole, two at least, and its attention must fit."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 2:
        raise BadInput(f"tokens must be a whole number of at least 2, got {tokens!r}.")
    if PER_PAIR * tokens**2 > physical_memory():
        fitting = int((physical_memory() / PER_PAIR) ** 0.5)
        raise BadInput(
            f"{tokens:,} tokens would need {PER_PAIR * tokens**2 / 1e9:,.0f} GB for the attention of one head, and "
            f"this machine has {physical_memory() / 1e9:.0f} GB. Use at most {fitting:,} tokens; few do."
        )
