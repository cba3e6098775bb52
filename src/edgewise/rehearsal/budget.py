"""What a rehearsal can cost, said beforehand."""

from __future__ import annotations

# Chosen on the networks of experiments/learning_rate/horizon.py, before those of second_population.py were trained.
LONGER, LONG_RATES = 3, 4  # times the steps, and rates at most, where the usual ones turn out to be too few
LOOKED_AT = 2  # rehearsals that can say so: the first that does not raise the loss


def most_steps(steps: int, rates: int, longer: bool) -> int:
    """Training steps at most, all rehearsals together.

    >>> most_steps(20, 6, False), most_steps(20, 6, True)
    (120, 280)
    """
    usual = steps * rates
    return max(usual, steps * (LOOKED_AT + LONGER * min(rates, LONG_RATES))) if longer else usual


def in_words(steps: int, rates: int, longer: bool) -> str:
    """
    >>> in_words(20, 6, True)
    'at most 120 training steps (280 if 20 at a time turn out to be too few)'
    """
    more = (
        f" ({most_steps(steps, rates, True)} if {steps} at a time turn out to be too few)" if longer else ""
    )
    return f"at most {steps * rates} training steps{more}"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
