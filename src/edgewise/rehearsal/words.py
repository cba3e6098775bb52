"""A `Rate` in plain words."""

from __future__ import annotations

from edgewise.rehearsal.rate import Rate, Rehearsal


def paragraph(rate: Rate) -> str:
    """What to use, how far it can be trusted, where the edge is and why, and what it cost."""
    return " ".join([_advice(rate), *_edge(rate), _cost(rate), *(f"{_capital(note)}." for note in rate.notes)])


def number(rate: float) -> str:
    """Two digits: 1.6e-3 for rates below a hundredth, 0.16 above."""
    if rate >= 0.01:
        return f"{rate:.2g}"
    mantissa, exponent = f"{rate:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _advice(rate: Rate) -> str:
    setting = f"{rate.optimizer} {f'with {rate.warmup} steps of warm-up' if rate.warmup else 'without warm-up'}"
    if rate.best is None or rate.low is None or rate.high is None:
        low, high = (number(value) for value in (rate.tried[0], rate.tried[-1]))
        return f"{setting}: no rate from {low} to {high} lowered the loss on fresh batches."
    return f"{setting}: use {number(rate.best)} ({number(rate.low)} to {number(rate.high)})."


def _edge(rate: Rate) -> list[str]:
    beyond = rate.beyond
    if rate.best is None:
        return []
    if beyond is None:
        return [f"No rate up to {number(rate.tried[-1])} was too large."]
    sentence = f"At {number(beyond.rate)} {_why(rate, beyond)}"
    return [sentence + (f"; treat {number(rate.edge)} as the edge." if rate.edge is not None else ".")]


def _why(rate: Rate, beyond: Rehearsal) -> str:
    reason = f"{beyond.reason} within {beyond.left_at} steps"
    before, after = rate.start.separation, beyond.separation
    if beyond.reason is not None and "alike" in beyond.reason and before is not None and after is not None:
        reason += f" (separation {before:.2g} to {after:.2g})"
    return reason


def _cost(rate: Rate) -> str:
    ended = "; interrupted, so this rests on what was finished" if rate.interrupted else ""
    return (
        f"Read from {len(rate.rehearsals)} rehearsals of {rate.steps} steps on a copy ({rate.passes} steps, "
        f"{rate.seconds:.0f} s{ended}); valid for this batch size and optimizer, and silent about what comes later in "
        "training."
    )


def _capital(note: str) -> str:
    return note[:1].upper() + note[1:]
